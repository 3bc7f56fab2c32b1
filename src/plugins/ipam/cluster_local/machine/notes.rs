//! Notes: that a node has leases in a block that is another's. The owner allocates nothing from it then.

use std::time::Duration;

use super::super::held::{Held, State};
use super::super::store::{Answer, Key, Operation, Outcome, Record, Value};
use super::network::{Known, Note, Tracked};
use super::{At, Line, Machine, Mark, Purpose, Step, Turn};

/// How long the watch may lag behind a read.
const WATCH: Duration = Duration::from_secs(10);

impl Machine {
    /// Writes that other nodes have leases in usable blocks, or no longer have.
    pub(super) fn note_contests(&mut self, _: &mut Turn<'_>) -> Step {
        let is_disputed = self.blocks().any(|it| it.held.contested || it.held.state == State::Lost);
        if self.hints.conflicts.is_empty() && !is_disputed {
            return Step::Rest;
        }
        for at in self.all() {
            let Some(tracked) = self.tracked(&at) else { continue };
            let held = tracked.held.clone();
            let contested = self.is_contested(&at);
            let may_end = self.hints.is_heard && self.now >= tracked.contested + WATCH;
            let matters = matches!(held.state, State::Active | State::Settling);
            if !tracked.is_on_disk || !matters || contested == held.contested {
                continue;
            }
            if !contested && !may_end {
                let end = tracked.contested + WATCH;
                self.by(end);
                continue; // a read has shown what the watch has not told yet
            }
            let step = self.mark(&at.network, vec![Mark::Put(Held { contested, ..held })], vec![]);
            if let Step::Do(_) = step {
                let line = if contested { Line::Contested } else { Line::ContestEnded };
                self.lines.push_back(line(at.block));
                return step;
            }
        }
        Step::Rest
    }

    /// Another node has leases in a block of this one, which has some, too.
    pub(super) fn contest(&mut self, at: &At) {
        let now = self.now;
        if let Some(tracked) = self.tracked_mut(at) {
            (tracked.held.contested, tracked.contested) = (true, now);
        }
    }

    /// Whether another node has leases in a block, as far as it was heard, or another network of this one.
    pub(super) fn is_contested(&self, at: &At) -> bool {
        let meets = |tracked: &Tracked| {
            tracked.held.state == State::Lost && tracked.held.block.overlaps(at.block)
        };
        let mut others = self.networks.iter().filter(|(name, _)| **name != at.network);
        self.hints.is_contested(&at.realm, at.block, &self.setup.node)
            || others.any(|(_, network)| {
                let mut lost = network.blocks.values().filter(|tracked| meets(tracked));
                network.realm == at.realm && lost.any(|it| network.is_leased(it.held.block))
            })
    }

    /// A block that another node has: a note while it has leases.
    pub(super) fn pursue_lost(&mut self, at: &At, of: &Tracked, is_leased: bool) -> Step {
        /// How long a lost block's key is not read again.
        const EACH: Duration = Duration::from_secs(10);
        if is_leased && of.note == Note::None {
            let value = Value::Conflict(self.setup.node.clone());
            let record = Record { key: Key::Conflict(at.realm.clone(), at.block), value };
            return self.send(Purpose::CreateNote(at.clone()), Operation::Create(record));
        }
        if !is_leased && of.note != Note::None || of.note == Note::Unread {
            return self.end_note(at, &of.note);
        }
        if !is_leased {
            return self.drop_block(at);
        }
        let since = of.created.unwrap_or_default();
        let now = self.now;
        if now >= since + EACH
            && let Some(tracked) = self.tracked_mut(at)
        {
            // Another node's note may have been there in place of this one's.
            (tracked.created, tracked.key, tracked.note) =
                (Some(now), Known::Unknown, Note::Unread);
            return Step::Again;
        }
        self.by(since + EACH);
        Step::Rest
    }

    /// Deletes the note of a block, if it is this node's.
    pub(super) fn end_note(&mut self, at: &At, note: &Note) -> Step {
        match note {
            Note::Found(stored) => {
                self.send(Purpose::DeleteNote(at.clone()), Operation::Delete((**stored).clone()))
            }
            Note::Perhaps | Note::Unread | Note::None => {
                let key = Key::Conflict(at.realm.clone(), at.block);
                self.get(Purpose::ReadNote(at.clone()), key)
            }
        }
    }

    /// An operation about the note of a block has ended.
    pub(super) fn on_note(&mut self, at: &At, is_deleted: bool, outcome: Outcome<Answer>) {
        let (now, own) = (self.now, Value::Conflict(self.setup.node.clone()));
        let Some(tracked) = self.tracked_mut(at) else { return };
        match outcome {
            Outcome::Done(Answer::Found(found)) => {
                let own = found.filter(|stored| stored.record.value == own);
                tracked.note = own.map_or(Note::None, |own| Note::Found(Box::new(own)));
            }
            Outcome::Done(_) if is_deleted => tracked.note = Note::None,
            Outcome::Done(_) => (tracked.note, tracked.created) = (Note::Perhaps, Some(now)),
            // Of a create that has lost, there is one. An unknown one is tried again.
            Outcome::Lost => tracked.note = Note::Perhaps,
            Outcome::Unknown(_) if is_deleted => tracked.note = Note::Perhaps,
            _ => (), // it was not executed
        }
    }
}
