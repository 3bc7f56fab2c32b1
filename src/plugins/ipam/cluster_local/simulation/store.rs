//! The store of the model: a map with versions.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::name::Name;
use super::super::store::{
    Answer, Key, Operation, Outcome, Record, Selection, Stored, Value, Version,
};

/// The records. A snapshot is a clone.
#[derive(Clone, Debug, Default)]
pub struct Records(pub BTreeMap<Key, Stored>);

impl Records {
    /// Executes an operation; `last` is the last version that was given, of whatever store.
    pub fn execute(&mut self, operation: &Operation, last: &mut u64) -> Outcome<Answer> {
        match operation {
            Operation::Get(key) => Outcome::Done(Answer::Found(self.0.get(key).cloned())),
            Operation::List(selection) => Outcome::Done(Answer::Listed(self.select(selection))),
            Operation::Create(record) if self.0.contains_key(&record.key) => Outcome::Lost,
            Operation::Create(record) => self.write(record, last),
            Operation::Update(record, seen) => match self.0.get(&record.key) {
                Some(stored) if stored == seen => self.write(record, last),
                _ => Outcome::Lost,
            },
            Operation::Delete(seen) => match self.0.get(&seen.record.key) {
                Some(stored) if stored == seen => {
                    self.0.remove(&seen.record.key);
                    Outcome::Done(Answer::Deleted)
                }
                _ => Outcome::Lost,
            },
        }
    }

    fn write(&mut self, record: &Record, last: &mut u64) -> Outcome<Answer> {
        *last += 1;
        let version = Version(Arc::from(last.to_string()));
        let stored = Stored { record: record.clone(), version };
        self.0.insert(record.key.clone(), stored.clone());
        Outcome::Done(Answer::Written(stored))
    }

    fn select(&self, selection: &Selection) -> Vec<Stored> {
        let is_of = |stored: &&Stored| match selection {
            Selection::All => true,
            Selection::Nodes => matches!(stored.record.key, Key::Node(_)),
            Selection::Node(node) => is_of_node(stored, node),
            Selection::Realm(realm) => {
                matches!(&stored.record.key, Key::Block(of, _) if of == realm)
            }
            Selection::Named(realm, name) => match (&stored.record.key, &stored.record.value) {
                (Key::Block(of, _), Value::Claim(claim)) => {
                    of == realm && claim.name.as_ref() == Some(name)
                }
                _ => false,
            },
            Selection::Confirm { node, realm, blocks } => match &stored.record.key {
                Key::Block(of, block) => {
                    of == realm && blocks.contains(block) && is_of_node(stored, node)
                }
                Key::Conflict(of, _) => of == realm,
                _ => false,
            },
        };
        self.0.values().filter(is_of).cloned().collect()
    }

    /// What a watch hears of.
    pub fn heard(&self) -> Vec<Stored> {
        let is_heard = |stored: &&Stored| {
            matches!(stored.record.key, Key::Meta | Key::Want(_) | Key::Conflict(..))
        };
        self.0.values().filter(is_heard).cloned().collect()
    }
}

fn is_of_node(stored: &Stored, node: &Name) -> bool {
    match &stored.record.value {
        Value::Claim(claim) => claim.node == *node,
        Value::Conflict(by) => by == node,
        _ => false,
    }
}
