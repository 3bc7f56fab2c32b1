//! The reclaim of a node that is gone, as a state machine without clock and store.
//!
//! It marks the node's record. A living daemon writes its next beat over the mark, and the reclaim
//! ends. A record that did not move for 100 s is ended, which is the fence: no beat of the old uid
//! succeeds any more. What was listed after the fence, and before the record was read again, is of uids
//! that have ended, and is deleted as it was listed. The record goes last, so a reclaim that was
//! interrupted is run again, and two at once do the same.

use std::time::Duration;

use super::super::name::Name;
use super::super::store::{
    Answer, Key, NodeRecord, Operation, Outcome, Record, Selection, Stored, Token, Value,
};
use crate::sys::clock::Moment;

/// How long a marked record must not move: three beats and the timeouts of a fourth.
pub const UNMOVED: Duration = Duration::from_secs(100);
/// The pause after an operation whose outcome is unknown, or that did not reach the store.
const PAUSE: Duration = Duration::from_secs(2);

/// What is due.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // one exists at a time
pub enum Step {
    /// This operation; then [`Reclaim::answered`].
    Ask(Operation),
    /// Nothing before this moment.
    Wait(Moment),
    /// Nothing any more.
    Done(End),
}

/// How a reclaim ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The node has nothing any more.
    Freed,
    /// The node has no record; that many claims and notes have its name.
    NoRecord(usize),
    /// A daemon beats in the node's name: nothing was freed.
    Lives,
    /// A daemon registered in the node's name after the fence. It takes over what is left.
    IsBack,
    /// The node allocates after a boot before it reaches the store, and it is not said to be destroyed.
    NotDestroyed,
    /// The store refused; the reason.
    Refused(String),
}

/// The operation that is due.
#[derive(Clone, Debug)]
enum Stage {
    /// Read the record, and decide.
    Look,
    /// Write the mark over the record.
    Mark(Stored, NodeRecord),
    /// End the record.
    Fence(Stored, NodeRecord),
    /// List what has the node's name. The record that is ended, if there is one.
    List(Option<Stored>),
    /// Read the want.
    Want(Stored, Vec<Stored>),
    /// Read the record again.
    Verify(Stored, Vec<Stored>),
    /// Delete the last of these, and at last the record, which is the first.
    Delete(Vec<Stored>),
    /// Nothing.
    Done(End),
}

/// A reclaim.
#[derive(Clone, Debug)]
pub struct Reclaim {
    node: Name,
    mark: Token,
    is_destroyed: bool,
    stage: Stage,
    /// The marked record, and when it has not moved for long enough.
    watched: Option<(Stored, Moment)>,
    is_fenced: bool,
    not_before: Moment,
    freed: Vec<Stored>,
}

impl Reclaim {
    /// Begins the reclaim of a node with a fresh token. A record of a node that allocates after a boot
    /// before it reaches the store is reclaimed only if the machine is destroyed.
    pub fn new(node: Name, mark: Token, is_destroyed: bool) -> Reclaim {
        Reclaim {
            node,
            mark,
            is_destroyed,
            stage: Stage::Look,
            watched: None,
            is_fenced: false,
            not_before: Moment::ZERO,
            freed: vec![],
        }
    }

    /// The claims that were deleted.
    pub fn freed(&self) -> &[Stored] {
        &self.freed
    }

    /// How many records are still to be deleted; None before the fence.
    pub fn remaining(&self) -> Option<usize> {
        match &self.stage {
            Stage::Delete(records) => Some(records.len()),
            _ => None,
        }
    }

    /// What is due now.
    pub fn next(&self, now: Moment) -> Step {
        if let Stage::Done(end) = &self.stage {
            return Step::Done(end.clone());
        }
        if now < self.not_before {
            return Step::Wait(self.not_before);
        }
        let key = Key::Node(self.node.clone());
        let write = |record: NodeRecord, seen: &Stored| {
            Operation::Update(Record { key: key.clone(), value: Value::Node(record) }, seen.clone())
        };
        Step::Ask(match &self.stage {
            Stage::Mark(seen, record) => {
                write(NodeRecord { mark: Some(self.mark), ..record.clone() }, seen)
            }
            Stage::Fence(seen, record) => write(NodeRecord { ended: true, ..record.clone() }, seen),
            Stage::List(_) => Operation::List(Selection::Node(self.node.clone())),
            Stage::Want(..) => Operation::Get(Key::Want(self.node.clone())),
            Stage::Delete(records) if !records.is_empty() => {
                Operation::Delete(records[records.len() - 1].clone())
            }
            Stage::Look | Stage::Verify(..) | Stage::Delete(_) | Stage::Done(_) => {
                Operation::Get(key)
            }
        })
    }

    /// The outcome of the operation.
    pub fn answered(&mut self, outcome: Outcome<Answer>, now: Moment) {
        let stage = std::mem::replace(&mut self.stage, Stage::Look);
        self.stage = match (stage, outcome) {
            (_, Outcome::Refused(reason) | Outcome::Unauthenticated(reason)) => {
                Stage::Done(End::Refused(reason))
            }
            (stage, Outcome::Busy(wait)) => {
                self.not_before = now + wait;
                stage
            }
            // Whether the mark or the fence was written, the record tells.
            (stage, Outcome::Unknown(_) | Outcome::Unreachable(_)) => {
                self.not_before = now + PAUSE;
                match stage {
                    Stage::Mark(..) | Stage::Fence(..) => Stage::Look,
                    other => other,
                }
            }
            (Stage::Look, Outcome::Done(Answer::Found(found))) => self.look(found, now),
            (Stage::Mark(..), Outcome::Done(Answer::Written(marked))) => self.watch(marked, now),
            (Stage::Fence(..), Outcome::Done(Answer::Written(fence))) => self.free(fence),
            (Stage::List(None), Outcome::Done(Answer::Listed(listed))) => {
                let is_done = listed.is_empty() && self.is_fenced; // perhaps by another reclaim
                Stage::Done(if is_done { End::Freed } else { End::NoRecord(listed.len()) })
            }
            (Stage::List(Some(fence)), Outcome::Done(Answer::Listed(listed))) => {
                Stage::Want(fence, listed)
            }
            (Stage::Want(fence, mut listed), Outcome::Done(Answer::Found(want))) => {
                listed.extend(want);
                Stage::Verify(fence, listed)
            }
            (Stage::Verify(fence, mut listed), Outcome::Done(Answer::Found(found))) => {
                if found.as_ref() == Some(&fence) {
                    listed.insert(0, fence);
                    Stage::Delete(listed)
                } else {
                    self.look(found, now)
                }
            }
            (Stage::Delete(records), outcome) => self.deleted(records, outcome),
            // The record moved, or was read in between.
            _ => Stage::Look,
        };
    }

    /// What is due with this record.
    fn look(&mut self, found: Option<Stored>, now: Moment) -> Stage {
        let Some(found) = found else { return Stage::List(None) };
        let Value::Node(record) = found.record.value.clone() else {
            return Stage::Done(End::Refused("the node's record cannot be read".to_owned()));
        };
        if record.ended {
            return self.free(found);
        }
        if self.is_fenced {
            return Stage::Done(End::IsBack);
        }
        if record.trusts_reboot && !self.is_destroyed {
            return Stage::Done(End::NotDestroyed);
        }
        let Some((watched, until)) = &self.watched else {
            // The mark of another reclaim serves this one.
            return match record.mark {
                Some(_) => self.watch(found, now),
                None => Stage::Mark(found, record),
            };
        };
        if *watched == found {
            self.not_before = *until;
            return if now < *until { Stage::Look } else { Stage::Fence(found, record) };
        }
        match &watched.record.value {
            // Another reclaim has marked the same beat.
            Value::Node(before) if record.mark.is_some() && before.nonce == record.nonce => {
                self.watch(found, now)
            }
            _ => Stage::Done(End::Lives),
        }
    }

    fn watch(&mut self, marked: Stored, now: Moment) -> Stage {
        self.not_before = now + UNMOVED;
        self.watched = Some((marked, self.not_before));
        Stage::Look
    }

    fn free(&mut self, fence: Stored) -> Stage {
        self.is_fenced = true;
        Stage::List(Some(fence))
    }

    /// A record was deleted, or is no longer as it was listed.
    fn deleted(&mut self, mut records: Vec<Stored>, outcome: Outcome<Answer>) -> Stage {
        let record = records.pop();
        let is_done = outcome == Outcome::Done(Answer::Deleted);
        match record.filter(|_| is_done) {
            Some(claim) if matches!(claim.record.value, Value::Claim(_)) => self.freed.push(claim),
            _ => (),
        }
        match records.is_empty() {
            false => Stage::Delete(records),
            true if is_done => Stage::Done(End::Freed),
            true => Stage::Look,
        }
    }
}

