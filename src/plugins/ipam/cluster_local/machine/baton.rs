//! The node's record: which node this is, and its beats. Each beat writes over the one before, so an
//! accepted one proves that no copy of the machine beats in this name, and that it was not reclaimed.

use std::time::Duration;

use super::super::held::State;
use super::super::store::{
    Answer, Key, NodeRecord, Operation, Outcome, Record, Selection, Stored, Token, Value,
};
use super::network::{Known, Note, Tracked};
use super::{Allocation, Line, Machine, Mark, NodeFile, Purpose, Standing, Step, Turn, Withdrawn};
use crate::sys::clock::Moment;

/// The time from one beat to the next.
pub const BEAT: Duration = Duration::from_secs(30);
/// After this time of failures the store may have gone back.
pub const DOUBT: Duration = Duration::from_secs(10);
/// How long a record of an unknown session must not move before its machine's disk counts as restored.
const UNMOVED: Duration = Duration::from_secs(40);
/// The wait before a record is read again that is another's.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
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
    record: Option<(Stored, NodeRecord)>,
    /// The beats without an answer: nonce, and the order in which it was sent.
    sent: Vec<(Token, u64)>,
    /// The nonces of earlier beats that had no answer.
    old: Vec<Token>,
    /// A beat of this session was accepted.
    is_accepted: bool,
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
    meta: Option<Option<Token>>,
    /// The store's id was read since the last beat.
    has_meta: bool,
    /// The record as read.
    found: Option<Option<Stored>>,
    /// Everything is to be verified.
    doubts: bool,
    /// What is claimed before settles.
    pub settle_until: Moment,
    /// The record of an unknown session, and since when it has not moved.
    unmoved: Option<(Stored, Moment)>,
    /// The claims that the next list has are taken over.
    pub takes_over: bool,
    /// Why the node may not claim, and no look at its record before.
    pub refused: Option<(Standing, Moment)>,
}

fn node_record(stored: &Stored) -> Option<&NodeRecord> {
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
    fn forget_all(&mut self) {
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

    /// Compares the files with the machine: a copy of another node's directory becomes a new node.
    fn begin(&mut self, turn: &mut Turn<'_>) -> Step {
        let fresh = NodeFile {
            node: self.setup.node.clone(),
            uid: turn.token(),
            earlier: vec![],
            machine: self.setup.machine,
            sessions: vec![],
            number: 0,
            store: None,
            registered: false,
            withdrawn: None,
        };
        let Some(file) = self.file.clone() else { return self.write_node(fresh, None) };
        if file.node != self.setup.node || file.machine != self.setup.machine {
            return self.become_new(NodeFile { store: file.store, ..fresh }, turn);
        }
        let withdrawn = file.withdrawn.filter(|withdrawn| withdrawn.boot == self.setup.boot);
        self.baton.phase = match withdrawn {
            Some(Withdrawn { is_copied: true, .. }) => Phase::Withdrawn(Standing::Copied),
            Some(_) => Phase::Withdrawn(Standing::Replaced),
            None if self.setup.is_replaced => Phase::Withdrawn(Standing::Replaced),
            None => Phase::Meta,
        };
        Step::Again
    }

    /// Marks the copied blocks as lost, network by network, and then writes a new record.
    fn become_new(&mut self, file: NodeFile, turn: &mut Turn<'_>) -> Step {
        if !self.is_denied() {
            return self.confirm(Allocation::Refused);
        }
        let mut copied = self.all();
        copied.retain(|at| self.tracked(at).is_some_and(|it| it.held.state != State::Lost));
        let Some(first) = copied.first().cloned() else {
            let step = self.write_node(file, None);
            if let Step::Do(_) = step {
                self.lines.push_back(Line::Clone);
            }
            return step;
        };
        copied.retain(|at| at.network == first.network);
        let lost = copied.iter().filter_map(|at| self.tracked(at));
        let lost = lost.map(|it| Mark::Put(super::in_state(&it.held, State::Lost, turn.wall)));
        let lost = lost.collect();
        self.mark(&first.network, lost, vec![])
    }

    /// Ends allocation in this boot: first for the plugins, then on the disk.
    fn withdraw(&mut self, standing: &Standing) -> Step {
        let Some(file) = self.file.clone() else { return Step::Rest };
        if self.allocation != Some(Allocation::Withdrawn) {
            return self.confirm(Allocation::Withdrawn);
        }
        let is_copied = *standing == Standing::Copied;
        let withdrawn = Some(Withdrawn { boot: self.setup.boot.clone(), is_copied });
        if file.withdrawn != withdrawn {
            return self.write_node(NodeFile { withdrawn, ..file }, None);
        }
        Step::Rest
    }

    fn refuse(&mut self, standing: Standing) -> Step {
        self.baton.refused = Some((standing, self.now + LOOK_AGAIN));
        self.baton.phase = Phase::Refused;
        Step::Again
    }

    fn read_meta(&mut self, turn: &mut Turn<'_>) -> Step {
        let Some(file) = self.file.clone() else { return Step::Rest };
        match (self.baton.meta.take(), file.store) {
            (None, _) => self.get(Purpose::ReadMeta, Key::Meta),
            (Some(None), None) => {
                let record = Record { key: Key::Meta, value: Value::Meta(turn.token()) };
                self.send(Purpose::CreateMeta, Operation::Create(record))
            }
            (Some(Some(found)), None) => {
                self.baton.meta = Some(Some(found));
                self.write_node(NodeFile { store: Some(found), ..file }, None)
            }
            (Some(found), Some(_)) if found != file.store => {
                self.forget_all();
                // What was accepted may be of that store.
                (self.baton.is_accepted, self.baton.record) = (false, None);
                self.refuse(Standing::OtherStore)
            }
            (Some(_), Some(_)) => {
                self.baton.has_meta = true;
                self.baton.phase = Phase::Record;
                Step::Again
            }
        }
    }

    /// What the record that was read says: the table of the design's §3, from the top.
    fn judge(&mut self, found: Option<Stored>, turn: &mut Turn<'_>) -> Step {
        let Some(file) = self.file.clone() else { return Step::Rest };
        if found.as_ref().is_some_and(|stored| node_record(stored).is_none()) {
            let reason = "the node's record in the store cannot be read".to_owned();
            return self.refuse(Standing::Away(reason));
        }
        let found = found.and_then(|stored| Some((node_record(&stored)?.clone(), stored)));
        let mine = self.baton.record.as_ref().map_or(file.number, |(_, record)| record.number);
        let went_back =
            found.as_ref().is_none_or(|(record, _)| record.number < mine || record.ended);
        if went_back && !self.baton.has_meta {
            return self.read_meta_first();
        }
        let Some((record, stored)) = found else {
            if file.registered || !file.earlier.is_empty() {
                self.doubt("the node's record is gone");
                self.forget_all();
            }
            self.baton.is_accepted = false;
            if file.registered {
                return self.change_uid(file, None, turn);
            }
            self.baton.phase = Phase::Register(None);
            return Step::Again;
        };
        if record.ended && record.uid == file.uid {
            self.doubt("the node was reclaimed");
            return self.change_uid(file, Some(stored), turn);
        }
        if record.ended && file.earlier.contains(&record.uid) {
            self.baton.phase = Phase::Register(Some(stored));
            return Step::Again;
        }
        if record.ended {
            return self.refuse(Standing::NameTaken);
        }
        if record.machine != self.setup.machine {
            return self.refuse(Standing::NameTaken);
        }
        if self.baton.is_accepted {
            self.judge_later(record, stored)
        } else {
            self.judge_first(&file, record, stored)
        }
    }

    /// Takes another uid, for a record over this one.
    fn change_uid(&mut self, file: NodeFile, seen: Option<Stored>, turn: &mut Turn<'_>) -> Step {
        self.forget_all();
        (self.baton.is_accepted, self.baton.record) = (false, None);
        let earlier = [file.earlier, vec![file.uid]].concat();
        let file = NodeFile { uid: turn.token(), earlier, registered: false, ..file };
        self.write_node(file, Some(Phase::Register(seen)))
    }

    fn go_on(&mut self) -> Step {
        let knows_keys = self.blocks().any(|tracked| tracked.key != Known::Unknown);
        self.baton.phase = if knows_keys { Phase::Run } else { Phase::List };
        Step::Again
    }

    /// The record after an accepted beat of this session.
    fn judge_later(&mut self, record: NodeRecord, stored: Stored) -> Step {
        let Some((_, mine)) = self.baton.record.clone() else { return Step::Rest };
        if let Some(order) = self.order_of(record.nonce) {
            self.accept(stored, order);
            return self.go_on();
        }
        if record.nonce == mine.nonce && record.number == mine.number {
            self.baton.record = Some((stored, record));
            return self.go_on();
        }
        if record.number < mine.number || self.baton.old.contains(&record.nonce) {
            return self.go_back(record, stored, mine.number);
        }
        if !self.baton.has_meta {
            return self.read_meta_first();
        }
        self.baton.phase = Phase::Withdrawn(Standing::Copied);
        Step::Again
    }

    /// The record may be of another store.
    fn read_meta_first(&mut self) -> Step {
        self.forget_all();
        self.baton.meta = None;
        self.baton.phase = Phase::Meta;
        Step::Again
    }

    /// The record before this session's first accepted beat.
    fn judge_first(&mut self, file: &NodeFile, record: NodeRecord, stored: Stored) -> Step {
        let own = (Some(record.session) == self.baton.session).then_some(0);
        if let Some(order) = self.order_of(record.nonce).or(own) {
            self.accept(stored, order);
            self.baton.phase = Phase::List;
            return Step::Again;
        }
        if record.number < file.number {
            return self.go_back(record, stored, file.number);
        }
        if file.sessions.contains(&record.session) {
            return self.take_uid(file, record, stored);
        }
        if record.boot == self.setup.boot {
            self.baton.phase = Phase::Withdrawn(Standing::Replaced);
            return Step::Again;
        }
        match &self.baton.unmoved {
            Some((seen, since)) if *seen == stored && self.now >= *since + UNMOVED => {
                self.baton.takes_over = true;
                self.take_uid(file, record, stored)
            }
            Some((seen, _)) if *seen == stored => self.refuse(Standing::Restored),
            _ => {
                self.baton.unmoved = Some((stored, self.now));
                self.refuse(Standing::Restored)
            }
        }
    }

    /// The record is this node's: its uid is, too.
    fn take_uid(&mut self, file: &NodeFile, record: NodeRecord, stored: Stored) -> Step {
        let uid = record.uid;
        self.baton.record = Some((stored, record));
        if file.uid == uid {
            self.baton.phase = Phase::List;
            return Step::Again;
        }
        let others = file.earlier.iter().copied().filter(|known| *known != uid);
        let earlier = others.chain([file.uid]).collect();
        self.write_node(NodeFile { uid, earlier, ..file.clone() }, Some(Phase::List))
    }

    /// The store has an older record than this node has written.
    fn go_back(&mut self, mut record: NodeRecord, stored: Stored, number: u64) -> Step {
        self.doubt("the store went back");
        self.forget_all();
        record.number = number;
        self.baton.record = Some((stored, record));
        self.baton.phase = Phase::List;
        Step::Again
    }

    fn order_of(&self, nonce: Token) -> Option<u64> {
        self.baton.sent.iter().find(|(sent, _)| *sent == nonce).map(|(_, order)| *order)
    }

    /// The store has this record, which was sent in this order.
    fn accept(&mut self, stored: Stored, order: u64) {
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
