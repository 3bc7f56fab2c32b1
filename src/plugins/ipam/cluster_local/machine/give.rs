//! Returns free blocks: at once if another node wants them, after five minutes if they are not used.

use std::time::Duration;

use super::super::block::Block;
use super::super::held::{Held, State};
use super::super::store::{Answer, Claim, Key, Operation, Outcome, Record, Stored, Value, Want};
use super::network::{Gift, Known, Network, Tracked};
use super::{At, Machine, Mark, Purpose, Step, Turn, in_state};
use crate::cni::attachment::NetworkName;

/// How long more blocks stay free than `spare` before they are given back.
const IDLE: Duration = Duration::from_secs(300);
/// How long a pool keeps no free block after others wanted some.
const SCARCE: Duration = Duration::from_secs(600);
/// How many names without an attachment a node keeps of each set.
const MOST_IDLE: usize = 256;

impl Machine {
    /// Marks blocks that go back: network by network.
    pub(super) fn give(&mut self, turn: &mut Turn<'_>) -> Step {
        let networks: Vec<NetworkName> = self.networks.keys().cloned().collect();
        for name in networks {
            let mut going = self.idle_of(&name);
            going.extend(self.wanted_of(&name)); // of the same block, the gift counts
            if going.is_empty() {
                continue;
            }
            let Some(network) = self.networks.get_mut(&name) else { continue };
            let mut marks = vec![];
            for (block, gift) in &going {
                let Some(tracked) = network.blocks.get_mut(block) else { continue };
                tracked.gift.clone_from(gift);
                marks.push(Mark::Put(in_state(&tracked.held, State::Returning, turn.wall)));
            }
            let unleased = going.iter().map(|(block, _)| *block).collect();
            match self.mark(&name, marks, unleased) {
                Step::Rest => (),
                step => return step,
            }
        }
        Step::Rest
    }

    /// The blocks of a network that others want: for each want one as a gift, and what else is free goes
    /// back.
    fn wanted_of(&mut self, name: &NetworkName) -> Vec<(Block, Option<Gift>)> {
        let (node, now) = (self.setup.node.clone(), self.now);
        let Some(network) = self.networks.get(name) else { return vec![] };
        let mut going: Vec<(Block, Option<Gift>)> = vec![];
        let mut is_scarce = false;
        for (by, heard) in self.hints.wants_of_others(&node, now) {
            if heard.want.realm != network.realm {
                continue;
            }
            let mut free = network.free_for(name, &heard.want);
            let has_failed = |gift: &Gift| {
                let want = (heard.want.nonce, heard.want.renewal);
                gift.is_void && (gift.nonce, gift.renewal) == want
            };
            free.retain(|tracked| {
                let is_going = going.iter().any(|(block, _)| *block == tracked.held.block);
                !is_going && !tracked.gift.as_ref().is_some_and(has_failed)
            });
            is_scarce |= !heard.want.spans.is_empty() && network.meets_any(&heard.want);
            if heard.want.gifts.is_empty()
                && let Some(first) = free.first().map(|tracked| tracked.held.block)
            {
                let nonce = heard.want.nonce;
                let (node, renewal) = (by.clone(), heard.want.renewal);
                let (is_reserved, is_void) = (false, false);
                going.push((first, Some(Gift { node, nonce, renewal, is_reserved, is_void })));
            }
        }
        // Another network of this node waits: what is free goes back, and is claimed by that.
        if let Some(want) = self.want.as_ref().and_then(|want| want.of_other_network(name)) {
            let free = network.free_for(name, &want).first().map(|tracked| tracked.held.block);
            going.extend(free.filter(|_| want.realm == network.realm).map(|block| (block, None)));
        }
        if is_scarce && let Some(network) = self.networks.get_mut(name) {
            network.scarce_until = now + SCARCE;
        }
        going
    }

    /// The blocks of a network that nobody needs.
    fn idle_of(&mut self, name: &NetworkName) -> Vec<(Block, Option<Gift>)> {
        let now = self.now;
        let Some(network) = self.networks.get_mut(name) else { return vec![] };
        let is_scarce = network.scarce_until > now;
        let spare = if is_scarce { 0 } else { network.spare as usize };
        let free: Vec<Block> = network.free_blocks().map(|it| it.held.block).collect();
        let has_pool = |block: &Block| network.meets(*block);
        let mut excess: Vec<Block> =
            free.iter().filter(|block| !has_pool(block)).copied().collect();
        let mut beyond_spare = vec![];
        for (number, pool) in network.pools.iter().enumerate() {
            if network.requests.iter().any(|it| it.request.pool == number) {
                continue;
            }
            let of_pool = free.iter().filter(|block| pool.meets(**block));
            beyond_spare.extend(of_pool.skip(spare).copied());
        }
        let idle = network.idle_names().into_iter().map(|it| it.held.block);
        excess.extend(idle.filter(|block| !has_pool(block)));
        excess.extend(network.forgettable());
        network.idle_since = match network.idle_since {
            _ if beyond_spare.is_empty() => None,
            Some(since) => Some(since),
            None => Some(now),
        };
        if let Some(since) = network.idle_since {
            let due = if is_scarce { since } else { since + IDLE };
            if due <= now {
                excess.extend(beyond_spare);
            } else {
                self.by(due);
            }
        }
        excess.into_iter().map(|block| (block, None)).collect()
    }

    /// Gives or deletes the key of a block that goes back.
    pub(super) fn return_block(
        &mut self,
        at: &At,
        of: &Tracked,
        seen: Stored,
        turn: &mut Turn<'_>,
    ) -> Step {
        let Some(gift) = of.gift.clone() else {
            return self.send(Purpose::DeleteBlock(at.clone()), Operation::Delete(seen));
        };
        if gift.is_void {
            return self.change(at, State::Active, turn);
        }
        let heard = self.hints.wants.get(&gift.node).filter(|it| it.want.nonce == gift.nonce);
        let heard = heard.filter(|it| gift.is_reserved || it.want.gifts.is_empty()).cloned();
        let Some(heard) = heard else {
            if let Some(tracked) = self.tracked_mut(at) {
                tracked.void_gift();
            }
            return Step::Again;
        };
        if !gift.is_reserved {
            let key = Key::Want(gift.node);
            let value = Value::Want(Want { gifts: vec![at.block], ..heard.want });
            let operation = Operation::Update(Record { key, value }, heard.stored);
            return self.send(Purpose::Reserve(at.clone()), operation);
        }
        let Want { uid, nonce, name, .. } = heard.want;
        let claim = Claim { node: gift.node, uid, token: nonce, taken: None, name };
        let record = Record { key: seen.record.key.clone(), value: Value::Claim(claim) };
        self.send(Purpose::Give(at.clone()), Operation::Update(record, seen))
    }

    pub(super) fn on_reserved(&mut self, at: &At, outcome: Outcome<Answer>) {
        let now = self.now;
        let written = match outcome {
            Outcome::Done(Answer::Written(stored)) => Some(stored),
            _ => None,
        };
        if let Some(stored) = &written
            && let (Key::Want(node), Value::Want(want)) = (&stored.record.key, &stored.record.value)
            && let Some(heard) = self.hints.wants.get_mut(node)
        {
            (heard.want, heard.stored, heard.at) = (want.clone(), stored.clone(), now);
        }
        let Some(tracked) = self.tracked_mut(at) else { return };
        match (&mut tracked.gift, written) {
            (Some(gift), Some(_)) => gift.is_reserved = true,
            _ => tracked.void_gift(),
        }
    }

    pub(super) fn on_given(&mut self, at: &At, outcome: &Outcome<Answer>) {
        let order = self.order;
        let Some(tracked) = self.tracked_mut(at) else { return };
        match outcome {
            Outcome::Done(_) => (tracked.key, tracked.known) = (Known::Foreign, order),
            Outcome::Lost | Outcome::Unknown(_) => {
                // The store may still execute the update: this node must not use the block again.
                (tracked.key, tracked.known, tracked.gift) = (Known::Unknown, order, None);
                self.baton.needs_list |= super::is_doubtful(outcome);
            }
            _ => (), // it was not executed
        }
    }
}

impl Network {
    /// The blocks without a lease, with which nothing is going on.
    fn free_blocks(&self) -> impl Iterator<Item = &Tracked> {
        let is_free =
            |tracked: &&Tracked| tracked.is_at_rest() && !self.is_leased(tracked.held.block);
        self.blocks.values().filter(is_free).filter(|tracked| tracked.held.name.is_none())
    }

    /// The addresses of names without a lease, those used longest ago first.
    pub(super) fn idle_names(&self) -> Vec<&Tracked> {
        let is_idle = |tracked: &&Tracked| {
            tracked.is_at_rest()
                && tracked.held.name.is_some()
                && !self.is_leased(tracked.held.block)
                && !self.is_waited_for(&tracked.held)
        };
        let mut idle: Vec<&Tracked> = self.blocks.values().filter(is_idle).collect();
        idle.sort_by_key(|tracked| tracked.held.since);
        idle
    }

    /// The idle names that are too many of their set.
    fn forgettable(&self) -> Vec<Block> {
        let idle = self.idle_names();
        let of_pool = self.names.iter().flat_map(|pool| {
            let of_pool: Vec<Block> =
                idle.iter().map(|it| it.held.block).filter(|block| pool.meets(*block)).collect();
            let excess = of_pool.len().saturating_sub(MOST_IDLE);
            of_pool.into_iter().take(excess)
        });
        of_pool.collect()
    }

    /// Whether a want may get something of this network, now or later.
    pub(super) fn is_wanted(&self, name: &NetworkName, want: &Want) -> bool {
        let has_name = |tracked: &Tracked| {
            let own = tracked.held.name.as_ref().map(|own| super::names::full(name, own));
            own.is_some() && own == want.name
        };
        want.realm == self.realm && (self.meets_any(want) || self.blocks.values().any(has_name))
    }

    fn meets_any(&self, want: &Want) -> bool {
        self.blocks.keys().any(|block| want.spans.iter().any(|span| span.meets(*block)))
    }

    /// What a want may get of this network, named `name`: nothing that its own ADDs wait for.
    fn free_for(&self, name: &NetworkName, want: &Want) -> Vec<&Tracked> {
        let meets = |held: &Held| want.spans.iter().any(|span| span.meets(held.block));
        let full = |held: &Held| held.name.as_ref().map(|own| super::names::full(name, own));
        let is_needed = |held: &Held| self.is_waited_for(held);
        match &want.name {
            Some(wanted) => {
                let idle = self.idle_names();
                let own = idle.iter().copied().filter(|it| full(&it.held).as_ref() == Some(wanted));
                let any = idle.iter().copied().filter(|it| meets(&it.held));
                own.chain(any).collect()
            }
            None => {
                let idle = self.idle_names();
                let free = self.free_blocks().filter(|it| meets(&it.held) && !is_needed(&it.held));
                free.chain(idle.into_iter().filter(|it| meets(&it.held))).collect()
            }
        }
    }
}
