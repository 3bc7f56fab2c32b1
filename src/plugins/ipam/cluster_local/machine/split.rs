//! A split: others want addresses of a block that is used in part. One transaction replaces its key by
//! those of the parts that are kept.
//!
//! The parts are on the disk first, each with the block that it is a part of: nothing is allocated from
//! the part that is given up, and after a crash the same transaction is tried again.

use super::super::block::Block;
use super::super::engine::{Answer, Claimed, Name, Operation, Seen};
use super::super::held::{Held, Origin, State};
use super::contact::Contact;
use super::interface::{Mark, Turn};
use super::network::{Key, Network, Step};
use super::purpose::{Purpose, Result};
use super::{At, Machine, token};

impl Machine {
    /// Marks the parts of a block, one of which is given up.
    pub(super) fn split(&mut self, at: &At, gone: Block, turn: &mut Turn<'_>) {
        let Some(tracked) = self.tracked(at).filter(|tracked| tracked.is_idle()) else { return };
        let Key::Own(mod_revision) = tracked.key else { return };
        let held = tracked.held.clone();
        let Held { block, token: old, incarnation, .. } = held;
        let origin = Origin { block, token: old, mod_revision, incarnation };
        let token = token(turn);
        let part = |block, state| {
            let held = Held {
                block,
                state,
                token,
                mod_revision: 0,
                since: turn.wall,
                of: Some(origin),
                ..held.clone()
            };
            Mark::Put(Held { incarnation: self.file.incarnation, ..held })
        };
        let kept = parts_without(block, gone).into_iter().map(|kept| part(kept, State::Active));
        let marks =
            [Mark::Forget(block)].into_iter().chain(kept).chain([part(gone, State::Returning)]);
        let marks = marks.collect();
        self.mark(&at.network, marks, vec![gone], turn);
    }

    /// Does what is due with each split.
    pub(super) fn pursue_splits(&mut self, turn: &mut Turn<'_>) {
        let mut due = vec![];
        for (name, network) in &self.networks {
            let is_listing = matches!(&self.relation.contact, Contact::Verifying(realms) if realms.contains(&network.realm));
            let open = network.origins.iter().filter(|(block, _)| !network.asking.contains(block));
            let open = open.filter(|(block, _)| {
                network.parts(**block).all(|part| part.step == Step::Rest && part.due <= turn.now)
            });
            if self.relation.may_act() && !is_listing {
                due.extend(open.map(|(block, key)| (name.clone(), *block, *key)));
            }
        }
        for (name, block, key) in due {
            self.pursue_split(&name, block, key, turn);
        }
    }

    fn pursue_split(&mut self, name: &Name, block: Block, key: Key, turn: &mut Turn<'_>) {
        let Some(network) = self.networks.get_mut(name) else { return };
        let realm = network.realm.clone();
        match key {
            Key::Own(revision) => {
                let Some(operation) = self.replacement(name, block, revision) else { return };
                self.ask_split(name, block, operation, turn);
            }
            Key::Doubt => self.ask_split(name, block, Operation::ReadBlock { realm, block }, turn),
            // The parts' own keys are there, or the store was restored: each is resolved by itself.
            Key::Absent | Key::Foreign | Key::Unsent => self.detach(name, block, turn),
        }
    }

    fn ask_split(&mut self, name: &Name, block: Block, operation: Operation, turn: &mut Turn<'_>) {
        if let Some(network) = self.networks.get_mut(name) {
            network.asking.insert(block);
        }
        self.send(Purpose::Split(name.clone(), block), operation, turn);
    }

    fn replacement(&self, name: &Name, block: Block, revision: u64) -> Option<Operation> {
        let network = self.networks.get(name)?;
        let first = network.parts(block).next()?;
        let origin = first.held.of?;
        let old = Claimed {
            owner: self.identity_of(origin.incarnation),
            token: origin.token,
            sticky: None,
            vacant: false,
        };
        let kept = network.parts(block).filter(|part| part.held.state == State::Active);
        Some(Operation::Replace {
            realm: network.realm.clone(),
            seen: Seen { block, claimed: old, revision },
            kept: kept.map(|part| part.held.block).collect(),
            claimed: self.claimed(name, &first.held),
            ground: self.ground(),
        })
    }

    /// An operation on a split block has ended.
    pub(super) fn on_split(&mut self, name: &Name, block: Block, result: Result) {
        let uid = self.setup.uid;
        let known = self.last_id;
        let Some(network) = self.networks.get_mut(name) else { return };
        network.asking.remove(&block);
        let Some(origin) = network.parts(block).find_map(|part| part.held.of) else { return };
        let key = match result {
            Result::Done(revision, Answer::Written) => {
                network.learn_of_parts(block, revision, known);
                Key::Absent
            }
            Result::Done(_, Answer::Realm(state)) => {
                super::verify::key_of(&state.blocks, block, (origin.token, uid))
            }
            Result::Undone => Key::Doubt,
            Result::Done(..) | Result::Lost(..) | Result::Unknown => Key::Doubt,
        };
        network.origins.insert(block, key);
    }

    /// The parts stand by themselves; the part that was given up is forgotten if its key is known to
    /// be gone.
    fn detach(&mut self, name: &Name, block: Block, turn: &mut Turn<'_>) {
        let Some(network) = self.networks.get(name) else { return };
        let marks = network.parts(block).map(|part| match (part.held.state, part.key) {
            (State::Returning, Key::Absent) => Mark::Forget(part.held.block),
            (_, Key::Own(mod_revision)) => {
                Mark::Put(Held { of: None, mod_revision, ..part.held.clone() })
            }
            _ => Mark::Put(Held { of: None, ..part.held.clone() }),
        });
        let marks = marks.collect();
        if let Some(network) = self.networks.get_mut(name) {
            network.doubt_parts(block);
        }
        self.mark(name, marks, vec![], turn);
    }
}

impl Network {
    /// The parts of a block that is being split.
    pub(super) fn parts(&self, origin: Block) -> impl Iterator<Item = &super::network::Tracked> {
        let is_part = move |tracked: &&super::network::Tracked| {
            tracked.held.of.is_some_and(|of| of.block == origin)
        };
        self.blocks.values().filter(is_part)
    }

    /// What is known of the parts' keys is not, unless the split was done.
    fn doubt_parts(&mut self, origin: Block) {
        let parts = self
            .blocks
            .values_mut()
            .filter(|part| part.held.of.is_some_and(|of| of.block == origin));
        for part in parts {
            let is_known = matches!((part.held.state, part.key), (State::Active, Key::Own(_)));
            part.key = if is_known { part.key } else { Key::Doubt };
        }
    }

    /// The store has the keys of the kept parts since this revision.
    fn learn_of_parts(&mut self, origin: Block, revision: u64, known: u64) {
        for part in self.blocks.values_mut() {
            if part.held.of.is_some_and(|of| of.block == origin) {
                part.known = known;
                part.key =
                    if part.held.state == State::Active { Key::Own(revision) } else { Key::Absent };
            }
        }
    }
}

/// The largest blocks that a block consists of beside one of its parts.
fn parts_without(block: Block, gone: Block) -> Vec<Block> {
    if block == gone || !block.overlaps(gone) {
        return if block == gone { vec![] } else { vec![block] };
    }
    block.halves().into_iter().flatten().flat_map(|half| parts_without(half, gone)).collect()
}
