//! A store in memory, for tests: a map with versions that are never used again.

use std::collections::BTreeMap;

use super::super::{Heard, Key, Outcome, Record, Selection, Store, Stored, Value, Version};

/// The store. A clone is a backup, which does not know the versions given since.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The records.
    pub records: BTreeMap<Key, Stored>,
    /// The last version.
    pub version: u64,
}

impl Memory {
    fn put(&mut self, record: &Record) -> Outcome<Stored> {
        self.version += 1;
        let version = Version(self.version.to_string().into());
        let stored = Stored { record: record.clone(), version };
        self.records.insert(record.key.clone(), stored.clone());
        Outcome::Done(stored)
    }

    fn is_as_seen(&self, seen: &Stored) -> bool {
        self.records.get(&seen.record.key).is_some_and(|stored| stored.version == seen.version)
    }
}

impl Store for Memory {
    fn get(&mut self, key: &Key) -> Outcome<Option<Stored>> {
        Outcome::Done(self.records.get(key).cloned())
    }

    fn list(&mut self, selection: &Selection) -> Outcome<Vec<Stored>> {
        let all = self.records.values().filter(|stored| selects(selection, &stored.record));
        Outcome::Done(all.cloned().collect())
    }

    fn create(&mut self, record: &Record) -> Outcome<Stored> {
        if self.records.contains_key(&record.key) { Outcome::Lost } else { self.put(record) }
    }

    fn update(&mut self, record: &Record, seen: &Stored) -> Outcome<Stored> {
        if self.is_as_seen(seen) { self.put(record) } else { Outcome::Lost }
    }

    fn delete(&mut self, seen: &Stored) -> Outcome<()> {
        if !self.is_as_seen(seen) {
            return Outcome::Lost;
        }
        self.records.remove(&seen.record.key);
        Outcome::Done(())
    }

    /// Tells what there is, and ends.
    fn watch(&mut self, tell: &mut dyn FnMut(Heard) -> bool) -> Outcome<()> {
        let is_watched = |key: &Key| matches!(key, Key::Meta | Key::Want(_) | Key::Conflict(..));
        let all = self.records.iter().filter(|(key, _)| is_watched(key));
        tell(Heard::Now(all.map(|(_, stored)| stored.clone()).collect()));
        Outcome::Done(())
    }
}

fn selects(selection: &Selection, record: &Record) -> bool {
    match (selection, &record.key, &record.value) {
        (Selection::All, ..) | (Selection::Nodes, Key::Node(_), _) => true,
        (Selection::Node(of), _, Value::Claim(claim)) => claim.node == *of,
        (Selection::Node(of), _, Value::Conflict(node)) => node == of,
        (
            Selection::Confirm { node, realm, blocks },
            Key::Block(of, block),
            Value::Claim(claim),
        ) => of == realm && claim.node == *node && blocks.contains(block),
        (Selection::Confirm { realm, .. }, Key::Conflict(of, _), _) => of == realm,
        (Selection::Named(realm, name), Key::Block(of, _), Value::Claim(claim)) => {
            of == realm && claim.name.as_ref() == Some(name)
        }
        (Selection::Realm(realm), Key::Block(of, _), _) => of == realm,
        _ => false,
    }
}
