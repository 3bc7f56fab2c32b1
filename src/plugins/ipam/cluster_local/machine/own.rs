//! The list of the node's own records: what it says of blocks, and the orphans, which no file knows.

use super::super::held::State;
use super::super::store::{Answer, Key, Operation, Outcome, Stored, Value};
use super::network::{Known, Note};
use super::{At, Line, Machine, Purpose, Step, Turn};

impl Machine {
    /// The node's records were listed.
    pub(super) fn on_own(&mut self, outcome: Outcome<Answer>) {
        let Outcome::Done(Answer::Listed(listed)) = outcome else { return };
        let is_first = self.baton.phase == super::Phase::List;
        let takes_over = std::mem::take(&mut self.baton.takes_over);
        (self.baton.listed, self.baton.last_list) = (self.order, self.now);
        self.baton.needs_list = false;
        self.orphans.clear();
        for stored in listed {
            self.on_own_record(stored, is_first, takes_over);
        }
        if is_first {
            self.baton.phase = super::Phase::Run;
        }
    }

    fn on_own_record(&mut self, stored: Stored, is_first: bool, takes_over: bool) {
        let order = self.order;
        match (&stored.record.key, &stored.record.value) {
            (Key::Conflict(realm, block), Value::Conflict(_)) => {
                let lost = self
                    .find(realm, *block)
                    .filter(|at| self.tracked(at).is_some_and(|it| it.held.state == State::Lost));
                match lost.and_then(|at| self.tracked_mut(&at)) {
                    Some(tracked) => tracked.note = Note::Perhaps,
                    None => self.orphans.push((stored, order)),
                }
            }
            (Key::Block(realm, block), Value::Claim(claim)) => {
                let found = self.find(realm, *block);
                let held = found.as_ref().and_then(|at| self.tracked(at)).map(|it| it.held.clone());
                let known = held.map(|held| self.known(&held, Some(stored.clone())));
                let token = claim.token;
                match (known, found) {
                    (Some(known @ (Known::Own(_) | Known::Earlier(_))), Some(at)) => {
                        self.on_own_claim(&at, known, is_first, takes_over);
                    }
                    _ if self.want.as_ref().is_some_and(|want| want.nonce == token) => {
                        self.note_gift(*block); // it was not taken yet
                    }
                    _ => self.orphans.push((stored, order)),
                }
            }
            _ => (),
        }
    }

    fn on_own_claim(&mut self, at: &At, known: Known, is_first: bool, takes_over: bool) {
        let order = self.order;
        let Some(tracked) = self.tracked_mut(at) else { return };
        let is_news = is_first || matches!(tracked.key, Known::Unknown | Known::Missing);
        if !is_news {
            return;
        }
        tracked.known = order;
        tracked.key = match known {
            Known::Own(stored) if takes_over => Known::Earlier(stored),
            known => known,
        };
    }

    /// Deletes a record of the node that no file of it knows, after a beat that followed the list.
    pub(super) fn delete_orphans(&mut self, _: &mut Turn<'_>) -> Step {
        if !self.setup.is_complete || self.retry > self.now {
            return Step::Rest;
        }
        while let Some((stored, _)) = self.orphans.pop() {
            let is_known = match (&stored.record.key, &stored.record.value) {
                (Key::Block(realm, block), Value::Claim(claim)) => {
                    let tracked =
                        self.find(realm, *block).and_then(|at| self.tracked(&at).cloned());
                    tracked.is_some_and(|it| it.held.token == claim.token)
                }
                (Key::Conflict(realm, block), _) => {
                    let tracked =
                        self.find(realm, *block).and_then(|at| self.tracked(&at).cloned());
                    tracked.is_some_and(|it| it.held.state == State::Lost)
                }
                _ => true,
            };
            if is_known {
                continue;
            }
            if let Key::Block(_, block) = stored.record.key {
                self.lines.push_back(Line::Orphan(block));
            }
            return self.send(Purpose::DeleteOrphan, Operation::Delete(stored));
        }
        Step::Rest
    }
}
