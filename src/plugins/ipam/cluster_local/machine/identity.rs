//! Which node this is: what the files, the store's id and the node's record say, by the table of the
//! design's §3.

use std::time::Duration;

use super::super::held::State;
use super::super::store::{Key, NodeRecord, Operation, Record, Stored, Value};
use super::baton::node_record;
use super::network::Known;
use super::{
    Allocation, Line, Machine, Mark, NodeFile, Phase, Purpose, Standing, Step, Turn, Withdrawn,
};

/// How long a record of an unknown session must not move before its machine's disk counts as restored.
const UNMOVED: Duration = Duration::from_secs(40);
/// The wait before a record is read again that is another's.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl Machine {
    /// Compares the files with the machine: a copy of another node's directory becomes a new node.
    pub(super) fn begin(&mut self, turn: &mut Turn<'_>) -> Step {
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
    pub(super) fn withdraw(&mut self, standing: &Standing) -> Step {
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

    pub(super) fn read_meta(&mut self, turn: &mut Turn<'_>) -> Step {
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
    pub(super) fn judge(&mut self, found: Option<Stored>, turn: &mut Turn<'_>) -> Step {
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
}
