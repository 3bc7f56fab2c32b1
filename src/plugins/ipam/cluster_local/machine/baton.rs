//! The node's record: which node this is, and its beats. Each beat writes over the one before, so an
//! accepted one proves that no copy of the machine beats in this name, and that it was not reclaimed.

use std::time::Duration;

use super::super::held::State;
use super::super::store::{
    Answer, Key, NodeRecord, Operation, Outcome, Record, Selection, Stored, Token, Value,
};
use super::network::{Known, Note, Tracked};
use super::{Allocation, Line, Machine, Mark, NodeFile, Purpose, Standing, Step, Turn};
use crate::sys::clock::Moment;

/// The time from one beat to the next.
pub const BEAT: Duration = Duration::from_secs(30);
/// After this time of failures the store may have gone back.
pub const DOUBT: Duration = Duration::from_secs(10);
/// How many nonces of beats without an answer are remembered.
const MOST_NONCES: usize = 64;

/// Where the node is on its way to its record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The files are looked at.
    #[default]
    Start,
    /// The store's id is read.
    Meta,
    /// The record is read.
    Record,
    /// The record is written over this one.
    Register(Option<Stored>),
    /// The node's claims are listed.
    List,
    /// The node claims.
    Run,
    /// The node may not claim; it looks again.
    Refused,
    /// The node does not claim or beat until a reboot.
    Withdrawn(Standing),
}

/// The record, and what was sent since.
#[derive(Clone, Debug, Default)]
pub struct Baton {
    /// The phase.
    pub phase: Phase,
    /// The session; None before the first write that carries it.
    pub session: Option<Token>,
    /// The record that the next beat writes over.
    pub(super) record: Option<(Stored, NodeRecord)>,
    /// The beats without an answer: nonce, and the order in which it was sent.
    sent: Vec<(Token, u64)>,
    /// The nonces of earlier beats that had no answer.
    pub(super) old: Vec<Token>,
    /// A beat of this session was accepted.
    pub(super) is_accepted: bool,
    /// The sessions before the accepted one are to be dropped.
    drops_sessions: bool,
    /// The order of the last accepted beat.
    pub confirmed: u64,
    last_beat: Moment,
    /// The order of the last list of the node's claims.
    pub listed: u64,
    /// When it was.
    pub last_list: Moment,
    /// The claims are to be listed.
    pub needs_list: bool,
    /// The store's id as read.
    pub(super) meta: Option<Option<Token>>,
    /// The store's id was read since the last beat.
    pub(super) has_meta: bool,
    /// The record as read.
    found: Option<Option<Stored>>,
    /// Everything is to be verified.
    doubts: bool,
    /// What is claimed before settles.
    pub settle_until: Moment,
    /// The record of an unknown session, and since when it has not moved.
    pub(super) unmoved: Option<(Stored, Moment)>,
    /// The claims that the next list has are taken over.
    pub takes_over: bool,
    /// Why the node may not claim, and no look at its record before.
    pub refused: Option<(Standing, Moment)>,
}

pub(super) fn node_record(stored: &Stored) -> Option<&NodeRecord> {
    match &stored.record.value {
        Value::Node(record) => Some(record),
        _ => None,
    }
}

impl Machine {
    fn key_of_node(&self) -> Key {
        Key::Node(self.setup.node.clone())
    }

    /// Everything that is known of the store may be wrong: it is read again, and what is claimed again
    /// settles.
    pub(super) fn doubt(&mut self, why: &'static str) {
        if !self.baton.doubts {
            self.lines.push_back(Line::Doubt(why));
        }
        self.baton.doubts = true;
        self.baton.settle_until = self.now + self.setup.settle;
        for tracked in self.blocks_mut() {
            (tracked.note, tracked.settles) = (Note::None, None);
        }
    }

    /// Forgets what was read.
    pub(super) fn forget_all(&mut self) {
        self.divisions.clear();
        self.orphans.clear();
        self.blocks_mut().for_each(Tracked::forget_key);
        self.baton.doubts = false;
    }

    /// Does what is due.
    pub(super) fn pursue(&mut self, turn: &mut Turn<'_>) -> Step {
        let is_verifying =
            matches!(self.baton.phase, Phase::Record | Phase::Register(_) | Phase::List);
        if is_verifying && self.baton.phase != Phase::Record || self.baton.phase == Phase::Run {
            self.baton.refused = None;
        }
        if self.baton.doubts && (is_verifying || self.baton.phase == Phase::Run) {
            self.baton.settle_until = self.now + self.setup.settle;
            self.forget_all();
            (self.baton.meta, self.baton.found) = (None, None);
            self.baton.phase = Phase::Meta;
            return Step::Again;
        }
        match self.baton.phase.clone() {
            Phase::Start => self.begin(turn),
            Phase::Meta => self.read_meta(turn),
            Phase::Record => match self.baton.found.take() {
                None => self.get(Purpose::ReadRecord, self.key_of_node()),
                Some(found) => self.judge(found, turn),
            },
            Phase::Register(seen) => self.register(seen, turn),
            Phase::List => self.list(Purpose::ListOwn, Selection::Node(self.setup.node.clone())),
            Phase::Run => self.run(turn),
            Phase::Refused => self.look_again(),
            Phase::Withdrawn(standing) => self.withdraw(&standing),
        }
    }

    /// Looks again after a while whether the node may claim. Blocks stay in use only beside another store.
    fn look_again(&mut self) -> Step {
        let Some((standing, due)) = self.baton.refused.clone() else { return Step::Rest };
        let is_other_store = standing == Standing::OtherStore;
        if !self.is_denied() && !is_other_store {
            return self.confirm(Allocation::Refused);
        }
        if due > self.now {
            self.by(due);
            return Step::Rest;
        }
        (self.baton.meta, self.baton.found) = (None, None);
        self.baton.phase = if is_other_store { Phase::Meta } else { Phase::Record };
        Step::Again
    }

    pub(super) fn order_of(&self, nonce: Token) -> Option<u64> {
        self.baton.sent.iter().find(|(sent, _)| *sent == nonce).map(|(_, order)| *order)
    }

    /// The store has this record, which was sent in this order.
    pub(super) fn accept(&mut self, stored: Stored, order: u64) {
        let Some(record) = node_record(&stored).cloned() else { return };
        let baton = &mut self.baton;
        baton.old.extend(baton.sent.drain(..).map(|(nonce, _)| nonce));
        let excess = baton.old.len().saturating_sub(MOST_NONCES);
        baton.old.drain(..excess);
        baton.record = Some((stored, record));
        baton.confirmed = baton.confirmed.max(order);
        baton.last_beat = self.now;
        (baton.is_accepted, baton.drops_sessions) = (true, true);
    }

    /// Begins a session: a batch of claims has one of its own.
    pub(super) fn begin_session(&mut self, turn: &mut Turn<'_>) {
        self.baton.session = Some(turn.token());
    }

    /// Writes the session to the disk, if it is not there.
    pub(super) fn write_session(&mut self, turn: &mut Turn<'_>) -> Option<Step> {
        let session = *self.baton.session.get_or_insert_with(|| turn.token());
        let file = self.file.clone()?;
        if file.sessions.contains(&session) {
            return None;
        }
        let mut sessions = file.sessions;
        sessions.push(session);
        Some(self.write_node(NodeFile { sessions, ..file }, None))
    }

    /// The record of the next beat.
    fn next_record(&mut self, number: u64, turn: &mut Turn<'_>) -> Option<NodeRecord> {
        let file = self.file.as_ref()?;
        Some(NodeRecord {
            uid: file.uid,
            machine: self.setup.machine,
            boot: self.setup.boot.clone(),
            session: self.baton.session?,
            number,
            nonce: turn.token(),
            version: self.setup.version.clone(),
            trusts_reboot: self.setup.trusts_reboot,
            mark: None,
            ended: false,
        })
    }

    fn register(&mut self, seen: Option<Stored>, turn: &mut Turn<'_>) -> Step {
        if let Some(step) = self.write_session(turn) {
            return step;
        }
        let before = self.baton.record.as_ref().map_or(0, |(_, record)| record.number);
        let number = self.file.as_ref().map_or(0, |file| file.number).max(before) + 1;
        let Some(record) = self.next_record(number, turn) else { return Step::Rest };
        let record = Record { key: self.key_of_node(), value: Value::Node(record) };
        let operation = match seen {
            None => Operation::Create(record),
            Some(seen) => Operation::Update(record, seen),
        };
        self.send(Purpose::Register, operation)
    }

    fn beat(&mut self, turn: &mut Turn<'_>) -> Step {
        if let Some(step) = self.write_session(turn) {
            return step;
        }
        let Some((seen, last)) = self.baton.record.clone() else { return Step::Rest };
        let Some(record) = self.next_record(last.number + 1, turn) else { return Step::Rest };
        let (nonce, order) = (record.nonce, self.order + 1);
        let record = Record { key: self.key_of_node(), value: Value::Node(record) };
        let step = self.send(Purpose::Beat(nonce, order), Operation::Update(record, seen));
        if matches!(step, Step::Do(_)) {
            self.baton.sent.push((nonce, order));
            self.baton.has_meta = false;
        }
        step
    }

    /// An operation about the record or the store's id has ended.
    pub(super) fn on_baton(&mut self, purpose: Purpose, outcome: Outcome<Answer>) {
        match (purpose, outcome) {
            (Purpose::ReadMeta, Outcome::Done(Answer::Found(found))) => {
                let id = found.map(|stored| match stored.record.value {
                    Value::Meta(id) => id,
                    _ => Token(0), // it is no id: no node has this one
                });
                self.baton.meta = Some(id);
            }
            (Purpose::CreateMeta, _) => self.baton.meta = None,
            (Purpose::ReadRecord, Outcome::Done(Answer::Found(found))) => {
                self.baton.found = Some(found);
            }
            (Purpose::Register, Outcome::Done(Answer::Written(stored))) => {
                self.lines.push_back(Line::Registered);
                let order = self.order - 1;
                self.accept(stored, order);
                // It may be another store than the one whose id was read before.
                (self.baton.meta, self.baton.has_meta) = (None, false);
                self.baton.phase = Phase::Meta;
            }
            (Purpose::Register, _) => {
                (self.baton.meta, self.baton.found) = (None, None);
                self.baton.has_meta = false;
                self.baton.phase = Phase::Meta;
            }
            (Purpose::Beat(_, order), Outcome::Done(Answer::Written(stored))) => {
                self.accept(stored, order);
            }
            (Purpose::Beat(nonce, _), outcome) => match outcome {
                Outcome::Lost | Outcome::Unknown(_) | Outcome::Done(_) => {
                    self.baton.found = None;
                    self.baton.phase = Phase::Record;
                }
                _ => self.baton.sent.retain(|(sent, _)| *sent != nonce), // it was not executed
            },
            _ => (), // the read is repeated
        }
    }

    /// What a node does that has its record: in this order.
    fn run(&mut self, turn: &mut Turn<'_>) -> Step {
        if let Some(step) = self.note_beat() {
            return step;
        }
        if self.hints.meta.is_some()
            && self.hints.meta != self.file.as_ref().and_then(|it| it.store)
        {
            self.hints.meta = None; // it is read
            self.doubt("another store answers");
            return Step::Again;
        }
        if self.baton.is_accepted && self.now >= self.baton.last_beat + BEAT {
            return self.beat(turn); // whatever the blocks need
        }
        for part in [Machine::note_contests, Machine::pursue_blocks] {
            match part(self, turn) {
                Step::Rest => (),
                step => return step,
            }
        }
        let is_first = !self.baton.is_accepted
            || !self.is_confirmed() && self.baton.confirmed <= self.baton.listed;
        let is_for_orphans = self.orphans.iter().any(|(_, order)| *order >= self.baton.confirmed);
        if is_first
            || is_for_orphans
            || self.needs_beat()
            || self.now >= self.baton.last_beat + BEAT
        {
            return self.beat(turn);
        }
        self.by(self.baton.last_beat + BEAT);
        let parts = [
            Machine::confirm_reads,
            Machine::confirm_boot,
            Machine::delete_orphans,
            Machine::give,
            Machine::keep_want,
            Machine::claim,
            Machine::list_again,
        ];
        for part in parts {
            match part(self, turn) {
                Step::Rest => (),
                step => return step,
            }
        }
        Step::Rest
    }

    /// Writes what an accepted beat has shown.
    fn note_beat(&mut self) -> Option<Step> {
        let file = self.file.clone()?;
        if !self.baton.is_accepted {
            return None;
        }
        let number = self.baton.record.as_ref().map_or(0, |(_, record)| record.number);
        let mut new =
            NodeFile { number: file.number.max(number), registered: true, ..file.clone() };
        if std::mem::take(&mut self.baton.drops_sessions) {
            new.sessions = self.baton.session.into_iter().collect();
        }
        (new != file).then(|| {
            let step = self.write_node(new, None);
            self.baton.drops_sessions |= matches!(step, Step::Rest);
            step
        })
    }

    /// Confirms the blocks for plugins, once each active one is known to be the node's own in this boot.
    fn confirm_boot(&mut self, turn: &mut Turn<'_>) -> Step {
        if self.is_confirmed() || !self.setup.is_complete {
            return Step::Rest;
        }
        let mut active = self.all();
        active.retain(|at| self.tracked(at).is_some_and(|it| it.held.state == State::Active));
        if !active
            .iter()
            .all(|at| self.tracked(at).is_some_and(|it| matches!(it.key, Known::Own(_))))
        {
            return Step::Rest;
        }
        if self.baton.settle_until > self.now
            && let Some(first) = active.first().cloned()
        {
            active.retain(|at| at.network == first.network);
            let settling = active
                .iter()
                .filter_map(|at| self.tracked(at))
                .map(|it| Mark::Put(super::in_state(&it.held, State::Settling, turn.wall)));
            let settling = settling.collect();
            return self.mark(&first.network, settling, vec![]);
        }
        self.confirm(Allocation::Confirmed)
    }

    /// Lists the node's claims again: once a minute while any node wants some, and after a write whose
    /// outcome is unknown.
    fn list_again(&mut self, _: &mut Turn<'_>) -> Step {
        const EACH: Duration = Duration::from_secs(60);
        // A claim that came late is on no file: any want may be for it.
        let is_wanted = self.want.is_some()
            || self.hints.wants_of_others(&self.setup.node, self.now).next().is_some();
        let due = self.baton.last_list + EACH;
        if self.baton.needs_list || is_wanted && self.now >= due {
            return self.list(Purpose::ListOwn, Selection::Node(self.setup.node.clone()));
        }
        if is_wanted {
            self.by(due);
        }
        Step::Rest
    }
}
