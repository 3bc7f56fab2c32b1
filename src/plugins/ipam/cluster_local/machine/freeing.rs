//! The keys that reclaimed nodes have left: with `reclaimAfter` each daemon deletes them in its own realms.
//!
//! The client executes operations one after the other, and heartbeats and claims wait behind these. So a
//! daemon deletes at most `MOST` keys of a realm at once, and lists the realm again for the next ones.

use super::super::ended::{Ended, release};
use super::super::engine::{Name, NodeRecord, Operation, RealmState, Standing};
use super::Machine;
use super::contact::Contact;
use super::interface::Turn;
use super::purpose::{Purpose, Result};

/// How many keys of reclaimed nodes a daemon deletes at once in a realm.
pub(super) const MOST: usize = 64;

impl Machine {
    /// Frees the blocks that an earlier reclaim has left.
    pub(super) fn free_if_over(&mut self, node: &Name, record: &NodeRecord) {
        let incarnation = record.incarnation;
        if self.others.lowest(node).is_some_and(|lowest| lowest < incarnation) {
            let is_back = record.standing == Standing::Live;
            self.free(Ended { node: node.clone(), incarnation, is_back });
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
        let operations = self.frees(name, state);
        let room = if self.is_freeing(name) { 0 } else { MOST };
        if let Some(realm) = self.realms.get_mut(name) {
            realm.unfreed = operations.len() > room;
        }
        for operation in operations.into_iter().take(room) {
            self.send(Purpose::Freed(name.clone()), operation, turn);
        }
    }

    /// The operations that delete the keys. A node without blocks is forgotten, so its notes come first.
    fn frees(&self, realm: &Name, state: &RealmState) -> Vec<Operation> {
        let mut operations = vec![];
        for ended in self.others.ended.values() {
            operations.extend(ended.drop_notes(realm, state));
        }
        for ended in self.others.ended.values() {
            let blocks = ended.blocks(state);
            operations.extend(blocks.map(|(found, claimed)| release(realm, found, claimed)));
        }
        operations
    }

    /// Whether keys of ended incarnations are being deleted in a realm.
    fn is_freeing(&self, realm: &Name) -> bool {
        let is_of = |purpose: &Purpose| matches!(purpose, Purpose::Freed(of) if of == realm);
        self.flights.values().any(|flight| is_of(&flight.purpose))
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
