//! An ADD that found nothing free: it waits while a block is claimed for it.
//!
//! The intent is on the disk before the claim is sent. A pool that the store says is full is wanted
//! ([`want`](super::want)) as long as an ADD waits.

use std::net::IpAddr;
use std::time::Duration;

use super::super::block::Block;
use super::super::engine::Name;
use super::super::held::{Held, State};
use super::super::pool::Pool;
use super::contact::Contact;
use super::interface::{Action, Mark, Reply, Request, RequestId, Turn};
use super::network::{Network, Tracked, Waiting};
use super::{At, Machine, token};
use crate::sys::clock::Moment;

/// The pause after a lost race, so that two nodes do not meet at each candidate.
const AFTER_RACE: Duration = Duration::from_millis(5);
/// The pause after a refusal, as by a store without space: the next claim is refused as well.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// The pause before a full pool is listed again without a hint.
pub(super) const AFTER_FULL: Duration = Duration::from_millis(500);

impl Machine {
    pub(super) fn on_exhausted(&mut self, request: Request) {
        let since = self.last_id;
        if let Some(network) = self.networks.get_mut(&request.network) {
            network.requests.push(Waiting::new(request, since));
        }
    }

    pub(super) fn forget_request(&mut self, id: RequestId) {
        for network in self.networks.values_mut() {
            network.requests.retain(|waiting| waiting.request.id != id);
        }
    }

    /// Answers the ADDs that can be answered, and claims for the others.
    pub(super) fn serve_requests(&mut self, turn: &mut Turn<'_>) {
        let waited = self.networks.iter().filter(|(_, network)| !network.requests.is_empty());
        let names: Vec<Name> = waited.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.answer_served(&name, turn);
            self.answer_late(&name, turn);
            self.claim_for(&name, turn);
            self.claim_for_names(&name, turn);
        }
    }

    /// Tells as many ADDs as addresses are free to look again.
    fn answer_served(&mut self, name: &Name, turn: &mut Turn<'_>) {
        let boot = &self.setup.boot;
        let usable = |network: &&mut Network| network.is_usable(boot, turn.now);
        let Some(network) = self.networks.get_mut(name).filter(usable) else { return };
        let mut free: Vec<u64> =
            (0..network.pools.len()).map(|pool| network.free_of(pool)).collect();
        let waiting = std::mem::take(&mut network.requests);
        for waiting in waiting {
            let free = free.get_mut(waiting.request.pool);
            if network.serves(&waiting.request, free) {
                reply(&waiting.request, Reply::LookAgain, turn);
            } else {
                network.requests.push(waiting);
            }
        }
    }

    /// Answers those whose patience has ended.
    fn answer_late(&mut self, name: &Name, turn: &mut Turn<'_>) {
        let Some(network) = self.networks.get(name) else { return };
        let late = network.requests.iter().filter(|waiting| waiting.request.until <= turn.now);
        let late: Vec<Waiting> = late.cloned().collect();
        for waiting in &late {
            let because = self.reason(waiting);
            reply(&waiting.request, because, turn);
            self.forget_request(waiting.request.id);
        }
    }

    /// Why an ADD got nothing.
    fn reason(&self, waiting: &Waiting) -> Reply {
        let settles = |network: &Network| {
            network.blocks.values().any(|tracked| tracked.held.state == State::Settling)
        };
        match &self.relation.contact {
            Contact::Away { reason, .. } => Reply::Away(reason.clone()),
            Contact::Fenced { .. } => Reply::Fenced,
            Contact::NameTaken { .. } => Reply::NameTaken,
            _ if self.networks.get(&waiting.request.network).is_some_and(settles) => {
                Reply::Settling
            }
            Contact::Meeting | Contact::Verifying(_) => {
                Reply::Away("the daemon still compares the blocks of this node with it".to_owned())
            }
            Contact::Together => {
                match (&self.relation.refused, &waiting.contest, &waiting.holder) {
                    (Some(reason), ..) => Reply::Away(reason.clone()),
                    (None, Some(contest), _) => Reply::Contested(contest.clone()),
                    (None, None, Some(holder)) => Reply::Elsewhere(holder.clone()),
                    (None, None, None) if waiting.is_full => Reply::Full,
                    // The contact may be about to be lost: nothing says that the pool is full.
                    (None, None, None) => Reply::Away("it has not answered in time".to_owned()),
                }
            }
        }
    }

    /// Claims a block for the first ADD of each pool that has no claim going on.
    fn claim_for(&mut self, name: &Name, turn: &mut Turn<'_>) {
        let Some(network) = self.networks.get(name) else { return };
        if !self.may_claim_for(network) || network.pause > turn.now {
            return;
        }
        let firsts = (0..network.pools.len()).filter_map(|pool| network.first_unserved(pool));
        let firsts: Vec<Waiting> = firsts.cloned().collect();
        for waiting in firsts {
            self.choose(&waiting, turn);
        }
    }

    /// Whether claims are useful: no plugin allocates from blocks that are not confirmed.
    pub(super) fn may_claim_for(&self, network: &Network) -> bool {
        self.relation.contact == Contact::Together && network.is_usable(&self.setup.boot, self.now)
    }

    fn choose(&mut self, waiting: &Waiting, turn: &mut Turn<'_>) {
        let Request { network: name, address, .. } = &waiting.request;
        let Some(network) = self.networks.get(name) else { return };
        let realm_name = network.realm.clone();
        let (Some(pool), Some(realm)) =
            (network.pool_of(&waiting.request), self.realms.get(&realm_name))
        else {
            return;
        };
        let candidate = realm
            .candidate(pool, *address, turn.random)
            .filter(|block| !self.tracks(*block, &realm_name));
        let (is_fresh, is_asked) = (realm.listed > waiting.since, realm.asked.is_some());
        match candidate {
            Some(block) if realm.listed > 0 => {
                self.intend(&At { network: name.clone(), block }, None, turn)
            }
            None if is_fresh => self.on_full(&waiting.request, turn),
            _ if !is_asked => self.list(&realm_name, turn),
            _ => (), // it is being listed
        }
    }

    /// Whether a block overlaps one of this node's in the realm.
    pub(super) fn tracks(&self, block: Block, realm: &Name) -> bool {
        let networks = self.networks.values().filter(|network| network.realm == *realm);
        let mut blocks =
            networks.flat_map(|network| network.blocks.keys().chain(network.origins.keys()));
        blocks.any(|own| own.overlaps(block))
    }

    /// Writes the intent; the claim is sent once it is on the disk.
    pub(super) fn intend(&mut self, at: &At, sticky: Option<String>, turn: &mut Turn<'_>) {
        let held = Held {
            block: at.block,
            token: token(turn),
            mod_revision: 0,
            state: State::Claiming,
            since: turn.wall,
            incarnation: self.file.incarnation,
            of: None,
            sticky,
        };
        self.mark(&at.network, vec![Mark::Put(held)], vec![], turn);
    }

    /// A pool has nothing free in the store: it is wanted, and listed again later.
    fn on_full(&mut self, request: &Request, turn: &mut Turn<'_>) {
        let since = self.last_id;
        let pause = turn.after(AFTER_FULL);
        let Some(network) = self.networks.get_mut(&request.network) else { return };
        network.pause = pause;
        let waiting = network.requests.iter_mut().filter(|waiting| waiting.request.name.is_none());
        for waiting in waiting.filter(|waiting| waiting.request.pool == request.pool) {
            waiting.is_full = true;
            waiting.since = since;
        }
    }

    /// A claim was lost or refused: the next candidate is tried after a moment.
    pub(super) fn pause_claims(&mut self, at: &At, turn: &mut Turn<'_>) {
        let is_claim =
            self.tracked(at).is_some_and(|tracked| tracked.held.state == State::Claiming);
        let is_refused = self.relation.refused.is_some();
        let pause = if is_refused { AFTER_REFUSAL } else { turn.random.below(AFTER_RACE) };
        let until: Moment = turn.now + pause;
        if let Some(network) = self.networks.get_mut(&at.network).filter(|_| is_claim) {
            network.pause = until;
        }
    }
}

impl Network {
    /// How many addresses of a pool are free in active blocks.
    pub fn free_of(&self, pool: usize) -> u64 {
        let Some(pool) = self.pools.get(pool) else { return 0 };
        let is_for_any =
            |tracked: &&Tracked| is_allocated_from(tracked) && tracked.held.sticky.is_none();
        let active = self.blocks.values().filter(is_for_any);
        active.map(|tracked| self.free_in(pool, tracked.held.block)).fold(0, u64::saturating_add)
    }

    /// Whether what an ADD needs is in active blocks, of which so many addresses of its pool are free.
    fn serves(&self, request: &Request, free: Option<&mut u64>) -> bool {
        let is_free = match (&request.name, request.address) {
            (Some(name), _) => return self.has_name(name, request.pool),
            (None, Some(ip)) => self.has_free(ip),
            (None, None) => free.as_ref().is_some_and(|free| **free > 0),
        };
        if let Some(free) = free.filter(|_| is_free) {
            *free = free.saturating_sub(1);
        }
        is_free
    }

    fn has_free(&self, ip: IpAddr) -> bool {
        let is_held = |tracked: &Tracked| {
            is_allocated_from(tracked)
                && tracked.held.sticky.is_none()
                && tracked.held.block.contains(ip)
        };
        !self.leases.contains(&ip) && self.blocks.values().any(is_held)
    }

    /// The pool that the address of an ADD is in.
    pub(super) fn pool_of(&self, request: &Request) -> Option<&Pool> {
        let names = self.names.get(request.pool);
        let is_for_names = |pool: &&Pool| {
            request.name.is_some() || request.address.is_some_and(|ip| pool.allocates(ip))
        };
        names.filter(is_for_names).or_else(|| self.pools.get(request.pool))
    }

    /// The first ADD of a pool for which no claim is going on.
    fn first_unserved(&self, pool: usize) -> Option<&Waiting> {
        let configured = self.pools.get(pool)?;
        let comes = |tracked: &Tracked| {
            matches!(tracked.held.state, State::Claiming | State::Settling)
                && tracked.held.sticky.is_none()
                && configured.meets(tracked.held.block)
        };
        let is_coming = self.blocks.values().any(comes);
        let mut waiting = self.requests.iter().filter(|waiting| waiting.request.name.is_none());
        waiting.find(|waiting| waiting.request.pool == pool && !is_coming)
    }
}

/// Whether plugins allocate from the block now.
pub(super) fn is_allocated_from(tracked: &Tracked) -> bool {
    tracked.held.state == State::Active && tracked.is_written
}

fn reply(request: &Request, reply: Reply, turn: &mut Turn<'_>) {
    turn.actions.push(Action::Reply { request: request.id, reply });
}
