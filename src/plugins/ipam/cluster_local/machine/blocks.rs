//! A block from its claim to its end. Two things are known of it: its state on the disk, and its key in
//! the store. What is due follows from both, as in the table of the design's §4.
//!
//! A claim is a create, a beat, a read of the key, and then use. One beat and one read confirm several.

use super::super::block::Block;
use super::super::held::{Held, State};
use super::super::name::Name;
use super::super::store::{
    Answer, Claim, Key, Operation, Outcome, Record, Selection, Stored, Token, Value,
};
use super::network::{Known, Note, Tracked};
use super::{At, Line, Machine, Mark, Purpose, Step, Turn, in_state};

/// How many blocks one read confirms.
const MOST_READ: usize = 32;

/// What is known of the sizes of a chunk's blocks.
enum Division {
    Unknown,
    Absent,
    Fits,
    Other,
}

fn claim_of(stored: &Stored) -> Option<&Claim> {
    match &stored.record.value {
        Value::Claim(claim) => Some(claim),
        _ => None,
    }
}

fn is_taken(stored: &Stored, taken: Token) -> bool {
    claim_of(stored).is_some_and(|claim| claim.taken == Some(taken))
}

impl Machine {
    /// What a record says of a block.
    pub(super) fn known(&self, held: &Held, found: Option<Stored>) -> Known {
        let Some(stored) = found else { return Known::Absent };
        let Some(file) = &self.file else { return Known::Foreign };
        match claim_of(&stored).filter(|it| it.node == self.setup.node && it.token == held.token) {
            Some(claim) if file.uid == claim.uid => Known::Own(stored),
            Some(claim) if file.earlier.contains(&claim.uid) => Known::Earlier(stored),
            _ => Known::Foreign,
        }
    }

    /// The record of a block of this node.
    pub(super) fn record_of(&self, at: &At) -> Option<Record> {
        let held = &self.tracked(at)?.held;
        let name = held.name.as_ref().map(|name| super::names::full(&at.network, name));
        let uid = self.file.as_ref()?.uid;
        let node = self.setup.node.clone();
        let claim = Claim { node, uid, token: held.token, taken: None, name };
        Some(Record { key: at.key(), value: Value::Claim(claim) })
    }

    /// Does what is due for one block.
    pub(super) fn pursue_blocks(&mut self, turn: &mut Turn<'_>) -> Step {
        for at in self.all() {
            match self.pursue_block(&at, turn) {
                Step::Rest => (),
                step => return step,
            }
        }
        Step::Rest
    }

    fn pursue_block(&mut self, at: &At, turn: &mut Turn<'_>) -> Step {
        let Some(tracked) = self.tracked(at).cloned() else { return Step::Rest };
        let is_leased = self.networks[&at.network].is_leased(at.block);
        match (tracked.held.state, &tracked.key) {
            (State::Lost, Known::Foreign) => self.pursue_lost(at, &tracked, is_leased),
            // A lease came back before the key went.
            (State::Returning, known) if is_leased => {
                let is_own = matches!(known, Known::Own(_));
                self.change(at, if is_own { State::Active } else { State::Claiming }, turn)
            }
            (State::Returning, Known::Own(seen) | Known::Earlier(seen)) => {
                self.return_block(at, &tracked, seen.clone(), turn)
            }
            (_, Known::Unknown | Known::Missing) => {
                self.get(Purpose::ReadBlock(at.clone()), at.key())
            }
            (State::Returning, _) => self.drop_block(at),
            (_, Known::Earlier(seen)) => {
                let Some(mut record) = self.record_of(at) else { return Step::Rest };
                let taken = Some(turn.token());
                if let Value::Claim(claim) = &mut record.value {
                    claim.taken = taken;
                }
                if let Some(tracked) = self.tracked_mut(at) {
                    tracked.taken = taken;
                }
                let operation = Operation::Update(record, seen.clone());
                self.send(Purpose::TakeOver(at.clone()), operation)
            }
            (State::Claiming | State::Settling, Known::Foreign) if !is_leased => {
                self.drop_block(at)
            }
            (_, Known::Foreign) => {
                let step = self.change(at, State::Lost, turn);
                if let Step::Do(_) = step {
                    self.lines.push_back(Line::Lost(at.block));
                }
                step
            }
            (_, Known::Absent) => self.create(at, &tracked, is_leased, turn),
            (state, Known::Own(_)) => match self.division(at) {
                Division::Fits => self.pursue_own(at, &tracked, state, turn),
                Division::Other if is_leased => {
                    if let Some(tracked) = self.tracked_mut(at) {
                        tracked.key = Known::Foreign;
                    }
                    self.change(at, State::Lost, turn)
                }
                Division::Other => self.change(at, State::Returning, turn),
                undecided => self.divide(at, &undecided),
            },
        }
    }

    /// A block in another state: at once if it is not on the disk and need not be.
    pub(super) fn change(&mut self, at: &At, state: State, turn: &mut Turn<'_>) -> Step {
        let Some(tracked) = self.tracked_mut(at) else { return Step::Rest };
        let held = in_state(&tracked.held, state, turn.wall);
        if state == State::Returning {
            tracked.gift = None; // an earlier one has failed
        }
        if !tracked.is_on_disk && state == State::Returning {
            tracked.held = held;
            return Step::Again;
        }
        let unleased = if state == State::Returning { vec![at.block] } else { vec![] };
        self.mark(&at.network.clone(), vec![Mark::Put(held)], unleased)
    }

    /// A block that the node no longer has.
    pub(super) fn drop_block(&mut self, at: &At) -> Step {
        let is_on_disk = self.tracked(at).is_some_and(|tracked| tracked.is_on_disk);
        if is_on_disk {
            return self.mark(&at.network, vec![Mark::Forget(at.block)], vec![at.block]);
        }
        if let Some(network) = self.networks.get_mut(&at.network) {
            network.blocks.remove(&at.block);
        }
        Step::Again
    }

    /// What is known of the sizes of the chunk that a block is in.
    fn division(&self, at: &At) -> Division {
        let chunk = at.block.chunk();
        if at.block == chunk {
            return Division::Fits;
        }
        match self.divisions.get(&(at.realm.clone(), chunk)) {
            None => Division::Unknown,
            Some(None) => Division::Absent,
            Some(Some(size)) if u64::from(*size) == at.block.size() => Division::Fits,
            Some(Some(_)) => Division::Other,
        }
    }

    /// Reads how a chunk is divided, or divides it: before a block smaller than it is claimed.
    fn divide(&mut self, at: &At, division: &Division) -> Step {
        let (realm, chunk) = (at.realm.clone(), at.block.chunk());
        let key = Key::Block(realm.clone(), chunk);
        match division {
            Division::Unknown => self.get(Purpose::ReadDivision(realm, chunk), key),
            Division::Absent => {
                let size = u8::try_from(at.block.size()).unwrap_or(u8::MAX); // it is 1 or 8
                let record = Record { key, value: Value::Divided(size) };
                self.send(Purpose::Divide(realm, chunk), Operation::Create(record))
            }
            Division::Fits | Division::Other => Step::Rest,
        }
    }

    pub(super) fn on_division(&mut self, realm: Name, chunk: Block, outcome: Outcome<Answer>) {
        let Outcome::Done(Answer::Found(found)) = outcome else { return };
        let size = found.map(|stored| match stored.record.value {
            Value::Divided(size) => size,
            _ => 0, // a node has all of it: no block fits
        });
        self.divisions.insert((realm, chunk), size);
    }

    pub(super) fn on_division_written(
        &mut self,
        realm: Name,
        chunk: Block,
        outcome: Outcome<Answer>,
    ) {
        match outcome {
            Outcome::Done(Answer::Written(Stored { record, .. })) => {
                if let Value::Divided(size) = record.value {
                    self.divisions.insert((realm, chunk), Some(size));
                }
            }
            _ => drop(self.divisions.remove(&(realm, chunk))),
        }
    }

    /// Creates a key, unless nobody needs the block any more.
    fn create(&mut self, at: &At, of: &Tracked, is_leased: bool, turn: &mut Turn<'_>) -> Step {
        let is_waited_for = self.networks[&at.network].is_waited_for(&of.held);
        let is_needed = match of.held.state {
            State::Claiming => is_leased || is_waited_for,
            State::Lost => is_leased,
            _ => true,
        };
        if !is_needed && of.note != Note::None {
            return self.end_note(at, &of.note);
        }
        if !is_needed {
            return self.drop_block(at);
        }
        match self.division(at) {
            Division::Other => {
                if let Some(step) = self.widen(at, turn) {
                    return step;
                }
                if let Some(tracked) = self.tracked_mut(at) {
                    tracked.key = Known::Foreign;
                }
                return Step::Again;
            }
            Division::Fits => (),
            undecided => return self.divide(at, &undecided),
        }
        if of.held.state == State::Settling {
            // Its time to settle begins again.
            self.baton.settle_until = self.baton.settle_until.max(self.now + self.setup.settle);
            return self.change(at, State::Claiming, turn);
        }
        if let Some(step) = self.write_session(turn) {
            return step;
        }
        let Some(record) = self.record_of(at) else { return Step::Rest };
        let step = self.send(Purpose::CreateBlock(at.clone()), Operation::Create(record));
        let now = self.now;
        if let (Step::Do(_), Some(tracked)) = (&step, self.tracked_mut(at)) {
            tracked.created = Some(now);
        }
        step
    }

    /// Claims the block of eight around an address of `ipam join`, where its chunk is divided so.
    fn widen(&mut self, at: &At, turn: &mut Turn<'_>) -> Option<Step> {
        let eight = at.block.eight();
        let chunk = (at.realm.clone(), at.block.chunk());
        let is_divided = self.divisions.get(&chunk) == Some(&Some(8));
        let held = self.tracked(at).map(|it| it.held.clone())?;
        let network = self.networks.get(&at.network)?;
        let inside: Vec<Block> =
            network.blocks.keys().copied().filter(|block| eight.covers(*block)).collect();
        let is_joined = held.state == State::Claiming && at.block.size() == 1;
        if !is_divided || !is_joined || network.blocks.contains_key(&eight) {
            return None;
        }
        let mut marks: Vec<Mark> = inside.into_iter().map(Mark::Forget).collect();
        marks.push(Mark::Put(Held { block: eight, token: turn.token(), name: None, ..held }));
        Some(self.mark(&at.network, marks, vec![]))
    }

    /// A block whose key is the node's.
    fn pursue_own(&mut self, at: &At, of: &Tracked, state: State, turn: &mut Turn<'_>) -> Step {
        let is_read = self.is_read(of);
        match state {
            State::Claiming if !is_read => Step::Rest, // a beat and a read come first
            State::Claiming if of.held.name.is_some() && of.named <= self.baton.confirmed => {
                self.check_name(at)
            }
            State::Claiming => {
                let is_leased = self.networks[&at.network].is_leased(at.block);
                let is_noted = of.contest.is_some_and(|(is_noted, _)| is_noted);
                if is_noted || self.is_contested(at) {
                    if !is_leased {
                        return self.change(at, State::Returning, turn);
                    }
                    self.contest(at);
                }
                let settles = self.is_made_in_doubt(of);
                self.change(at, if settles { State::Settling } else { State::Active }, turn)
            }
            State::Settling => self.settle(at, of, turn),
            State::Active if of.is_unread && self.is_made_in_doubt(of) => {
                self.change(at, State::Settling, turn)
            }
            State::Active => {
                if let Some(tracked) = self.tracked_mut(at).filter(|it| it.is_unread && is_read) {
                    tracked.is_unread = false;
                }
                Step::Rest
            }
            State::Lost if of.note != Note::None => self.end_note(at, &of.note),
            State::Lost => {
                let order = self.order;
                if let Some(tracked) = self.tracked_mut(at) {
                    tracked.known = order;
                }
                let step = self.change(at, State::Claiming, turn);
                if let Step::Do(_) = step {
                    self.lines.push_back(Line::ClaimedAgain(at.block));
                }
                step
            }
            State::Returning => Step::Rest, // it is on its way already
        }
    }

    /// Whether a beat that was sent after the key became the node's was accepted, and the key was read
    /// after it.
    fn is_read(&self, tracked: &Tracked) -> bool {
        self.baton.confirmed > tracked.known && tracked.read > self.baton.confirmed
    }

    fn is_made_in_doubt(&self, tracked: &Tracked) -> bool {
        tracked.created.unwrap_or(self.now) < self.baton.settle_until
    }

    fn settle(&mut self, at: &At, of: &Tracked, turn: &mut Turn<'_>) -> Step {
        let (end, from) = of.settles.unwrap_or((self.now + self.setup.settle, None));
        let (now, order) = (self.now, self.order);
        let Some(tracked) = self.tracked_mut(at) else { return Step::Rest };
        if now < end {
            tracked.settles = Some((end, None));
            self.by(end);
            return Step::Rest;
        }
        let from = from.unwrap_or(order);
        tracked.settles = Some((end, Some(from)));
        let is_read = tracked.read > from;
        let contest = tracked.contest.filter(|(_, at)| *at > from);
        match contest {
            Some((is_contested, _)) if is_read => {
                let is_contested = is_contested || of.held.contested;
                let is_leased = self.networks[&at.network].is_leased(at.block);
                if is_contested && is_leased {
                    self.contest(at);
                }
                let goes = is_contested && !is_leased;
                self.change(at, if goes { State::Returning } else { State::Active }, turn)
            }
            _ => Step::Rest, // it is read
        }
    }

    /// Whether a block waits for a beat.
    pub(super) fn needs_beat(&self) -> bool {
        self.blocks().any(|it| self.must_be_read(it) && self.baton.confirmed <= it.known)
    }

    /// Whether a block that is the node's own is not used, or not for long, before its key is read.
    fn must_be_read(&self, tracked: &Tracked) -> bool {
        let is_new = tracked.held.state == State::Claiming || tracked.is_unread;
        matches!(tracked.key, Known::Own(_)) && is_new && !self.is_read(tracked)
    }

    /// Reads the keys that a beat has confirmed, and those of blocks at the end of their time to settle.
    pub(super) fn confirm_reads(&mut self, _: &mut Turn<'_>) -> Step {
        let has_settled = |tracked: &Tracked| {
            let from = tracked.settles.and_then(|(_, from)| from);
            tracked.held.state == State::Settling && from.is_some_and(|from| tracked.read <= from)
        };
        let mut asked = self.all();
        asked.retain(|at| {
            let tracked = self.tracked(at).filter(|it| matches!(it.key, Known::Own(_)));
            tracked.is_some_and(|it| self.must_be_read(it) || has_settled(it))
        });
        let Some(realm) = asked.first().map(|at| at.realm.clone()) else { return Step::Rest };
        asked.retain(|at| at.realm == realm);
        asked.truncate(MOST_READ);
        let blocks = asked.iter().map(|at| at.block).collect();
        let node = self.setup.node.clone();
        let selection = Selection::Confirm { node, realm: realm.clone(), blocks };
        self.list(Purpose::Confirm(realm, asked), selection)
    }

    pub(super) fn on_confirmed(&mut self, realm: &Name, asked: &[At], outcome: Outcome<Answer>) {
        let Outcome::Done(Answer::Listed(listed)) = outcome else { return };
        let order = self.order;
        for at in asked {
            let noted =
                listed.iter().any(|stored| match (&stored.record.key, &stored.record.value) {
                    (Key::Conflict(of, block), Value::Conflict(by)) => {
                        of == realm && block.overlaps(at.block) && *by != self.setup.node
                    }
                    _ => false,
                });
            if let Some(tracked) = self.tracked_mut(at) {
                tracked.contest = Some((noted, order));
            }
            let key = Key::Block(realm.clone(), at.block);
            match listed.iter().find(|stored| stored.record.key == key) {
                Some(stored) => self.on_found(at, Some(stored.clone())),
                None => {
                    if let Some(tracked) = self.tracked_mut(at) {
                        tracked.key = Known::Missing;
                    }
                }
            }
        }
    }

    /// The key of a block was read.
    pub(super) fn on_found(&mut self, at: &At, found: Option<Stored>) {
        let Some(tracked) = self.tracked(at).cloned() else { return };
        let (known, order) = (self.known(&tracked.held, found), self.order);
        // Whether the take-over was done whose outcome is unknown.
        let known = match known {
            Known::Own(stored) if tracked.taken.is_some_and(|taken| !is_taken(&stored, taken)) => {
                Known::Earlier(stored)
            }
            known => known,
        };
        let was_own = matches!(tracked.key, Known::Own(_) | Known::Missing);
        if known == Known::Absent && was_own {
            self.doubt("a key of this node is gone");
        }
        let is_as_known = known == tracked.key;
        let Some(tracked) = self.tracked_mut(at) else { return };
        if matches!(known, Known::Own(_)) {
            tracked.read = order;
            tracked.is_unread |= !was_own && tracked.created.is_some();
        }
        if !is_as_known {
            tracked.known = order;
        }
        tracked.key = known;
    }

    /// A key was created or taken over, or not.
    pub(super) fn on_block_written(&mut self, at: &At, outcome: Outcome<Answer>) {
        let order = self.order;
        let is_lost = outcome == Outcome::Lost;
        if is_lost {
            self.note_lost(at);
        }
        let Some(network) = self.networks.get_mut(&at.network) else { return };
        let is_leased = network.is_leased(at.block);
        let Some(tracked) = network.blocks.get_mut(&at.block) else { return };
        let is_new = tracked.held.state == State::Claiming && tracked.key == Known::Absent;
        if is_lost && is_new && !tracked.is_on_disk && !is_leased {
            // Another node owns the key; or this node, by an earlier create whose outcome was unknown:
            // the list of its own keys then finds an orphan.
            network.blocks.remove(&at.block);
            return;
        }
        match outcome {
            Outcome::Done(Answer::Written(stored)) => {
                (tracked.key, tracked.known, tracked.is_unread) = (Known::Own(stored), order, true);
            }
            Outcome::Lost | Outcome::Unknown(_) | Outcome::Done(_) => {
                (tracked.key, tracked.known) = (Known::Unknown, order);
                self.baton.needs_list |= super::is_doubtful(&outcome);
            }
            _ => (), // it was not executed
        }
    }

    pub(super) fn on_block_deleted(&mut self, at: &At, outcome: &Outcome<Answer>) {
        let order = self.order;
        let known = match outcome {
            Outcome::Done(_) => Known::Absent,
            Outcome::Lost | Outcome::Unknown(_) => Known::Unknown,
            _ => return, // it was not executed
        };
        if known == Known::Absent
            && let Some(hint) = self.hints.realms.get_mut(&at.realm)
        {
            hint.claims.remove(&at.block);
        }
        self.baton.needs_list |= super::is_doubtful(outcome);
        if let Some(tracked) = self.tracked_mut(at) {
            (tracked.key, tracked.known) = (known, order);
        }
    }
}
