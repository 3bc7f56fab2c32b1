//! Each write of the state machine as one transaction: what it compares, what it writes, and what
//! it reads if it lost.

use serde::Serialize;

use super::super::block::Block;
use super::super::engine::{
    Claimed, Epoch, Ground, Name, NodeRecord, Operation, Seen, Standing, Versioned,
};
use super::encoding::{Number, Octets};
use super::keys::Keys;
use super::request::{Compare, KeyRange, Operation as Step, Range, Txn};

/// The subject of a write: whose keys are read if it is lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Subject<'a> {
    /// The node that writes, or that the record is of.
    pub node: Option<&'a Name>,
    /// The realm, and the block in it.
    pub block: Option<(&'a Name, Block)>,
    /// The name of a sticky address that is claimed.
    pub name: Option<&'a str>,
}

impl<'a> Subject<'a> {
    /// The subject of an operation.
    pub fn of(operation: &'a Operation) -> Subject<'a> {
        use Operation as O;
        match operation {
            O::Claim { realm, block, claimed, .. } => Subject::of_block(claimed, realm, *block),
            O::Replace { realm, seen, claimed, .. } | O::Hold { realm, seen, claimed, .. } => {
                Subject::of_block(claimed, realm, seen.block)
            }
            O::Release { realm, seen } => {
                Subject { name: None, ..Subject::of_block(&seen.claimed, realm, seen.block) }
            }
            O::Register { node, .. }
            | O::Heartbeat { node, .. }
            | O::Fence { node, .. }
            | O::ReadNode { node }
            | O::Want { node, .. } => Subject { node: Some(node), ..Subject::default() },
            O::ReadBlock { realm, block } => {
                Subject { block: Some((realm, *block)), ..Subject::default() }
            }
            O::NoteConflict { .. }
            | O::EndConflict { .. }
            | O::NotePool { .. }
            | O::DropPool { .. }
            | O::Survey
            | O::Recover { .. }
            | O::List { .. }
            | O::Watch { .. } => Subject::default(),
        }
    }

    fn of_block(claimed: &'a Claimed, realm: &'a Name, block: Block) -> Subject<'a> {
        let (node, name) = (Some(&claimed.owner.node), claimed.sticky.as_deref());
        Subject { node, block: Some((realm, block)), name }
    }

    /// Reads the subject's keys and the epoch.
    pub fn reads(self, keys: &Keys) -> Vec<Step> {
        let mut reads = vec![Step::get(&keys.epoch())];
        if let Some(node) = self.node {
            reads.extend([Step::get(&keys.node(node)), Step::get(&keys.alive(node))]);
        }
        if let Some((realm, block)) = self.block {
            let ranges = keys.overlapping(realm, block);
            reads.extend(
                ranges.into_iter().map(|keys| Step::Range(Range { keys, ..Range::default() })),
            );
            reads.extend(self.name.map(|name| Step::get(&keys.name(realm, name))));
        }
        reads
    }
}

/// The transaction of a write; `lease` is what it attaches its key to. A read compares and writes
/// nothing.
pub fn txn(keys: &Keys, operation: &Operation, lease: u64) -> Txn {
    let mut txn = Txn::default();
    fill(&mut txn, keys, operation, lease);
    txn.failure = Subject::of(operation).reads(keys);
    txn
}

fn fill(txn: &mut Txn, keys: &Keys, operation: &Operation, lease: u64) {
    use Operation as O;
    match operation {
        O::Register { node, record, seen } => {
            txn.compare.push(Compare::unchanged(&keys.node(node), *seen));
            txn.success.push(Step::put(&keys.node(node), json(record)));
        }
        O::Heartbeat { node, boot, node_revision, .. } => {
            txn.compare.push(Compare::unchanged(&keys.node(node), *node_revision));
            txn.success.push(put_with_lease(&keys.alive(node), Octets::of(boot), lease));
        }
        O::Claim { realm, block, claimed, ground } => {
            txn.compare.extend(keys.overlapping(realm, *block).into_iter().map(Compare::absent));
            txn.compare.extend(grounds(keys, &claimed.owner.node, *ground));
            txn.success.push(Step::put(&keys.block(realm, *block), json(claimed)));
            if let Some(name) = &claimed.sticky {
                give_name(txn, &keys.name(realm, name), *block);
            }
        }
        O::Replace { realm, seen, kept, claimed, ground } => {
            txn.compare.extend(as_seen(keys, realm, seen));
            txn.compare.extend(grounds(keys, &claimed.owner.node, *ground));
            // One transaction changes a key once, so the block itself cannot be one of the parts.
            if !kept.contains(&seen.block) {
                txn.success.push(Step::delete(&keys.block(realm, seen.block)));
            }
            let puts = kept.iter().map(|part| Step::put(&keys.block(realm, *part), json(claimed)));
            txn.success.extend(puts);
        }
        O::Release { realm, seen } => {
            txn.compare.extend(as_seen(keys, realm, seen));
            txn.success.push(Step::delete(&keys.block(realm, seen.block)));
            let name = seen.claimed.sticky.as_ref().map(|name| keys.name(realm, name));
            txn.success.extend(name.map(|name| Step::delete(&name)));
        }
        O::Hold { realm, seen, claimed, ground } => {
            txn.compare.extend(as_seen(keys, realm, seen));
            txn.compare.extend(grounds(keys, &claimed.owner.node, *ground));
            txn.success.push(Step::put(&keys.block(realm, seen.block), json(claimed)));
            let names = [&seen.claimed.sticky, &claimed.sticky];
            if names[0] != names[1] {
                let [old, new] = names.map(|name| name.as_ref().map(|name| keys.name(realm, name)));
                txn.success.extend(old.map(|old| Step::delete(&old)));
                new.into_iter().for_each(|new| give_name(txn, &new, seen.block));
            }
        }
        O::Want { realm, node, want, .. } => {
            txn.success.push(match want {
                Some(want) => put_with_lease(&keys.want(realm, node), json(want), lease),
                None => Step::delete(&keys.want(realm, node)),
            });
        }
        O::Fence { node, seen } => {
            txn.compare.push(Compare::unchanged(&keys.node(node), seen.revision));
            txn.compare.push(Compare::value(&keys.node(node), json(&seen.value)));
            txn.compare.push(Compare::absent(KeyRange::one(&keys.alive(node))));
            txn.success.push(Step::put(&keys.node(node), json(&fenced(seen))));
        }
        O::Recover { seen } => {
            txn.compare.push(epoch_is(keys, *seen));
            txn.success.push(Step::put(&keys.epoch(), json(&(seen.saturating_add(1)))));
        }
        O::NoteConflict { realm, block, note } => {
            txn.success.push(match note {
                Some(note) => Step::put(&keys.conflict(realm, *block), json(note)),
                None => Step::delete(&keys.conflict(realm, *block)),
            });
        }
        O::EndConflict { realm, block, note } => {
            delete_if_same(txn, &keys.conflict(realm, *block), json(note));
        }
        O::DropPool { realm, hash, note } => {
            delete_if_same(txn, &keys.pool(realm, hash), json(note));
        }
        O::NotePool { realm, hash, note } => {
            let key = keys.pool(realm, hash);
            txn.compare.push(Compare::absent(KeyRange::one(&key)));
            txn.success.push(Step::put(&key, json(note)));
        }
        O::ReadNode { .. } => txn.success = Subject::of(operation).reads(keys),
        O::ReadBlock { realm, block } => {
            txn.success = Subject::of(operation).reads(keys);
            let keys = keys.conflicts_around(realm, *block);
            txn.success.push(Step::Range(Range { keys, ..Range::default() }));
        }
        O::List { .. } | O::Survey | O::Watch { .. } => (), // no transactions
    }
}

/// Deletes a key whose value is this one.
fn delete_if_same(txn: &mut Txn, key: &str, value: Octets) {
    txn.compare.push(Compare::value(key, value));
    txn.success.push(Step::delete(key));
}

/// A name gets an address, if it has none.
fn give_name(txn: &mut Txn, key: &str, block: Block) {
    txn.compare.push(Compare::absent(KeyRange::one(key)));
    txn.success.push(Step::put(key, json(&block)));
}

/// The record of a node that is reclaimed.
fn fenced(seen: &Versioned<NodeRecord>) -> NodeRecord {
    let incarnation = seen.value.incarnation.saturating_add(1);
    NodeRecord { incarnation, standing: Standing::Fenced, ..seen.value.clone() }
}

/// The key is as its owner last saw it.
fn as_seen(keys: &Keys, realm: &Name, seen: &Seen) -> [Compare; 2] {
    let key = keys.block(realm, seen.block);
    [Compare::unchanged(&key, seen.revision), Compare::value(&key, json(&seen.claimed))]
}

/// The node was not reclaimed, and the store not restored.
fn grounds(keys: &Keys, node: &Name, ground: Ground) -> [Compare; 2] {
    [Compare::unchanged(&keys.node(node), ground.node_revision), epoch_is(keys, ground.epoch)]
}

fn epoch_is(keys: &Keys, epoch: Epoch) -> Compare {
    match epoch {
        0 => Compare::absent(KeyRange::one(&keys.epoch())),
        epoch => Compare::value(&keys.epoch(), json(&epoch)),
    }
}

fn put_with_lease(key: &str, value: Octets, lease: u64) -> Step {
    Step::Put { key: Octets::of(key), value, lease: Number(lease) }
}

/// The types of values have no map with other keys than texts, the one thing that fails.
fn json(value: &impl Serialize) -> Octets {
    Octets(serde_json::to_vec(value).unwrap_or_default())
}
