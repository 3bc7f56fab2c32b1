//! The contact to the store: lost, met again, kept.
//!
//! Held blocks stay in use while the store is away. Each contact begins with the node's own record
//! and the epoch; what the store may have lost is verified before anything else ([`verify`]).
//!
//! [`verify`]: super::verify

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::engine::{
    Epoch, LeaseId, Name, NodeRecord, NodeState, Operation, Revision, Standing, Versioned,
};
use super::Machine;
use super::interface::{Line, NodeFile, Turn};
use super::purpose::Purpose;
use crate::sys::clock::Moment;

/// How long a node's heartbeat lasts, in seconds.
pub const ALIVE: u32 = 60;
/// As a duration.
const LONG_GAP: Duration = Duration::from_secs(ALIVE as u64);
/// The pause between heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(20);
/// The first wait after the contact was lost; it doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The wait before a fenced or refused node looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How many different reasons are logged until the next contact.
const MOST_TOLD: usize = 8;

/// The contact to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// It is away: the next try is at `retry`.
    Away {
        /// When it is tried again.
        retry: Moment,
        /// Why.
        reason: String,
    },
    /// The node's record was asked for, or is being written.
    Meeting,
    /// The node was reclaimed, and old blocks with leases are left.
    Fenced {
        /// When the record is read again.
        retry: Moment,
    },
    /// Another machine has the node's name.
    NameTaken {
        /// When the record is read again.
        retry: Moment,
    },
    /// Blocks are compared with the store: these realms are being listed.
    Verifying(BTreeSet<Name>),
    /// All is well.
    Together,
}

/// What is known of the store, and when it was heard from.
#[derive(Clone, Debug)]
pub struct Relation {
    /// The contact.
    pub contact: Contact,
    /// The next wait after a lost contact.
    wait: Duration,
    /// When the store last answered.
    heard: Moment,
    /// Blocks were verified since the start.
    verified: bool,
    /// The store was restored and blocks have not been verified since.
    pub suspect: bool,
    /// Revisions went back since the last contact began.
    pub went_back: bool,
    /// The highest revision seen.
    pub highest: Revision,
    /// The revision of the node's record.
    pub node_revision: Revision,
    /// The epoch of the contact.
    pub epoch: Epoch,
    /// Claims before this moment settle.
    pub settle_until: Moment,
    /// The lease of the heartbeat.
    pub lease: Option<LeaseId>,
    /// When the next heartbeat is due.
    heartbeat: Moment,
    /// When the last heartbeat was sent that the store has accepted.
    pub alive: Option<Moment>,
    /// Whether it was logged that plugins no longer allocate.
    pub is_stopped: bool,
    /// Why the store refuses writes, such as for lack of space, since the last one that was done.
    pub refused: Option<String>,
    /// The reasons for the lost contact that were logged since the last contact.
    told: Vec<String>,
}

impl Relation {
    /// Nothing is known yet; the store is to be met now.
    pub fn new(now: Moment) -> Relation {
        let reason = "not asked yet".to_owned();
        Relation {
            contact: Contact::Away { retry: now, reason },
            wait: FIRST_WAIT,
            heard: now,
            verified: false,
            suspect: false,
            went_back: false,
            highest: 0,
            node_revision: 0,
            epoch: 0,
            settle_until: Duration::ZERO,
            lease: None,
            heartbeat: now,
            alive: None,
            is_stopped: false,
            refused: None,
            told: vec![],
        }
    }

    /// When the next try or heartbeat is due.
    pub fn deadline(&self) -> Moment {
        match self.contact {
            Contact::Away { retry, .. }
            | Contact::Fenced { retry }
            | Contact::NameTaken { retry } => retry,
            Contact::Meeting | Contact::Verifying(_) | Contact::Together => self.heartbeat,
        }
    }

    /// The store answered at a revision. One below `floor`, which was known before the question, is of
    /// a store that was restored.
    pub fn hear(&mut self, now: Moment, revision: Revision, floor: Revision) -> bool {
        let is_restored = revision < floor;
        self.highest = if is_restored { revision } else { self.highest.max(revision) };
        self.went_back |= is_restored;
        // In a gap as long as the key `alive` lasts, the node may have been reclaimed.
        self.suspect |= is_restored || now.saturating_sub(self.heard) > LONG_GAP;
        self.heard = now;
        self.wait = FIRST_WAIT;
        is_restored
    }

    /// Whether blocks may be claimed, changed and released: all but new claims.
    pub fn may_act(&self) -> bool {
        matches!(self.contact, Contact::Verifying(_) | Contact::Together)
    }
}

impl Machine {
    /// Does what the contact needs by now.
    pub(super) fn keep_contact(&mut self, turn: &mut Turn<'_>) {
        let is_due = turn.now >= self.relation.deadline();
        match self.relation.contact {
            Contact::Away { .. } | Contact::Fenced { .. } | Contact::NameTaken { .. } if is_due => {
                self.meet(turn);
            }
            Contact::Together if self.relation.suspect => self.meet(turn),
            Contact::Verifying(_) if self.relation.went_back => self.meet(turn),
            Contact::Together | Contact::Verifying(_) if is_due => self.send_heartbeat(turn),
            _ => (), // it waits for an outcome, or for its time
        }
    }

    /// Asks for the node's own record.
    pub(super) fn meet(&mut self, turn: &mut Turn<'_>) {
        self.relation.contact = Contact::Meeting;
        let node = self.setup.node.clone();
        self.send(Purpose::Meet, Operation::ReadNode { node }, turn);
    }

    /// The store does not answer.
    pub(super) fn lose_contact(&mut self, reason: &str, turn: &mut Turn<'_>) {
        if let Contact::Away { .. } = self.relation.contact {
            return;
        }
        self.tell(Line::ContactLost(reason.to_owned()), reason, turn);
        let retry = turn.after(self.relation.wait);
        self.relation.wait = (self.relation.wait * 2).min(LONGEST_WAIT);
        self.relation.contact = Contact::Away { retry, reason: reason.to_owned() };
    }

    /// Logs why there is no contact, each reason once: every attempt fails with the same one, to which later
    /// attempts may append the time of the next attempt.
    pub(super) fn tell(&mut self, line: Line, reason: &str, turn: &mut Turn<'_>) {
        let told = &mut self.relation.told;
        if told.len() < MOST_TOLD && !told.iter().any(|before| reason.starts_with(before)) {
            told.push(reason.to_owned());
            turn.log(line);
        }
    }

    fn send_heartbeat(&mut self, turn: &mut Turn<'_>) {
        self.relation.heartbeat = turn.after(HEARTBEAT);
        let node = self.setup.node.clone();
        let heartbeat = Operation::Heartbeat {
            node: node.clone(),
            boot: self.setup.boot.clone(),
            lease: self.relation.lease,
            ttl: ALIVE,
            node_revision: self.relation.node_revision,
        };
        self.send(Purpose::Heartbeat(turn.now), heartbeat, turn);
        self.send(Purpose::Look, Operation::ReadNode { node }, turn);
        self.look_at_others(turn);
    }

    /// The node's keys were read for a contact.
    pub(super) fn on_met(&mut self, state: NodeState, turn: &mut Turn<'_>) {
        if self.relation.contact != Contact::Meeting {
            return; // the contact was lost meanwhile
        }
        if self.is_writing_node_file() {
            return self.lose_contact("the node's file is being written", turn);
        }
        self.relation.suspect |= !self.relation.verified;
        self.relation.epoch = state.epoch;
        match state.record {
            None => self.register(0, turn),
            Some(record) => self.on_record(record, turn),
        }
    }

    fn on_record(&mut self, record: Versioned<NodeRecord>, turn: &mut Turn<'_>) {
        let Versioned { value, revision } = record;
        let is_own = value.uid == self.setup.uid;
        match value.standing {
            Standing::Fenced => self.on_fenced(value.incarnation, revision, turn),
            Standing::Live if !is_own => self.on_name_taken(turn),
            Standing::Live if value.incarnation > self.file.incarnation => {
                self.on_fenced(value.incarnation, revision, turn);
            }
            // The store was restored to before this incarnation registered.
            Standing::Live if value.incarnation < self.file.incarnation => {
                self.register(revision, turn)
            }
            Standing::Live if value.reclaim_after != self.promise() => {
                self.register(revision, turn)
            }
            Standing::Live => {
                self.relation.node_revision = revision;
                self.on_live(turn);
            }
        }
    }

    fn on_name_taken(&mut self, turn: &mut Turn<'_>) {
        self.tell(Line::NameTaken, "name taken", turn);
        self.lose_blocks_before(u64::MAX, turn);
        self.relation.contact = Contact::NameTaken { retry: turn.after(LOOK_AGAIN) };
    }

    /// Writes the node's record over the one of revision `seen`.
    pub(super) fn register(&mut self, seen: Revision, turn: &mut Turn<'_>) {
        if !self.keeps_promise() {
            return self.lose_contact(&self.unkept(), turn);
        }
        let record = NodeRecord {
            uid: self.setup.uid,
            incarnation: self.file.incarnation,
            standing: Standing::Live,
            version: self.setup.version.clone(),
            reclaim_after: self.promise(),
        };
        let node = self.setup.node.clone();
        self.send(Purpose::Register, Operation::Register { node, record, seen }, turn);
    }

    /// The node's record was written.
    pub(super) fn on_registered(&mut self, revision: Revision, turn: &mut Turn<'_>) {
        turn.log(Line::Registered(self.file.incarnation));
        self.relation.node_revision = revision;
        if self.relation.contact == Contact::Meeting {
            self.on_live(turn);
        }
    }

    /// The node is registered: it verifies its blocks if the store may have lost them, and goes on.
    fn on_live(&mut self, turn: &mut Turn<'_>) {
        self.relation.told.clear();
        self.relation.refused = None;
        let went_back = std::mem::take(&mut self.relation.went_back);
        let is_new_epoch = self.file.epoch != Some(self.relation.epoch);
        // A store that was never restored has no epoch, so a new node need not wait.
        let is_first_contact = self.file.epoch.is_none() && self.relation.epoch == 0;
        if (is_new_epoch && !is_first_contact) || went_back {
            self.relation.settle_until = turn.now + self.setup.settle;
            turn.log(Line::Restored);
        }
        if self.relation.suspect || is_new_epoch {
            self.verify(turn);
        } else {
            self.relation.contact = Contact::Together;
        }
        self.send_heartbeat(turn);
    }

    /// All blocks are verified.
    pub(super) fn on_verified(&mut self, turn: &mut Turn<'_>) {
        self.relation.suspect = false;
        self.relation.verified = true;
        let file = NodeFile { epoch: Some(self.relation.epoch), ..self.file };
        if file != self.file {
            if !self.is_writing_node_file() {
                self.write_node_file(file, turn);
            }
            return; // it goes on once the epoch is on the disk
        }
        self.relation.contact = Contact::Together;
        turn.log(Line::Contact);
    }

    /// The node's keys were read beside a heartbeat.
    pub(super) fn on_looked(&mut self, state: &NodeState, turn: &mut Turn<'_>) {
        let revision = state.record.as_ref().map_or(0, |record| record.revision);
        let is_same = revision == self.relation.node_revision && state.epoch == self.relation.epoch;
        if self.relation.may_act() && !is_same {
            self.meet(turn);
        }
    }

    /// The lease of the heartbeat has expired, or the store has refused it.
    pub(super) fn on_heartbeat_lost(&mut self, turn: &mut Turn<'_>) {
        self.relation.lease = None;
        if self.relation.may_act() {
            self.meet(turn);
        }
    }
}
