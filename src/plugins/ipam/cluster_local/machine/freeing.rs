//! The keys that reclaimed nodes have left: with `reclaimAfter` each daemon deletes them in its own realms.
//!
//! The client executes operations one after the other, and heartbeats and claims wait behind these. So a
//! daemon deletes at most `MOST` keys of a realm at once, and lists the realm again for the next ones.

use super::super::ended::{Ended, release};
use super::super::engine::{Answer, Name, NodeRecord, Operation, RealmState, Standing};
use super::Machine;
use super::contact::Contact;
use super::interface::Turn;
use super::purpose::{Purpose, Remains, Result};

/// How many keys of reclaimed nodes a daemon deletes at once in a realm.
pub(super) const MOST: usize = 64;

impl Machine {
    /// Frees the blocks that an earlier reclaim has left.
    pub(super) fn free_if_over(&mut self, node: &Name, record: &NodeRecord) {
        let incarnation = record.incarnation;
        if self.others.lowest(node).is_some_and(|lowest| lowest < incarnation) {
            let is_back = record.standing == Standing::Live;
            self.free(Ended { node: node.clone(), incarnation, is_back });
        } else if record.standing == Standing::Live {
            self.others.ended.remove(node);
        }
    }

    /// Has the realms listed; `free_ended` then deletes the node's keys.
    pub(super) fn free(&mut self, ended: Ended) {
        self.others.ended.insert(ended.node.clone(), ended);
        for realm in self.realms.values_mut().filter(|realm| realm.listed > 0) {
            realm.recheck = Some(self.now);
        }
    }

    /// Deletes the next keys of ended incarnations in a listed realm, unless some are being deleted.
    pub(super) fn free_ended(&mut self, name: &Name, state: &RealmState, turn: &mut Turn<'_>) {
        if self.relation.contact != Contact::Together {
            return;
        }
        let mut room = if self.is_freeing(name) { 0 } else { MOST };
        let (pools, others) = (self.notes_of_pools(name, state), self.frees(name, state));
        let of_pools: usize = pools.iter().map(|remains| remains.operations.len()).sum();
        if let Some(realm) = self.realms.get_mut(name) {
            realm.unfreed = of_pools + others.len() > room;
        }
        for mut remains in pools {
            remains.operations.truncate(room);
            room -= remains.operations.len();
            self.ask_for_return(remains, turn);
        }
        for operation in others.into_iter().take(room) {
            self.send(Purpose::Freed(name.clone()), operation, turn);
        }
    }

    /// The notes of pools of each reclaimed node.
    fn notes_of_pools(&self, realm: &Name, state: &RealmState) -> Vec<Remains> {
        let ended = self.others.ended.values();
        let remains = ended.map(|ended| Remains {
            node: ended.node.clone(),
            realm: realm.clone(),
            operations: ended.drop_pools(realm, state),
        });
        remains.collect()
    }

    /// The operations that delete the other keys. A node without blocks is forgotten, so its notes come first.
    fn frees(&self, realm: &Name, state: &RealmState) -> Vec<Operation> {
        let mut operations = vec![];
        for ended in self.others.ended.values() {
            operations.extend(ended.end_conflicts(realm, state));
        }
        for ended in self.others.ended.values() {
            let blocks = ended.blocks(state);
            operations.extend(blocks.map(|(found, claimed)| release(realm, found, claimed)));
        }
        operations
    }

    /// Reads the record of a node before the notes of its pools are deleted: it may have registered again since
    /// its record was read.
    fn ask_for_return(&mut self, remains: Remains, turn: &mut Turn<'_>) {
        if !remains.operations.is_empty() {
            let node = remains.node.clone();
            self.send(Purpose::Return(remains), Operation::ReadNode { node }, turn);
        }
    }

    /// The outcome of reading that record.
    pub(super) fn after_asking_for_return(
        &mut self,
        remains: Remains,
        result: Result,
        turn: &mut Turn<'_>,
    ) {
        let Remains { node, realm, operations } = remains;
        if let Result::Done(_, Answer::Node(state)) = &result {
            let standing = state.record.as_ref().map(|record| record.value.standing);
            if standing == Some(Standing::Fenced) {
                for operation in operations {
                    self.send(Purpose::Freed(realm.clone()), operation, turn);
                }
            } else if let Some(ended) = self.others.ended.get_mut(&node) {
                ended.is_back = true;
            }
        }
        self.after_freeing(&realm, result, turn);
    }

    /// Whether keys of ended incarnations are being deleted in a realm.
    fn is_freeing(&self, realm: &Name) -> bool {
        self.flights.values().any(|flight| match &flight.purpose {
            Purpose::Freed(of) | Purpose::Return(Remains { realm: of, .. }) => of == realm,
            _ => false, // the other purposes delete no key of another node
        })
    }

    /// After the last of the keys that were deleted at once, the realm is listed for the next ones.
    pub(super) fn after_freeing(&mut self, name: &Name, result: Result, turn: &mut Turn<'_>) {
        if matches!(result, Result::Undone | Result::Unknown) {
            return self.recheck_later(name, turn);
        }
        let is_freeing = self.is_freeing(name);
        let Some(realm) = self.realms.get_mut(name).filter(|_| !is_freeing) else { return };
        if std::mem::take(&mut realm.unfreed) {
            realm.recheck = Some(turn.now);
        }
    }
}
