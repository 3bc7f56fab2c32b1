//! A realm as it was last listed, kept up to date by hints: where blocks are free, and who wants some.
//!
//! It only chooses candidates. Whether one is free is the store's answer to the claim.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::super::block::Block;
use super::super::engine::{Change, Found, Name, RealmState, Revision, Seen, Want};
use super::super::pool::Pool;
use crate::sys::clock::{Moment, NEVER};
use crate::sys::random::Random;

/// How many places of a pool are tried for a free block of the pool's own length, beside as many as there
/// are blocks.
const TRIES: u128 = 4096;

/// When a want that still holds is written again.
pub const REFRESH: Duration = Duration::from_secs(15);

/// A realm that was listed.
pub struct Listed {
    /// Its keys.
    pub state: RealmState,
    /// The store's revision.
    pub revision: Revision,
    /// The number of the operation.
    pub sent: u64,
}

/// What is known of a realm.
#[derive(Clone, Debug, Default)]
pub struct Realm {
    /// The blocks that have keys, by family and first address: they are apart from each other.
    taken: BTreeMap<(bool, u128), Block>,
    /// Those of them that are kept for names.
    sticky: BTreeMap<Block, Seen>,
    /// The blocks with a note of a conflict, and the node that wrote it. That node still uses the block, even if
    /// the block has no key.
    noted: BTreeMap<Block, Name>,
    /// What nodes want, and when that was last heard.
    pub wants: BTreeMap<Name, (Want, Moment)>,
    /// The revision of the list.
    pub revision: Revision,
    /// The number of the operation that listed it; 0 before.
    pub listed: u64,
    /// The number of the operation that lists it now.
    pub asked: Option<u64>,
    /// The hints since that list was requested: some may be newer than the list.
    hints: Vec<Change>,
    /// It is watched.
    pub watched: bool,
    /// When it must be listed again, whatever hints say.
    pub recheck: Option<Moment>,
    /// Keys of reclaimed nodes are left that are not being deleted.
    pub unfreed: bool,
    /// When blocks are given back next, if other nodes want some.
    pub round: Option<Moment>,
    /// The want that this node has written to the store, and when it is written again.
    pub want: Option<(Want, Moment)>,
    /// A want is being written.
    pub wanting: bool,
}

impl Realm {
    /// When something is due.
    pub fn deadline(&self) -> Moment {
        let wanted = self.want.as_ref().map(|(_, due)| *due);
        [self.recheck, self.round, wanted].into_iter().flatten().min().unwrap_or(NEVER)
    }

    /// Takes over a list. The other networks of a node serve its own want, too.
    pub fn take(&mut self, listed: Listed, now: Moment) {
        self.taken =
            listed.state.blocks.iter().map(|found| (place(found.block), found.block)).collect();
        let sticky = listed.state.blocks.iter().filter_map(sticky);
        self.sticky = sticky.map(|seen| (seen.block, seen)).collect();
        let notes = listed.state.notes.into_iter();
        self.noted = notes.map(|(block, note)| (block, note.by.node)).collect();
        let wants = listed.state.wants.into_iter();
        self.wants = wants.map(|(node, want)| (node, (want, now))).collect();
        self.revision = listed.revision;
        self.listed = listed.sent;
        for change in std::mem::take(&mut self.hints) {
            self.apply(change, now); // in order: hints of later changes are still to come
        }
    }

    /// The operation of this number lists the realm.
    pub fn ask(&mut self, sent: u64) {
        self.asked = Some(sent);
        self.hints.clear();
    }

    /// Compares this node's want with its key in the store. If a late request has overwritten the key with an
    /// earlier want, the key is written or deleted again.
    pub fn compare_want(&mut self, found: Option<&Want>) {
        let written = self.want.as_ref().map(|(want, _)| want);
        if !self.wanting && found != written {
            let stale = found.or(written).cloned();
            self.want = stale.map(|want| (want, Moment::ZERO));
        }
    }

    /// Adds keys that were seen otherwise.
    pub fn merge(&mut self, found: &[Found]) {
        for found in found {
            self.add(found);
        }
    }

    fn add(&mut self, found: &Found) {
        while let Some(other) = self.claimed_over(found.block) {
            self.remove(other); // it was released, split or claimed since
        }
        self.taken.insert(place(found.block), found.block);
        self.sticky.extend(sticky(found).map(|seen| (seen.block, seen)));
    }

    fn remove(&mut self, block: Block) {
        self.taken.remove(&place(block));
        self.sticky.remove(&block);
    }

    /// The address of a name, with the network's.
    pub fn named(&self, name: &str) -> Option<&Seen> {
        self.sticky.values().find(|seen| seen.claimed.sticky.as_deref() == Some(name))
    }

    /// The addresses of a pool that names have.
    pub fn names_in(&self, pool: &Pool) -> impl Iterator<Item = &Seen> {
        self.sticky.values().filter(|seen| pool.meets(seen.block))
    }

    /// A sticky address that any node may take over.
    pub fn vacant_at(&self, block: Block) -> Option<&Seen> {
        self.sticky.get(&block).filter(|seen| seen.claimed.vacant)
    }

    /// The node that has noted a conflict about the block.
    pub fn noted_by(&self, block: Block) -> Option<&Name> {
        self.noted.iter().find(|(noted, _)| noted.overlaps(block)).map(|(_, node)| node)
    }

    /// Takes a hint.
    pub fn hint(&mut self, change: Change, now: Moment) {
        if self.asked.is_some() {
            self.hints.push(change.clone());
        }
        self.apply(change, now);
    }

    fn apply(&mut self, change: Change, now: Moment) {
        match change {
            Change::Claimed(found) => self.add(&found),
            Change::Released(block) => {
                if self.taken.get(&place(block)) == Some(&block) {
                    self.remove(block);
                }
            }
            Change::Wanted(node, Some(want)) => drop(self.wants.insert(node, (want, now))),
            Change::Wanted(node, None) => drop(self.wants.remove(&node)),
            Change::Noted(block, Some(note)) => drop(self.noted.insert(block, note.by.node)),
            Change::Noted(block, None) => drop(self.noted.remove(&block)),
        }
    }

    /// A block that overlaps this one, and is taken or noted.
    fn overlapping(&self, block: Block) -> Option<Block> {
        let noted = || self.noted.keys().copied().find(|noted| noted.overlaps(block));
        self.claimed_over(block).or_else(noted)
    }

    /// A taken block that overlaps this one.
    fn claimed_over(&self, block: Block) -> Option<Block> {
        let (is_v6, start) = place(block);
        let before = self.taken.range(..=(is_v6, start)).next_back().map(|(_, taken)| *taken);
        let inside = || {
            self.taken.range((is_v6, start)..=(is_v6, block.end())).next().map(|(_, taken)| *taken)
        };
        before.filter(|taken| taken.overlaps(block)).or_else(inside)
    }

    /// A block of the pool to claim: one of the pool's length at random, or else the smallest piece
    /// that is free. If only one address will do, the largest free piece that contains it.
    pub fn candidate(
        &self,
        pool: &Pool,
        address: Option<IpAddr>,
        random: &mut Random,
    ) -> Option<Block> {
        match address {
            Some(ip) => self.around(pool, ip),
            None => self.whole(pool, random).or_else(|| self.smallest_piece(pool)),
        }
    }

    fn around(&self, pool: &Pool, ip: IpAddr) -> Option<Block> {
        let free = self.pieces(pool.block_of(ip)?);
        free.into_iter().find(|piece| piece.contains(ip))
    }

    /// Tries places from a random one on. Each taken block covers at least a part of one place, so
    /// a pool with more places than that has a free one.
    fn whole(&self, pool: &Pool, random: &mut Random) -> Option<Block> {
        let count = pool.count();
        let number = u128::from(random.number()) << 64 | u128::from(random.number());
        let tries = count.min(self.taken.len() as u128 + TRIES);
        let places = (0..tries).map(|step| (number % count + step) % count);
        let mut blocks = places.filter_map(|place| pool.block(place));
        blocks.find(|block| self.overlapping(*block).is_none())
    }

    /// The free pieces of blocks that are taken in part.
    fn smallest_piece(&self, pool: &Pool) -> Option<Block> {
        let mut smallest: Option<Block> = None;
        let mut last = None;
        let all = self.taken.values().chain(self.noted.keys());
        for taken in all.filter(|taken| taken.length() > pool.length()) {
            let whole = Block::around(taken.first(), pool.length());
            let Some(whole) = whole.filter(|whole| last != Some(*whole) && pool.meets(*whole))
            else {
                continue;
            };
            last = Some(whole);
            for piece in self.pieces(whole).into_iter().filter(|piece| pool.meets(*piece)) {
                let is_smaller = smallest.is_none_or(|smallest| piece.length() > smallest.length());
                smallest = if is_smaller { Some(piece) } else { smallest };
            }
        }
        smallest
    }

    /// The largest free blocks inside a block.
    fn pieces(&self, block: Block) -> Vec<Block> {
        match self.overlapping(block) {
            None => vec![block],
            Some(taken) if taken.covers(block) => vec![],
            Some(_) => {
                block.halves().into_iter().flatten().flat_map(|half| self.pieces(half)).collect()
            }
        }
    }
}

/// A key that is kept for a name.
fn sticky(found: &Found) -> Option<Seen> {
    let claimed = found.claimed.as_ref().filter(|claimed| claimed.sticky.is_some())?;
    Some(Seen { block: found.block, claimed: claimed.clone(), revision: found.revision })
}

fn place(block: Block) -> (bool, u128) {
    (block.family() == crate::family::Family::V6, block.start())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::super::engine::{ConflictNote, Identity};
    use super::super::super::held::Token;
    use super::*;

    fn noted(block: &str, is_noted: bool) -> Change {
        let by = Identity { node: "n1".parse().unwrap(), uid: Token(1), incarnation: 0 };
        let note = ConflictNote { by, leases: 1 };
        Change::Noted(block.parse().unwrap(), is_noted.then_some(note))
    }

    /// The node that has noted the conflict has leases in the block, whoever has its key.
    #[test]
    fn a_block_that_is_noted_is_no_candidate() {
        let pool: Pool =
            serde_json::from_str(r#"{"length":30,"spans":["10.1.0.0-10.1.0.7"]}"#).unwrap();
        let mut realm = Realm::default();
        let mut random = Random::seeded(1);
        let mut candidate =
            |realm: &Realm, ip| realm.candidate(&pool, ip, &mut random).map(|b| b.to_string());
        realm.hint(noted("4-0a010004-31", true), Moment::ZERO);
        assert_eq!(candidate(&realm, None).as_deref(), Some("4-0a010000-30"));
        let block = "4-0a010000-30".parse().unwrap();
        realm.add(&Found { block, claimed: None, revision: 1 });
        assert_eq!(candidate(&realm, None).as_deref(), Some("4-0a010006-31"));
        assert_eq!(candidate(&realm, "10.1.0.5".parse().ok()), None);
        realm.hint(noted("4-0a010004-31", false), Moment::ZERO);
        assert_eq!(candidate(&realm, None).as_deref(), Some("4-0a010004-30"));
    }
}
