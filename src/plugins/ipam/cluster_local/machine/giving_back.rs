//! Giving back what this node does not need: blocks that were free for minutes, and what others want.

use super::super::block::Block;
use super::super::engine::Name;
use super::super::held::{Held, State};
use super::super::pool::{Pool, Span};
use super::super::sticky::MOST_IDLE;
use super::contact::Contact;
use super::interface::{Mark, Turn};
use super::network::{IDLE, Network, Tracked};
use super::{At, Machine};

/// How many names are given back at once.
const AT_ONCE: usize = 16;

impl Machine {
    /// Gives back what is due, while the store answers.
    pub(super) fn give_back(&mut self, turn: &mut Turn<'_>) {
        if self.relation.contact != Contact::Together {
            return;
        }
        let names: Vec<Name> = self.networks.keys().cloned().collect();
        for name in names {
            self.give_back_idle(&name, turn);
        }
        let realms: Vec<Name> = self.realms.keys().cloned().collect();
        for realm in realms {
            if self.is_round(&realm, turn) {
                self.serve_wants(&realm, turn);
            }
        }
    }

    /// Gives back the blocks beyond the spare ones, once they have been free for long.
    fn give_back_idle(&mut self, name: &Name, turn: &mut Turn<'_>) {
        let Some(network) = self.networks.get_mut(name) else { return };
        let names = network.surplus_names();
        let surplus = network.surplus();
        let since =
            if surplus.is_empty() { None } else { Some(network.idle_since.unwrap_or(turn.now)) };
        network.idle_since = since;
        if since.is_some_and(|since| since + IDLE <= turn.now) {
            network.idle_since = None;
            for block in surplus {
                self.give_up(&At { network: name.clone(), block }, turn);
            }
        }
        for block in names {
            self.give_up(&At { network: name.clone(), block }, turn);
        }
    }

    /// Marks a free block; it is released once that is on the disk.
    pub(super) fn give_up(&mut self, at: &At, turn: &mut Turn<'_>) {
        let Some(tracked) = self.tracked(at).filter(|tracked| tracked.is_idle()) else { return };
        let held = Held { state: State::Returning, since: turn.wall, ..tracked.held.clone() };
        self.mark(&at.network, vec![Mark::Put(held)], vec![at.block], turn);
    }

    /// Gives back one block, or a part of one, for each node that wants some.
    fn serve_wants(&mut self, realm: &Name, turn: &mut Turn<'_>) {
        let wants = self.realms.get(realm).map(|realm| realm.wants.clone()).unwrap_or_default();
        for (node, (want, _)) in &wants {
            if *node != self.setup.node {
                self.give_names(realm, &want.names, turn); // its own is of names that it had not
            }
            let networks = self.networks.iter().filter(|(_, network)| network.realm == *realm);
            let found = networks
                .filter_map(|(name, network)| Some((name.clone(), network.to_give(&want.spans)?)));
            if let Some((network, (block, part))) =
                found.min_by_key(|(_, (block, part))| block != part)
            {
                let at = At { network, block };
                if block == part { self.give_up(&at, turn) } else { self.split(&at, part, turn) }
            }
        }
    }
}

impl Network {
    /// The free blocks beyond the spare ones of each pool, the smallest first.
    fn surplus(&self) -> Vec<Block> {
        let free = self.blocks.values().filter(|tracked| self.is_free(tracked));
        let free = free.filter(|tracked| !self.is_for_name(tracked));
        let mut free: Vec<Block> = free.map(|tracked| tracked.held.block).collect();
        free.sort_by_key(|block| std::cmp::Reverse(block.length()));
        let kept: Vec<&Block> = self
            .pools
            .iter()
            .flat_map(|pool| {
                let of_pool = free.iter().rev().filter(|block| pool.meets(**block));
                of_pool.take(self.spare as usize)
            })
            .collect();
        free.iter().filter(|block| !kept.contains(block)).copied().collect()
    }

    /// The addresses of names beyond those that are kept, at most some at a time: those whose names
    /// were used longest ago. The names keep them in the store, for any node.
    fn surplus_names(&self) -> Vec<Block> {
        let of_pool = |pool: &Pool| {
            let idle = self.blocks.values().filter(|tracked| {
                let name = tracked.held.sticky.as_deref();
                self.is_free(tracked)
                    && pool.meets(tracked.held.block)
                    && name.is_some_and(|name| !self.waits_for(name))
            });
            let mut idle: Vec<(u64, Block)> =
                idle.map(|tracked| (tracked.held.since, tracked.held.block)).collect();
            idle.sort_unstable();
            idle.truncate(idle.len().saturating_sub(MOST_IDLE).min(AT_ONCE));
            idle.into_iter().map(|(_, block)| block).collect::<Vec<Block>>()
        };
        self.names.iter().flat_map(of_pool).collect()
    }

    pub(super) fn is_free(&self, tracked: &Tracked) -> bool {
        tracked.is_idle() && self.leases_in(tracked.held.block) == 0
    }

    /// A block of this network that others want, and the part of it that can be given: the largest
    /// block that is free, or else the largest free part.
    fn to_give(&self, wanted: &[Span]) -> Option<(Block, Block)> {
        let idle = self
            .blocks
            .values()
            .filter(|tracked| tracked.is_idle() && tracked.held.sticky.is_none())
            .filter(|tracked| !self.is_waited_for(tracked.held.block));
        let parts = idle.filter_map(|tracked| {
            let block = tracked.held.block;
            Some((block, self.largest_free(block, wanted)?))
        });
        parts.min_by_key(|(block, part)| (block != part, part.length()))
    }

    /// Whether an ADD of this node waits for addresses of the block.
    fn is_waited_for(&self, block: Block) -> bool {
        let mut waiting = self.requests.iter().filter(|waiting| waiting.request.name.is_none());
        waiting.any(|waiting| match waiting.request.address {
            Some(ip) => block.contains(ip),
            None => self.pools.get(waiting.request.pool).is_some_and(|pool| pool.meets(block)),
        })
    }

    /// The largest part of a block, or all of it, that has no lease and an address that is wanted.
    fn largest_free(&self, block: Block, wanted: &[Span]) -> Option<Block> {
        if !wanted.iter().any(|span| span.meets(block)) {
            return None;
        }
        if self.leases_in(block) == 0 {
            return Some(block);
        }
        let parts = block.halves()?.into_iter().filter_map(|half| self.largest_free(half, wanted));
        parts.min_by_key(|part| part.length())
    }
}
