//! Outcomes of operations: what each means for the contact, and who waits for it.

use super::super::engine::{Answer, Name, NodeState, OperationId, Outcome, Revision};
use super::contact::Contact;
use super::interface::{Line, Turn};
use super::purpose::{Purpose, Result};
use super::realm::Listed;
use super::{Flight, Machine};
use crate::sys::clock::Moment;

impl Machine {
    pub(super) fn on_outcome(&mut self, id: OperationId, outcome: Outcome, turn: &mut Turn<'_>) {
        let Some(Flight { purpose, floor }) = self.flights.remove(&id) else { return };
        let result = self.judge(outcome, floor, turn);
        match purpose {
            Purpose::Meet => self.after_meeting(result, turn),
            Purpose::Register => self.after_registering(result, turn),
            Purpose::Heartbeat(sent) => self.after_heartbeat(sent, result, turn),
            Purpose::Look => self.after_looking(result, turn),
            Purpose::Ward(node, sent) => self.after_looking_at(&node, sent, result, turn),
            Purpose::Fence(node, incarnation) => {
                self.after_fencing(&node, incarnation, result, turn)
            }
            Purpose::List(realm, sent) => self.after_listing(&realm, sent, result, turn),
            Purpose::Watch(realm) => self.after_watching(&realm, turn),
            Purpose::Holder(request) => self.after_asking_for_holder(request, result, turn),
            Purpose::Block(at) => self.on_block(&at, result, turn),
            Purpose::Split(network, block) => self.on_split(&network, block, result),
            Purpose::Want(realm) => self.after_wanting(&realm, result),
            Purpose::Note(at, is_noted) => self.after_noting(&at, is_noted, result),
            Purpose::Pool => (),
            Purpose::Freed(realm) => self.after_freeing(&realm, result, turn),
            Purpose::Return(remains) => self.after_asking_for_return(remains, result, turn),
            Purpose::Orphan(realm) => self.after_orphan(&realm, result, turn),
        }
    }

    /// What an outcome means for the contact.
    fn judge(&mut self, outcome: Outcome, floor: Revision, turn: &mut Turn<'_>) -> Result {
        match outcome {
            Outcome::Done { revision, answer } => {
                self.relation.hear(turn.now, revision, floor);
                if answer == Answer::Written {
                    self.relation.refused = None;
                }
                Result::Done(revision, answer)
            }
            Outcome::Lost { revision, rival } => {
                self.relation.hear(turn.now, revision, floor);
                Result::Lost(revision, *rival)
            }
            Outcome::Refused { reason } => {
                let before = self.relation.refused.replace(reason.clone());
                if before.as_ref() != Some(&reason) {
                    turn.log(Line::Refused(reason)); // once, however often it is tried again
                }
                Result::Undone
            }
            Outcome::Unreachable { reason } | Outcome::Unauthenticated { reason } => {
                self.lose_contact(&reason, turn);
                Result::Undone
            }
            Outcome::Unknown { reason } => {
                self.lose_contact(&reason, turn);
                Result::Unknown
            }
            Outcome::Compacted { .. } => Result::Undone,
        }
    }

    fn after_meeting(&mut self, result: Result, turn: &mut Turn<'_>) {
        match result {
            Result::Done(_, Answer::Node(state)) => self.on_met(state, turn),
            other => self.give_up_meeting(&other, turn),
        }
    }

    fn after_registering(&mut self, result: Result, turn: &mut Turn<'_>) {
        match result {
            Result::Done(revision, _) => self.on_registered(revision, turn),
            // Another wrote the record, or this node did: it is read again.
            other => self.give_up_meeting(&other, turn),
        }
    }

    /// A refused question must not be repeated at once.
    fn give_up_meeting(&mut self, result: &Result, turn: &mut Turn<'_>) {
        if self.relation.contact == Contact::Meeting {
            let reason = self.refusal(result, "the node's record was not read or written");
            self.lose_contact(&reason, turn);
        }
    }

    /// Why an operation failed: the store's reason for a refusal, or else `otherwise`.
    fn refusal(&self, result: &Result, otherwise: &str) -> String {
        let refused = self.relation.refused.as_ref().filter(|_| matches!(result, Result::Undone));
        refused.cloned().unwrap_or_else(|| otherwise.to_owned())
    }

    fn after_heartbeat(&mut self, sent: Moment, result: Result, turn: &mut Turn<'_>) {
        match result {
            Result::Done(_, Answer::Lease(lease)) => {
                self.relation.lease = Some(lease);
                self.relation.alive = self.relation.alive.max(Some(sent));
            }
            Result::Lost(..) => self.on_heartbeat_lost(turn),
            Result::Done(..) | Result::Undone | Result::Unknown => (), // the next one is due in time
        }
    }

    fn after_looking(&mut self, result: Result, turn: &mut Turn<'_>) {
        if let Result::Done(_, Answer::Node(state)) = result {
            self.on_looked(&state, turn);
        }
    }

    fn after_listing(&mut self, realm: &Name, sent: u64, result: Result, turn: &mut Turn<'_>) {
        let is_last = self.realms.get(realm).is_some_and(|realm| realm.asked == Some(sent));
        if !is_last {
            return; // it was asked for again, after a new contact
        }
        self.realms.entry(realm.clone()).or_default().asked = None;
        match result {
            Result::Done(revision, Answer::Realm(state)) => {
                self.on_listed(realm, Listed { state, revision, sent }, turn);
            }
            // Verification does not go on without it.
            other if matches!(self.relation.contact, Contact::Verifying(_)) => {
                let reason = self.refusal(&other, "the realm was not listed");
                self.lose_contact(&reason, turn);
            }
            _ => self.recheck_later(realm, turn),
        }
    }

    /// A watch has ended, or could not begin: the realm is listed and watched again.
    fn after_watching(&mut self, realm: &Name, turn: &mut Turn<'_>) {
        self.realms.entry(realm.clone()).or_default().watched = false;
        self.recheck_later(realm, turn);
    }

    /// An orphan that may still be there is found again by a list.
    fn after_orphan(&mut self, realm: &Name, result: Result, turn: &mut Turn<'_>) {
        if matches!(result, Result::Undone | Result::Unknown) {
            self.recheck_later(realm, turn);
        }
    }

    /// The realm is listed again, once the contact allows it.
    pub(super) fn recheck_later(&mut self, realm: &Name, turn: &mut Turn<'_>) {
        let recheck = turn.after(std::time::Duration::from_secs(2));
        self.realms.entry(realm.clone()).or_default().recheck = Some(recheck);
    }

    /// A write compared other than the ground that this node stands on: it is met again.
    pub(super) fn is_other_ground(&self, node: &NodeState) -> bool {
        let revision = node.record.as_ref().map_or(0, |record| record.revision);
        revision != self.relation.node_revision || node.epoch != self.relation.epoch
    }
}
