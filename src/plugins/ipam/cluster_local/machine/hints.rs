//! What the node has heard or listed of others. Hints may be old: they choose what is tried, and what is
//! tried is decided by the store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::block::Block;
use super::super::name::Name;
use super::super::store::{Heard, Key, Stored, Token, Value, Want};
use crate::sys::clock::Moment;

/// How long a want lasts that is not renewed.
const WANT: Duration = Duration::from_secs(60);

/// A want of a node.
#[derive(Clone, Debug)]
pub struct HeardWant {
    /// The want.
    pub want: Want,
    /// Its record.
    pub stored: Stored,
    /// When it was heard.
    pub at: Moment,
}

/// The blocks of a realm.
#[derive(Clone, Debug, Default)]
pub struct RealmHint {
    /// When they were listed.
    pub listed: Moment,
    /// The claims.
    pub claims: BTreeSet<Block>,
    /// The sizes of the blocks of divided chunks.
    pub divided: BTreeMap<Block, u8>,
    /// The blocks that were tried in vain since.
    pub lost: BTreeSet<Block>,
}

impl RealmHint {
    /// What a list has.
    pub fn new(listed: Vec<Stored>, at: Moment) -> RealmHint {
        let mut hint = RealmHint { listed: at, ..RealmHint::default() };
        for stored in listed {
            let Key::Block(_, block) = stored.record.key else { continue };
            match stored.record.value {
                Value::Divided(size) => drop(hint.divided.insert(block, size)),
                _ => drop(hint.claims.insert(block)),
            }
        }
        hint
    }

    /// Whether a block may be free: neither claimed nor in a chunk of blocks of another size.
    pub fn may_claim(&self, block: Block) -> bool {
        let chunk = block.chunk();
        let size = self.divided.get(&chunk).copied().map(u64::from);
        let is_fitting =
            if block == chunk { size.is_none() } else { size.is_none_or(|is| is == block.size()) };
        is_fitting
            && ![block, chunk]
                .iter()
                .any(|one| self.claims.contains(one) || self.lost.contains(one))
    }
}

/// Everything that was heard.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// The watch has told what there is.
    pub is_heard: bool,
    /// The id of the store.
    pub meta: Option<Token>,
    /// What nodes want.
    pub wants: BTreeMap<Name, HeardWant>,
    /// The blocks in which a node has leases that are another's, by realm.
    pub conflicts: BTreeMap<(Name, Block), Name>,
    /// The blocks of realms.
    pub realms: BTreeMap<Name, RealmHint>,
}

impl Hints {
    /// Takes what the watch has heard.
    pub fn hear(&mut self, heard: Heard, now: Moment) {
        match heard {
            Heard::Now(all) => {
                let before = std::mem::take(&mut self.wants);
                self.conflicts.clear();
                (self.meta, self.is_heard) = (None, true);
                for stored in all {
                    self.put(stored, now);
                }
                for (node, heard) in &mut self.wants {
                    let known = before.get(node).filter(|was| was.stored == heard.stored);
                    heard.at = known.map_or(now, |was| was.at);
                }
            }
            Heard::Put(stored) => self.put(stored, now),
            Heard::Gone(Key::Want(node)) => drop(self.wants.remove(&node)),
            Heard::Gone(Key::Conflict(realm, block)) => {
                drop(self.conflicts.remove(&(realm, block)))
            }
            Heard::Gone(Key::Meta | Key::Node(_) | Key::Block(..)) => (),
        }
    }

    fn put(&mut self, stored: Stored, now: Moment) {
        match (stored.record.key.clone(), stored.record.value.clone()) {
            (Key::Meta, Value::Meta(id)) => self.meta = Some(id),
            (Key::Want(node), Value::Want(want)) => {
                self.wants.insert(node, HeardWant { want, stored, at: now });
            }
            (Key::Conflict(realm, block), Value::Conflict(node)) => {
                self.conflicts.insert((realm, block), node);
            }
            _ => (), // it is of another kind, or cannot be read
        }
    }

    /// What other nodes than this one want now.
    pub fn wants_of_others<'h>(
        &'h self,
        node: &'h Name,
        now: Moment,
    ) -> impl Iterator<Item = (&'h Name, &'h HeardWant)> {
        self.wants.iter().filter(move |(by, heard)| *by != node && heard.at + WANT > now)
    }

    /// Whether a node other than this one has leases in a block that is another's.
    pub fn is_contested(&self, realm: &Name, block: Block, node: &Name) -> bool {
        self.conflicts
            .iter()
            .any(|((of, noted), by)| of == realm && by != node && noted.overlaps(block))
    }
}
