//! A list of keys, read in pages at the revision of the first one.

use super::super::engine::{Answer, ClusterState, Name, Outcome, RealmState, Revision};
use super::encoding::{Number, Octets};
use super::found;
use super::keys::Keys;
use super::reply::{Flaw, KeyValue, RangeReply, known};
use super::request::{KeyRange, Range};

/// The keys of one page: some 400 bytes each in the reply.
const PAGE: u64 = 1000;
/// The most keys of a list, as a limit of memory. 10 000 nodes have 40 000.
const MOST_KEYS: usize = 1_000_000;
/// How often a list starts again because its revision was compacted.
pub const RESTARTS: u32 = 3;

/// What is known of a list.
#[derive(Debug)]
pub struct Pages {
    found: Found,
    /// The revision of the first page, at which all others are read; 0 before.
    revision: Revision,
    /// The keys that are left to read, the next range last.
    left: Vec<KeyRange>,
    count: usize,
    restarts: u32,
}

/// What was read.
#[derive(Debug)]
enum Found {
    Realm(Name, RealmState),
    Cluster(Box<ClusterState>),
}

impl Found {
    fn add(&mut self, keys: &Keys, kv: &KeyValue) {
        match self {
            Found::Realm(realm, state) => {
                found::add_to_realm(state, keys, realm, kv);
            }
            Found::Cluster(state) => found::add_to_cluster(state, keys, kv),
        }
    }

    fn into_answer(self) -> Answer {
        match self {
            Found::Realm(_, mut state) => {
                state.blocks.sort_by_key(|found| found.block);
                Answer::Realm(state)
            }
            Found::Cluster(state) => Answer::Cluster(state),
        }
    }
}

impl Pages {
    /// The list of a realm's keys.
    pub fn of_realm(keys: &Keys, realm: &Name) -> Pages {
        let prefixes =
            [keys.pools(realm), keys.conflicts(realm), keys.wants(realm), keys.blocks(realm)];
        let left = prefixes.map(|prefix| KeyRange::prefix(&prefix)).into();
        Pages::new(Found::Realm(realm.clone(), RealmState::default()), left)
    }

    /// The list of all keys of the cluster.
    pub fn of_cluster(keys: &Keys) -> Pages {
        Pages::new(Found::Cluster(Box::default()), vec![keys.all()])
    }

    fn new(found: Found, left: Vec<KeyRange>) -> Pages {
        Pages { found, revision: 0, left, count: 0, restarts: 0 }
    }

    /// The next page.
    pub fn next(&self) -> Range {
        let keys = self.left.last().cloned().unwrap_or_default();
        let revision = Number(self.revision);
        Range { keys, limit: Number(PAGE), revision, ..Range::default() }
    }

    /// Adds a page; returns the outcome after the last one.
    pub fn add(&mut self, keys: &Keys, page: RangeReply) -> Result<Option<Outcome>, Flaw> {
        let revision = known(page.header.revision)?;
        if self.revision == 0 {
            self.revision = revision;
        }
        self.count += page.kvs.len();
        if self.count > MOST_KEYS {
            return Err(format!("the cluster has more than {MOST_KEYS} keys"));
        }
        for kv in &page.kvs {
            self.found.add(keys, kv);
        }
        self.advance(&page)?;
        Ok(self.left.is_empty().then(|| self.outcome()))
    }

    fn outcome(&mut self) -> Outcome {
        let found = std::mem::replace(&mut self.found, Found::Cluster(Box::default()));
        Outcome::Done { revision: self.revision, answer: found.into_answer() }
    }

    /// The next page begins after the last key of this one.
    fn advance(&mut self, page: &RangeReply) -> Result<(), Flaw> {
        let Some(range) = self.left.last_mut().filter(|_| page.more) else {
            self.left.pop();
            return Ok(());
        };
        let last = page.kvs.last().map(|kv| &kv.key).filter(|last| **last >= range.key);
        let last = last.ok_or("the response has a page without an end")?;
        range.key = Octets([last.0.as_slice(), &[0]].concat());
        Ok(())
    }

    /// The revision was compacted between two pages: the list starts again, but not for ever.
    pub fn restart(&mut self, keys: &Keys) -> Result<(), Flaw> {
        let restarts = self.restarts + 1;
        if restarts > RESTARTS {
            return Err(format!("the store was compacted {restarts} times during one list"));
        }
        let anew = match &self.found {
            Found::Realm(realm, _) => Pages::of_realm(keys, realm),
            Found::Cluster(_) => Pages::of_cluster(keys),
        };
        *self = Pages { restarts, ..anew };
        Ok(())
    }
}
