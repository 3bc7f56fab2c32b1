//! One block from its claim to its end. Each state says what to do about each thing that may be known of
//! its key.
//!
//! | state | unsent | in doubt | own | absent | another's |
//! |---|---|---|---|---|---|
//! | claiming | claim | read | use | forget, or claim if an ADD waits | forget |
//! | settling | - | read | read after its time, use | claim | forget |
//! | active | - | read | - | claim | conflict |
//! | returning | - | read | release | forget | forget |
//! | conflict | - | read | use if not contested, return without leases | claim | forget without leases |
//! | lost | forget without leases, whatever its key |||||

use std::time::Duration;

use super::super::engine::{Answer, Claimed, ConflictNote, Name, Operation, Rival, Seen};
use super::super::held::{Held, State};
use super::contact::Contact;
use super::interface::{Line, Mark, Turn};
use super::names::full_name;
use super::network::{Key, Step, Tracked};
use super::purpose::{Purpose, Result};
use super::verify::key_of;
use super::{At, Machine};

/// The pause between looks at a block in conflict.
const CONFLICT: Duration = Duration::from_secs(10);

/// What is due with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Claim,
    Read,
    Release,
    /// A new state, on the disk.
    Enter(State),
    Forget,
    /// A note of a conflict, or its end.
    Note(bool),
}

impl Machine {
    /// Does what is due with each block.
    pub(super) fn pursue_blocks(&mut self, turn: &mut Turn<'_>) {
        let due: Vec<(At, Due)> = self.due_blocks(turn);
        for (at, due) in due {
            self.do_due(&at, due, turn);
        }
    }

    fn due_blocks(&self, turn: &Turn<'_>) -> Vec<(At, Due)> {
        let mut all = vec![];
        for (name, network) in &self.networks {
            let is_listing = matches!(&self.relation.contact, Contact::Verifying(realms) if realms.contains(&network.realm));
            for (block, tracked) in &network.blocks {
                let waits = tracked.step != Step::Rest
                    || tracked.held.of.is_some()
                    || tracked.due > turn.now;
                if waits {
                    continue;
                }
                let due = self.due(tracked, network.leases_in(*block) > 0, turn);
                let is_local = matches!(due, Due::Forget | Due::Enter(_));
                if due != Due::Nothing && (is_local || self.relation.may_act() && !is_listing) {
                    all.push((At { network: name.clone(), block: *block }, due));
                }
            }
        }
        all
    }

    fn due(&self, tracked: &Tracked, is_leased: bool, turn: &Turn<'_>) -> Due {
        match (tracked.held.state, tracked.key) {
            (State::Lost, _) if is_leased => Due::Nothing,
            (State::Lost, _) => Due::Forget,
            (_, Key::Doubt) => Due::Read,
            (State::Claiming, key) => due_claiming(key, self.relation.settle_until > turn.now),
            (State::Settling, key) => due_settling(tracked, key, turn),
            (State::Active, key) => due_active(key, tracked.contested),
            (State::Returning, Key::Own(_)) => Due::Release,
            (State::Returning, _) => Due::Forget,
            (State::Conflict, key) => due_in_conflict(tracked, key, is_leased),
        }
    }

    fn do_due(&mut self, at: &At, due: Due, turn: &mut Turn<'_>) {
        let Some(Tracked { held, key, .. }) = self.tracked(at).cloned() else { return };
        match due {
            Due::Nothing => (),
            Due::Claim => self.claim_block(at, &held, turn),
            Due::Read => self.read_block(at, turn),
            Due::Release => self.release_block(at, &held, key, turn),
            Due::Forget => self.forget(at, held.state, turn),
            Due::Enter(state) => self.enter(at, &held, state, turn),
            Due::Note(is_noted) => self.note_conflict(at, is_noted, turn),
        }
    }

    /// Forgets a block. A lost or contested block must have no lease, which the daemon verifies under
    /// the lock of the file: the machine's leases may be stale, or not read yet.
    fn forget(&mut self, at: &At, state: State, turn: &mut Turn<'_>) {
        let may_be_used = matches!(state, State::Lost | State::Conflict);
        let unleased = if may_be_used { vec![at.block] } else { vec![] };
        self.mark(&at.network, vec![Mark::Forget(at.block)], unleased, turn);
    }

    /// The value of the key of a network's block.
    pub(super) fn claimed(&self, network: &Name, held: &Held) -> Claimed {
        let owner = self.identity_of(held.incarnation);
        let sticky = held.sticky.as_ref().map(|name| full_name(network.as_str(), name));
        Claimed { owner, token: held.token, sticky, vacant: false }
    }

    fn claim_block(&mut self, at: &At, held: &Held, turn: &mut Turn<'_>) {
        let Some(realm) = self.realm_of(at) else { return };
        if matches!(held.state, State::Active | State::Conflict) {
            turn.log(Line::ClaimedAgain(at.block));
        }
        let (claimed, ground) = (self.claimed(&at.network, held), self.ground());
        let vacant = self.realms.get(&realm).and_then(|realm| realm.vacant_at(at.block));
        let operation = match vacant.filter(|_| held.sticky.is_some()) {
            Some(seen) => Operation::Hold { realm, seen: seen.clone(), claimed, ground },
            None => Operation::Claim { realm, block: at.block, claimed, ground },
        };
        self.ask(at, operation, turn);
    }

    fn read_block(&mut self, at: &At, turn: &mut Turn<'_>) {
        let Some(realm) = self.realm_of(at) else { return };
        self.ask(at, Operation::ReadBlock { realm, block: at.block }, turn);
    }

    fn release_block(&mut self, at: &At, held: &Held, key: Key, turn: &mut Turn<'_>) {
        let (Some(realm), Key::Own(revision)) = (self.realm_of(at), key) else { return };
        let claimed = self.claimed(&at.network, held);
        let seen = Seen { block: at.block, claimed: claimed.clone(), revision };
        let operation = if self.keeps_name(at, held) {
            let claimed = Claimed { vacant: true, ..claimed };
            Operation::Hold { realm, seen, claimed, ground: self.ground() }
        } else {
            Operation::Release { realm, seen }
        };
        self.ask(at, operation, turn);
    }

    fn enter(&mut self, at: &At, held: &Held, state: State, turn: &mut Turn<'_>) {
        match (held.state, state) {
            (State::Conflict, State::Active) => turn.log(Line::ConflictEnded(at.block)),
            (_, State::Conflict) => turn.log(Line::Conflict(at.block)),
            _ => (),
        }
        let mod_revision = match self.tracked(at).map(|tracked| tracked.key) {
            Some(Key::Own(revision)) => revision,
            _ => held.mod_revision,
        };
        // Only a block without leases is given back; the file's lock decides it.
        let unleased = if state == State::Returning { vec![at.block] } else { vec![] };
        let next = Held { state, since: turn.wall, mod_revision, ..held.clone() };
        self.mark(&at.network, vec![Mark::Put(next)], unleased, turn);
    }

    fn note_conflict(&mut self, at: &At, is_noted: bool, turn: &mut Turn<'_>) {
        let Some(realm) = self.realm_of(at) else { return };
        let leases =
            self.networks.get(&at.network).map_or(0, |network| network.leases_in(at.block));
        let note = is_noted.then(|| ConflictNote { by: self.identity(), leases: leases as u64 });
        self.update(at, |tracked| tracked.step = Step::Asking);
        let operation = Operation::NoteConflict { realm, block: at.block, note };
        self.send(Purpose::Note(at.clone(), is_noted), operation, turn);
    }

    /// A note was written or deleted. A deletion whose outcome is unknown is tried again.
    pub(super) fn after_noting(&mut self, at: &At, is_noted: bool, result: Result) {
        let is_done = matches!(result, Result::Done(..));
        self.update(at, |tracked| {
            tracked.step = Step::Rest;
            tracked.noted = if is_done { is_noted } else { tracked.noted || is_noted };
        });
    }

    /// An operation on a block has ended.
    pub(super) fn on_block(&mut self, at: &At, result: Result, turn: &mut Turn<'_>) {
        let known = self.last_id;
        let uid = self.setup.uid;
        self.update(at, |tracked| {
            tracked.step = Step::Rest;
            tracked.known = known;
        });
        match result {
            Result::Done(revision, Answer::Written) => self.after_writing(at, revision),
            Result::Done(_, Answer::Realm(state)) => {
                self.update(at, |tracked| tracked.learn(&state, uid))
            }
            Result::Lost(_, rival) => self.after_losing(at, rival, turn),
            Result::Done(..) | Result::Unknown => {
                self.update(at, |tracked| tracked.key = Key::Doubt)
            }
            Result::Undone => self.after_refusal(at, turn),
        }
        self.settle(at, turn);
        self.look_again_later(at, turn);
    }

    /// A block that settles is confirmed by what was read after its time.
    fn settle(&mut self, at: &At, turn: &Turn<'_>) {
        let end = turn.now + self.setup.settle;
        self.update(at, |tracked| {
            let settled = *tracked.settled.get_or_insert(end);
            let is_own = matches!(tracked.key, Key::Own(_));
            tracked.confirmed =
                settled <= turn.now && is_own && tracked.held.state == State::Settling;
        });
    }

    /// The block was claimed or released.
    fn after_writing(&mut self, at: &At, revision: u64) {
        self.update(at, |tracked| {
            let is_released = tracked.held.state == State::Returning;
            tracked.key = if is_released { Key::Absent } else { Key::Own(revision) };
        });
    }

    fn after_losing(&mut self, at: &At, rival: Rival, turn: &mut Turn<'_>) {
        let uid = self.setup.uid;
        self.update(at, |tracked| {
            let key = key_of(&rival.blocks, at.block, (tracked.held.token, uid));
            // The name has another address: this one is none that it can have.
            let is_named = rival.named.is_some_and(|other| other != at.block);
            tracked.key = if is_named && key == Key::Absent { Key::Foreign } else { key };
        });
        if let Some(realm) = self.realm_of(at).and_then(|realm| self.realms.get_mut(&realm)) {
            realm.merge(&rival.blocks);
        }
        if self.relation.may_act() && self.is_other_ground(&rival.node) {
            self.meet(turn);
        }
        self.pause_claims(at, turn);
        self.after_losing_name(at, turn);
    }

    /// It was not sent, or was refused: a claim is given up, all else is tried again. A claim in doubt
    /// stays in doubt when it is the read that failed.
    fn after_refusal(&mut self, at: &At, turn: &mut Turn<'_>) {
        let due = turn.after(Duration::from_secs(1));
        self.update(at, |tracked| match tracked.held.state {
            State::Claiming if tracked.key == Key::Unsent => tracked.key = Key::Absent,
            _ => tracked.due = due,
        });
        self.pause_claims(at, turn);
    }

    /// A block in conflict is read again from time to time.
    fn look_again_later(&mut self, at: &At, turn: &mut Turn<'_>) {
        let due = turn.after(CONFLICT);
        self.update(at, |tracked| {
            let is_conflict = tracked.held.state == State::Conflict;
            if is_conflict
                && (tracked.key == Key::Foreign || tracked.contested)
                && tracked.due <= turn.now
            {
                tracked.due = due;
            }
        });
    }

    pub(super) fn update(&mut self, at: &At, change: impl FnOnce(&mut Tracked)) {
        if let Some(tracked) = self.tracked_mut(at) {
            change(tracked);
        }
    }

    pub(super) fn realm_of(&self, at: &At) -> Option<super::Name> {
        self.networks.get(&at.network).map(|network| network.realm.clone())
    }
}

/// An intent without a key is dropped: the ADD that waits chooses again.
fn due_claiming(key: Key, settles: bool) -> Due {
    match key {
        Key::Unsent => Due::Claim,
        Key::Own(_) if settles => Due::Enter(State::Settling),
        Key::Own(_) => Due::Enter(State::Active),
        Key::Absent | Key::Foreign => Due::Forget,
        Key::Doubt => Due::Read,
    }
}

/// After its time, the key and the notes are read once more before it is used.
fn due_settling(tracked: &Tracked, key: Key, turn: &Turn<'_>) -> Due {
    match key {
        Key::Own(_) if tracked.contested => Due::Enter(State::Returning),
        Key::Own(_) if tracked.confirmed => Due::Enter(State::Active),
        Key::Own(_) if tracked.settled.is_some_and(|settled| settled > turn.now) => Due::Nothing,
        Key::Own(_) | Key::Doubt => Due::Read,
        Key::Absent | Key::Unsent => Due::Claim,
        Key::Foreign => Due::Forget,
    }
}

fn due_active(key: Key, contested: bool) -> Due {
    match key {
        Key::Own(_) if contested => Due::Enter(State::Conflict),
        Key::Own(_) => Due::Nothing,
        Key::Absent | Key::Unsent => Due::Claim,
        Key::Foreign => Due::Enter(State::Conflict),
        Key::Doubt => Due::Read,
    }
}

/// The node whose key is missing notes the conflict; the one with the key gives the block back if
/// it can.
fn due_in_conflict(tracked: &Tracked, key: Key, is_leased: bool) -> Due {
    match key {
        Key::Own(_) if tracked.contested && !is_leased => Due::Enter(State::Returning),
        Key::Own(_) if tracked.contested => Due::Read,
        Key::Own(_) if tracked.noted => Due::Note(false),
        Key::Own(_) => Due::Enter(State::Active),
        Key::Absent | Key::Foreign if !is_leased && tracked.noted => Due::Note(false),
        Key::Absent | Key::Foreign if !is_leased => Due::Forget,
        Key::Absent | Key::Unsent => Due::Claim,
        Key::Foreign if !tracked.noted => Due::Note(true),
        Key::Foreign | Key::Doubt => Due::Read,
    }
}
