//! ADDs that found nothing free: blocks are claimed for them, in batches. A candidate is chosen by
//! hints, at random, in chunks first that are divided already.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::block::Block;
use super::super::held::{Held, State};
use super::super::name::Name;
use super::super::pool::Pool;
use super::super::store::{Answer, Outcome, Selection};
use super::hints::RealmHint;
use super::interface::{Reply, Standing};
use super::network::{Known, Network, Tracked, Waiting};
use super::{At, Machine, Purpose, Step, Turn};
use crate::cni::attachment::NetworkName;
use crate::sys::clock::Moment;

/// The most claims of one batch, which one beat and one read confirm.
const MOST_AT_ONCE: usize = 8;
/// How old a list may be that shows nothing to claim.
const FRESH: Duration = Duration::from_secs(1);
/// How old it may be once it has shown so: as old as that is, within these limits.
const SOONEST: Duration = Duration::from_millis(250);
const LATEST: Duration = Duration::from_secs(3);
/// A list of this age is made again after a claim that was lost.
const OLD: Duration = Duration::from_secs(30);
/// One that has cost another claim before is made again at this age.
const OLD_AT_ONCE: Duration = Duration::from_secs(1);
/// How many blocks of a pool are looked at one by one.
const MOST_COUNTED: u128 = 16_384;
/// How many are tried of a larger one.
const MOST_TRIED: usize = 64;

/// A block to claim.
pub(super) struct Candidate {
    pub(super) network: NetworkName,
    pub(super) block: Block,
    pub(super) name: Option<String>,
}

impl Machine {
    /// Begins a batch of claims, if ADDs wait and none is going on.
    pub(super) fn claim(&mut self, turn: &mut Turn<'_>) -> Step {
        if !self.is_confirmed() {
            return Step::Rest;
        }
        let mut batch = vec![];
        let networks = self.networks.iter().filter(|(_, network)| !network.is_claiming());
        let networks: Vec<NetworkName> = networks.map(|(name, _)| name.clone()).collect();
        for network in &networks {
            for look in [Machine::claim_any, Machine::claim_asked] {
                match look(self, network, &mut batch, turn) {
                    Step::Rest => (),
                    step => return step,
                }
            }
        }
        batch.truncate(MOST_AT_ONCE);
        if batch.is_empty() {
            return Step::Rest;
        }
        self.begin_session(turn);
        for Candidate { network, block, name } in batch {
            let (token, since) = (turn.token(), turn.wall);
            let state = State::Claiming;
            self.track(&network, Held { block, token, state, since, contested: false, name });
        }
        Step::Again
    }

    /// Adds a block that is not on the disk, and that no claim was sent of.
    pub(super) fn track(&mut self, network: &NetworkName, held: Held) {
        let known = self.order;
        if let Some(network) = self.networks.get_mut(network) {
            let tracked = Tracked { key: Known::Absent, known, ..Tracked::new(held, false) };
            network.blocks.insert(tracked.held.block, tracked);
        }
    }

    /// Blocks for the ADDs of each pool that any address will do for.
    fn claim_any(
        &mut self,
        name: &NetworkName,
        batch: &mut Vec<Candidate>,
        turn: &mut Turn<'_>,
    ) -> Step {
        // What settles comes too late if a new claim would be usable at once.
        let settles = self.baton.settle_until > self.now;
        for number in 0..self.networks[name].pools.len() {
            let now = self.now;
            let Some(network) = self.networks.get_mut(name) else { break };
            let lacking = network.lacking(number, now, settles);
            if lacking == 0 {
                continue;
            }
            let count = network.batch(number, lacking, now);
            let (realm, pool) = (network.realm.clone(), network.pools[number].clone());
            let found = self.candidates(&realm, &pool, count, batch, turn);
            if found.is_empty() {
                let is_for_any =
                    |it: &Waiting| it.request.pool == number && it.request.is_for_any();
                match self.note_full(name, &realm, &is_for_any) {
                    Step::Rest => continue,
                    step => return step,
                }
            }
            let network = name.clone();
            let new = |block| Candidate { network: network.clone(), block, name: None };
            batch.extend(found.into_iter().map(new));
        }
        Step::Rest
    }

    /// Blocks for the ADDs that need one address, or that of a name.
    fn claim_asked(
        &mut self,
        name: &NetworkName,
        batch: &mut Vec<Candidate>,
        turn: &mut Turn<'_>,
    ) -> Step {
        for index in 0..self.networks[name].requests.len() {
            let request = self.networks[name].requests[index].request.clone();
            let step = match (request.address, &request.name) {
                (Some(ip), _) => self.claim_address(name, ip, batch),
                (None, Some(_)) => self.claim_name(name, index, batch, turn),
                (None, None) => Step::Rest,
            };
            match step {
                Step::Rest => (),
                step => return step,
            }
        }
        Step::Rest
    }

    fn claim_address(
        &mut self,
        name: &NetworkName,
        ip: std::net::IpAddr,
        batch: &mut Vec<Candidate>,
    ) -> Step {
        let network = &self.networks[name];
        let realm = network.realm.clone();
        let mut pools = network.pools.iter().chain(&network.names);
        let Some(pool) = pools.find(|pool| pool.allocates(ip)).cloned() else { return Step::Rest };
        let Some(hint) = self.hints.realms.get(&realm) else { return self.list_realm(&realm) };
        let block = pool.block_of(ip).map(|block| hint.as_divided(block, ip));
        let Some(block) = block else { return Step::Rest };
        if network.blocks.values().any(|tracked| tracked.held.block.overlaps(block))
            || batch.iter().any(|other| other.block.overlaps(block))
        {
            return Step::Rest; // it is coming
        }
        if self.may_claim(&realm, block) {
            batch.push(Candidate { network: name.clone(), block, name: None });
            return Step::Rest;
        }
        self.note_full(name, &realm, &|waiting| waiting.request.address == Some(ip))
    }

    /// Whether a block may be free, by hints, and is not this node's already.
    pub(super) fn may_claim(&self, realm: &Name, block: Block) -> bool {
        let may = self.hints.realms.get(realm).is_some_and(|hint| hint.may_claim(block));
        let size = self.divisions.get(&(realm.clone(), block.chunk())).copied().flatten();
        let is_fitting =
            size.is_none_or(|size| u64::from(size) == block.size() && block != block.chunk());
        may && is_fitting
            && !self.meets_own(realm, block)
            && !self.hints.is_contested(realm, block, &self.setup.node)
    }

    /// Notes that nothing is left to claim for these ADDs, once a recent list has shown so.
    pub(super) fn note_full(
        &mut self,
        name: &NetworkName,
        realm: &Name,
        which: &dyn Fn(&Waiting) -> bool,
    ) -> Step {
        let now = self.now;
        let listed = self.hints.realms.get(realm).map(|hint| hint.listed);
        let Some(network) = self.networks.get_mut(name) else { return Step::Rest };
        let waiting = network.requests.iter_mut().filter(|waiting| which(waiting));
        let full = waiting.filter_map(|waiting| waiting.full).min();
        let age = |listed: Moment, full: Moment| listed.saturating_sub(full).clamp(SOONEST, LATEST);
        let due = listed.map(|at| at + full.map_or(FRESH, |full| age(at, full)));
        match due.filter(|due| *due > now) {
            Some(due) => {
                for waiting in network.requests.iter_mut().filter(|waiting| which(waiting)) {
                    waiting.full.get_or_insert(now);
                }
                self.by(if full.is_none() { now + SOONEST } else { due });
                Step::Rest
            }
            None => self.list_realm(realm),
        }
    }

    pub(super) fn list_realm(&mut self, realm: &Name) -> Step {
        self.list(Purpose::ListRealm(realm.clone()), Selection::Realm(realm.clone()))
    }

    pub(super) fn on_realm(&mut self, realm: Name, outcome: Outcome<Answer>) {
        if let Outcome::Done(Answer::Listed(listed)) = outcome {
            // A chunk that one node had as a whole may be free now.
            self.divisions.retain(|(of, _), size| *of != realm || *size != Some(0));
            self.hints.realms.insert(realm, RealmHint::new(listed, self.now));
        }
    }

    /// A block was tried in vain: not again before the next list.
    pub(super) fn note_lost(&mut self, at: &At) {
        let now = self.now;
        let hint = self.hints.realms.get_mut(&at.realm);
        // A list that has cost two claims is stale, however young it is.
        let limit = |hint: &RealmHint| if hint.lost.is_empty() { OLD } else { OLD_AT_ONCE };
        match hint.filter(|hint| hint.listed + limit(hint) > now) {
            Some(hint) => drop(hint.lost.insert(at.block)),
            _ => drop(self.hints.realms.remove(&at.realm)),
        }
    }

    /// Blocks of a pool that may be free.
    pub(super) fn candidates(
        &self,
        realm: &Name,
        pool: &Pool,
        count: usize,
        batch: &[Candidate],
        turn: &mut Turn<'_>,
    ) -> Vec<Block> {
        let Some(hint) = self.hints.realms.get(realm) else { return vec![] };
        let is_free = |block: &Block| {
            pool.meets(*block)
                && self.may_claim(realm, *block)
                && !batch.iter().any(|other| other.block.overlaps(*block))
        };
        let size = pool.block(0).map_or(1, Block::size);
        let fits = |chunk: &Block, of: u8| u64::from(of) == size && pool.meets(*chunk);
        let known = self.divisions.iter().filter(|((of, _), _)| of == realm);
        let known = known.filter(|((_, chunk), of)| of.is_some_and(|of| fits(chunk, of)));
        let heard = hint.divided.iter().filter(|(chunk, of)| fits(chunk, **of));
        let mut chunks = shuffled(known.map(|((_, chunk), _)| *chunk).collect(), turn);
        chunks.extend(shuffled(heard.map(|(chunk, _)| *chunk).collect(), turn));
        let (mut found, mut seen) = (vec![], BTreeSet::new());
        let mut look_in = |chunks: Vec<Block>, turn: &mut Turn<'_>| {
            for chunk in chunks {
                if found.len() < count && seen.insert(chunk) {
                    let blocks = parts(chunk, pool, turn).into_iter();
                    found.extend(blocks.filter(|block| is_free(block)));
                }
            }
            found.len() >= count
        };
        if !look_in(chunks, turn) {
            let all = pool.count();
            let others: Vec<Block> = if all <= MOST_COUNTED {
                let chunks = (0..all).filter_map(|place| pool.block(place)).map(Block::chunk);
                let chunks: BTreeSet<Block> = chunks.collect();
                shuffled(chunks.into_iter().collect(), turn)
            } else {
                let places = (0..MOST_TRIED).map(|_| u128::from(turn.random.number()) % all);
                places.filter_map(|place| pool.block(place)).map(Block::chunk).collect()
            };
            look_in(others, turn);
        }
        found.truncate(count);
        found
    }
}

/// The blocks of a pool in a chunk, beginning at random.
fn parts(chunk: Block, pool: &Pool, turn: &mut Turn<'_>) -> Vec<Block> {
    let Some(first) = Block::around(chunk.first(), pool.length()) else { return vec![] };
    let size = first.size();
    let count = (chunk.size() / size).max(1);
    let start = turn.below(count as usize) as u64;
    let at = |number: u64| {
        let offset = u128::from((start + number) % count * size);
        Block::at(chunk.family(), chunk.start() + offset, pool.length())
    };
    (0..count).map(at).collect()
}

fn shuffled(mut blocks: Vec<Block>, turn: &mut Turn<'_>) -> Vec<Block> {
    for last in (1..blocks.len()).rev() {
        blocks.swap(last, turn.below(last + 1));
    }
    blocks
}

impl Network {
    /// How many ADDs wait for any address of a pool beyond those that are free or coming.
    fn lacking(&mut self, number: usize, now: Moment, settles: bool) -> u64 {
        let waiting = self.requests.iter().filter(|it| it.request.pool == number);
        let waiting = waiting.filter(|it| it.request.is_for_any()).count() as u64;
        if waiting == 0 {
            return 0;
        }
        let is_coming = |held: &&Held| {
            let is_settling = held.state == State::Settling && settles;
            (held.state == State::Claiming || is_settling) && !held.contested
        };
        let coming = self.blocks.values().map(|it| &it.held).filter(is_coming);
        let coming: u64 = coming.map(|held| self.free_in(number, held)).sum();
        waiting.saturating_sub(coming + self.free(number, now))
    }

    /// How many blocks are claimed at once: as many as are lacking. Of several addresses, as many as the
    /// pool has, unless others want some.
    fn batch(&self, number: usize, lacking: u64, now: Moment) -> usize {
        let pool = &self.pools[number];
        let size = pool.block(0).map_or(1, Block::size);
        let lacking = usize::try_from(lacking.div_ceil(size)).unwrap_or(MOST_AT_ONCE);
        let held = self.blocks.values().filter(|it| it.held.name.is_none());
        let held = held.filter(|it| pool.meets(it.held.block)).count();
        let grows = size > 1 && self.scarce_until <= now;
        lacking.max(if grows { held } else { 0 }).min(MOST_AT_ONCE)
    }

    /// The answer to an ADD whose time is over, and why the last operation failed, if it did.
    pub(super) fn end_of(&self, waiting: &Waiting, failure: Option<&String>) -> Reply {
        let is_settling =
            |it: &Tracked| it.held.state == State::Settling && self.is_waited_for(&it.held);
        if self.blocks.values().any(is_settling) {
            return Reply::Settling;
        }
        if let Some(reason) = failure {
            return Reply::Unable(Standing::Away(reason.clone()));
        }
        match (&waiting.request.name, &waiting.named) {
            (Some(_), Some((Some(stored), _))) => super::names::elsewhere(stored),
            _ if waiting.full.is_some() => Reply::Full,
            _ => Reply::Unable(Standing::Away("it has not answered in time".to_owned())),
        }
    }
}

impl super::Request {
    /// Whether any address of the pool will do.
    pub(super) fn is_for_any(&self) -> bool {
        self.address.is_none() && self.name.is_none()
    }
}

impl RealmHint {
    /// The block around an address: as its chunk is divided, if it is.
    fn as_divided(&self, block: Block, ip: std::net::IpAddr) -> Block {
        let chunk = block.chunk();
        let length = match self.divided.get(&chunk) {
            Some(1) => chunk.length() + 6,
            Some(8) => chunk.length() + 3,
            _ => block.length(),
        };
        Block::around(ip, length).unwrap_or(block)
    }
}
