//! A model of etcd: keys with revisions, leases with an end, transactions, and snapshots.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::block::Block;
use super::super::engine::{
    Answer, Change, Claimed, ConflictNote, Epoch, Found, Ground, LeaseId, Name, NodeRecord,
    NodeState, Operation, Outcome, PoolNote, RealmState, Revision, Rival, Seen, Standing,
    Versioned, Want,
};
use crate::sys::clock::Moment;

/// A node's key `alive`.
#[derive(Clone, Debug)]
struct Alive {
    boot: String,
    lease: LeaseId,
    ends: Moment,
}

/// The store; it has one realm.
#[derive(Clone, Debug, Default)]
pub struct Store {
    pub revision: Revision,
    pub epoch: Epoch,
    nodes: BTreeMap<Name, Versioned<NodeRecord>>,
    alive: BTreeMap<Name, Alive>,
    pub blocks: BTreeMap<Block, Versioned<Claimed>>,
    /// The address of each name.
    pub names: BTreeMap<String, Block>,
    wants: BTreeMap<Name, (Want, Moment)>,
    pub notes: BTreeMap<Block, ConflictNote>,
    pub pools: BTreeMap<String, PoolNote>,
    last_lease: i64,
    /// What watches have not been told yet.
    pub changes: Vec<Change>,
}

impl Store {
    /// Does an operation: the one atomic step that a transaction is.
    pub fn apply(&mut self, operation: &Operation, now: Moment) -> Outcome {
        self.end_leases(now);
        match operation {
            Operation::ReadNode { node } => self.done(Answer::Node(self.node(node))),
            Operation::List { .. } => self.done(Answer::Realm(self.realm(None))),
            Operation::ReadBlock { block, .. } => {
                self.done(Answer::Realm(self.realm(Some(*block))))
            }
            Operation::Register { node, record, seen } => self.register(node, record, *seen),
            Operation::Heartbeat { node, boot, lease, ttl, node_revision } => {
                let ends = now + Duration::from_secs((*ttl).into());
                self.heartbeat(node, *node_revision, (boot, *lease, ends))
            }
            Operation::Claim { block, claimed, ground, .. } => self.claim(*block, claimed, *ground),
            Operation::Replace { seen, kept, claimed, ground, .. } => {
                self.replace(seen, kept, (claimed, *ground))
            }
            Operation::Release { seen, .. } => self.release(seen),
            Operation::Hold { seen, claimed, ground, .. } => {
                self.replace(seen, &[seen.block], (claimed, *ground))
            }
            Operation::Want { node, want, ttl, .. } => {
                self.want(node, want.clone(), now + Duration::from_secs((*ttl).into()))
            }
            Operation::Fence { node, seen } => self.fence(node, seen),
            Operation::Recover { seen } => self.recover(*seen),
            Operation::NoteConflict { block, note, .. } => self.note(*block, note.clone()),
            Operation::EndConflict { block, .. } => self.note(*block, None),
            Operation::NotePool { hash, note, .. } => {
                self.pools.entry(hash.clone()).or_insert_with(|| note.clone());
                self.wrote()
            }
            Operation::DropPool { hash, .. } => {
                self.pools.remove(hash);
                self.wrote()
            }
            // The world keeps watches, and operators survey.
            Operation::Watch { .. } | Operation::Survey => self.done(Answer::Written),
        }
    }

    fn done(&self, answer: Answer) -> Outcome {
        Outcome::Done { revision: self.revision, answer }
    }

    fn wrote(&mut self) -> Outcome {
        self.revision += 1;
        self.done(Answer::Written)
    }

    fn lost(&self, node: &Name, block: Option<Block>) -> Outcome {
        let blocks = block.map(|block| self.realm(Some(block)).blocks).unwrap_or_default();
        let rival = Box::new(Rival { node: self.node(node), blocks, named: None });
        Outcome::Lost { revision: self.revision, rival }
    }

    /// The same for a claim, whose name may have an address.
    fn lost_claim(&self, block: Block, claimed: &Claimed) -> Outcome {
        let mut lost = self.lost(&claimed.owner.node, Some(block));
        if let Outcome::Lost { rival, .. } = &mut lost {
            rival.named = claimed.sticky.as_ref().and_then(|name| self.names.get(name)).copied();
        }
        lost
    }

    fn has_name(&self, claimed: &Claimed) -> bool {
        claimed.sticky.as_ref().is_some_and(|name| self.names.contains_key(name))
    }

    fn node(&self, node: &Name) -> NodeState {
        NodeState {
            record: self.nodes.get(node).cloned(),
            alive: self.alive.get(node).map(|alive| alive.boot.clone()),
            epoch: self.epoch,
        }
    }

    /// The keys of the realm, or those that overlap a block.
    fn realm(&self, around: Option<Block>) -> RealmState {
        let is_in = |block: &Block| around.is_none_or(|around| around.overlaps(*block));
        let found = |(block, key): (&Block, &Versioned<Claimed>)| Found {
            block: *block,
            claimed: Some(key.value.clone()),
            revision: key.revision,
        };
        let wants = self.wants.iter().filter(|_| around.is_none());
        let notes = self.notes.iter().filter(|(block, _)| is_in(block));
        RealmState {
            blocks: self.blocks.iter().filter(|(block, _)| is_in(block)).map(found).collect(),
            wants: wants.map(|(node, (want, _))| (node.clone(), want.clone())).collect(),
            notes: notes.map(|(block, note)| (*block, note.clone())).collect(),
            pools: self.pools.iter().map(|(hash, note)| (hash.clone(), note.clone())).collect(),
        }
    }

    fn end_leases(&mut self, now: Moment) {
        self.alive.retain(|_, alive| alive.ends > now);
        let ended: Vec<Name> = self
            .wants
            .iter()
            .filter(|(_, (_, ends))| *ends <= now)
            .map(|(node, _)| node.clone())
            .collect();
        for node in ended {
            self.wants.remove(&node);
            self.revision += 1;
            self.changes.push(Change::Wanted(node, None));
        }
    }

    fn register(&mut self, node: &Name, record: &NodeRecord, seen: Revision) -> Outcome {
        if self.nodes.get(node).map_or(0, |found| found.revision) != seen {
            return self.lost(node, None);
        }
        let outcome = self.wrote();
        self.nodes
            .insert(node.clone(), Versioned { value: record.clone(), revision: self.revision });
        outcome
    }

    fn heartbeat(
        &mut self,
        node: &Name,
        seen: Revision,
        sign: (&str, Option<LeaseId>, Moment),
    ) -> Outcome {
        let (boot, lease, ends) = sign;
        let is_own = self.nodes.get(node).is_some_and(|found| found.revision == seen);
        let kept = self.alive.get_mut(node).filter(|alive| Some(alive.lease) == lease);
        match (kept, lease) {
            (Some(alive), Some(lease)) if is_own => {
                alive.ends = ends;
                self.done(Answer::Lease(lease))
            }
            (_, None) if is_own => {
                self.last_lease += 1;
                let lease = LeaseId(self.last_lease);
                self.alive.insert(node.clone(), Alive { boot: boot.to_owned(), lease, ends });
                self.revision += 1;
                self.done(Answer::Lease(lease))
            }
            _ => self.lost(node, None),
        }
    }

    fn is_ground(&self, claimed: &Claimed, ground: Ground) -> bool {
        let revision = self.nodes.get(&claimed.owner.node).map_or(0, |found| found.revision);
        revision == ground.node_revision && self.epoch == ground.epoch
    }

    fn claim(&mut self, block: Block, claimed: &Claimed, ground: Ground) -> Outcome {
        let is_free = self.blocks.keys().all(|taken| !taken.overlaps(block));
        if !is_free || self.has_name(claimed) || !self.is_ground(claimed, ground) {
            return self.lost_claim(block, claimed);
        }
        let outcome = self.wrote();
        self.put(block, claimed);
        outcome
    }

    fn put(&mut self, block: Block, claimed: &Claimed) {
        let key = Versioned { value: claimed.clone(), revision: self.revision };
        let found = Found { block, claimed: Some(claimed.clone()), revision: self.revision };
        self.blocks.insert(block, key);
        self.names.extend(claimed.sticky.clone().map(|name| (name, block)));
        self.changes.push(Change::Claimed(found));
    }

    fn is_seen(&self, seen: &Seen) -> bool {
        let key = self.blocks.get(&seen.block);
        key.is_some_and(|key| key.revision == seen.revision && key.value == seen.claimed)
    }

    fn replace(&mut self, seen: &Seen, kept: &[Block], by: (&Claimed, Ground)) -> Outcome {
        let (claimed, ground) = by;
        let is_other_name = claimed.sticky != seen.claimed.sticky;
        let is_named = is_other_name && self.has_name(claimed);
        if !self.is_seen(seen) || is_named || !self.is_ground(claimed, ground) {
            return self.lost_claim(seen.block, claimed);
        }
        let outcome = self.release(seen);
        for block in kept {
            self.put(*block, claimed);
        }
        outcome
    }

    fn release(&mut self, seen: &Seen) -> Outcome {
        if !self.is_seen(seen) {
            return self.lost(&seen.claimed.owner.node, Some(seen.block));
        }
        self.blocks.remove(&seen.block);
        if let Some(name) = &seen.claimed.sticky {
            self.names.remove(name);
        }
        self.changes.push(Change::Released(seen.block));
        self.wrote()
    }

    fn want(&mut self, node: &Name, want: Option<Want>, ends: Moment) -> Outcome {
        match &want {
            Some(want) => drop(self.wants.insert(node.clone(), (want.clone(), ends))),
            None => drop(self.wants.remove(node)),
        }
        self.changes.push(Change::Wanted(node.clone(), want));
        self.wrote()
    }

    fn fence(&mut self, node: &Name, seen: &Versioned<NodeRecord>) -> Outcome {
        let is_seen = self.nodes.get(node).is_some_and(|found| found == seen);
        if !is_seen || self.alive.contains_key(node) {
            return self.lost(node, None);
        }
        let outcome = self.wrote();
        let incarnation = seen.value.incarnation + 1;
        let value = NodeRecord { incarnation, standing: Standing::Fenced, ..seen.value.clone() };
        self.nodes.insert(node.clone(), Versioned { value, revision: self.revision });
        outcome
    }

    fn recover(&mut self, seen: Epoch) -> Outcome {
        self.epoch = seen + 1;
        self.wrote()
    }

    fn note(&mut self, block: Block, note: Option<ConflictNote>) -> Outcome {
        match &note {
            Some(note) => drop(self.notes.insert(block, note.clone())),
            None => drop(self.notes.remove(&block)),
        }
        self.changes.push(Change::Noted(block, note));
        self.wrote()
    }

    /// A key that is there already.
    pub fn insert(&mut self, block: Block, claimed: &Claimed) {
        self.revision += 1;
        self.put(block, claimed);
    }

    /// What an operator does about a node that is gone: fences it, and deletes its blocks and notes.
    pub fn reclaim(&mut self, node: &Name, now: Moment) {
        self.end_leases(now);
        let Some(seen) = self.nodes.get(node).cloned() else { return };
        if matches!(self.fence(node, &seen), Outcome::Lost { .. }) {
            return;
        }
        let is_of = |claimed: &Claimed| {
            claimed.owner.uid == seen.value.uid
                && claimed.owner.incarnation <= seen.value.incarnation
        };
        let keys = self.realm(None).blocks;
        for found in keys {
            if let Some(claimed) = found.claimed.filter(is_of) {
                self.release(&Seen { block: found.block, claimed, revision: found.revision });
            }
        }
        self.notes.retain(|_, note| note.by.node != *node);
    }
}
