//! A network of this node: its pools, its blocks, its leases and the ADDs that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::super::block::Block;
use super::super::held::{Blocks, Held, State};
use super::super::name::Name;
use super::super::pool::Pool;
use super::super::store::{Stored, Token};
use super::interface::{Mark, Request};
use crate::sys::clock::Moment;

/// How long an address counts as taken that an ADD was told of.
const PROMISE: Duration = Duration::from_millis(200);

/// What is known of a block's key in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing: it must be read.
    Unknown,
    /// It was this node's, and a list lacks it: it must be read.
    Missing,
    /// It is this node's.
    Own(Stored),
    /// It is this node's of an earlier uid or disk, and must be taken over.
    Earlier(Stored),
    /// There is none.
    Absent,
    /// It is another's, or this node does not know it.
    Foreign,
}

/// A block that is to be given to a node that waits for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gift {
    /// The node.
    pub node: Name,
    /// The nonce of its want.
    pub nonce: Token,
    /// Which renewal of the want it is for.
    pub renewal: u64,
    /// The want reserves it.
    pub is_reserved: bool,
    /// It has failed: the address of a name stays here then, and waits for the next renewal.
    pub is_void: bool,
}

impl Tracked {
    /// The gift has failed, or may have.
    pub fn void_gift(&mut self) {
        match &mut self.gift {
            Some(gift) if self.held.name.is_some() => gift.is_void = true,
            gift => *gift = None,
        }
    }
}

/// What is known of a node's note that it has leases in another's block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// It has written none.
    None,
    /// It may have written one.
    Perhaps,
    /// The same, and it is to be read.
    Unread,
    /// This is it.
    Found(Box<Stored>),
}

/// A block of the node, with what is known of its key.
///
/// Orders count what is sent and what is answered: a beat that was sent after an answer has a higher
/// one.
#[derive(Clone, Debug)]
pub struct Tracked {
    /// What is on the disk, or what will be.
    pub held: Held,
    /// Whether it is on the disk: what is claimed for an ADD is once it is used.
    pub is_on_disk: bool,
    /// Its key.
    pub key: Known,
    /// The order of the answer that told so.
    pub known: u64,
    /// The order of the last answer that showed the key as the node's own; 0 for none.
    pub read: u64,
    /// The key was created again in doubt: it must be read after a beat.
    pub is_unread: bool,
    /// When the key was created, or was last seen as another's.
    pub created: Option<Moment>,
    /// When it may be used if it settles, and the order from which on its key must be read.
    pub settles: Option<(Moment, Option<u64>)>,
    /// Whether another node has leases in it, and the order of the answer that told so.
    pub contest: Option<(bool, u64)>,
    /// When it was last found so.
    pub contested: Moment,
    /// The order of the last list of its name's claims, if it has a name.
    pub named: u64,
    /// The note that the block is another's, and has leases here.
    pub note: Note,
    /// Whom it is to be given to.
    pub gift: Option<Gift>,
    /// What the key has since it was taken over last.
    pub taken: Option<Token>,
}

impl Tracked {
    /// A block of which nothing else is known.
    pub fn new(held: Held, is_on_disk: bool) -> Tracked {
        Tracked {
            held,
            is_on_disk,
            key: Known::Unknown,
            known: 0,
            read: 0,
            is_unread: false,
            created: None,
            settles: None,
            contest: None,
            contested: Moment::ZERO,
            named: 0,
            note: Note::None,
            gift: None,
            taken: None,
        }
    }

    /// Nothing is known of the key any more.
    pub fn forget_key(&mut self) {
        // What was created in doubt settles, also after the next doubt.
        let (created, is_unread) = (self.created, self.is_unread);
        let new = Tracked::new(self.held.clone(), self.is_on_disk);
        *self = Tracked { created, is_unread, ..new };
    }

    /// Whether addresses are allocated from it, and nothing is going on with it.
    pub fn is_at_rest(&self) -> bool {
        self.held.is_usable() && matches!(self.key, Known::Own(_)) && !self.is_unread
    }
}

/// An ADD that waits.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The request.
    pub request: Request,
    /// Since when nothing was found to claim for it.
    pub full: Option<Moment>,
    /// Of a name: where it is, and when that was read.
    pub named: Option<(Option<Stored>, Moment)>,
    /// The pool that it knows by its place is no longer there.
    pub is_outdated: bool,
}

/// A network.
#[derive(Clone, Debug)]
pub struct Network {
    /// The realm.
    pub realm: Name,
    /// The pools.
    pub pools: Vec<Pool>,
    /// The addresses of each pool that are kept for names.
    pub names: Vec<Pool>,
    /// How many free blocks each keeps.
    pub spare: u32,
    /// Its blocks.
    pub blocks: BTreeMap<Block, Tracked>,
    /// The leased addresses.
    pub leases: BTreeSet<IpAddr>,
    /// The ADDs that wait.
    pub requests: Vec<Waiting>,
    /// The moments at which ADDs were told of a free address, by pool.
    promises: Vec<(usize, Moment)>,
    /// No write before, after one that failed.
    pub due: Moment,
    /// Since when more blocks are free than `spare`.
    pub idle_since: Option<Moment>,
    /// Until when it keeps no free block, as others want some.
    pub scarce_until: Moment,
}

impl Network {
    /// A network with what its file has.
    pub fn new(blocks: Blocks) -> Network {
        let Blocks { realm, pools, names, spare, blocks } = blocks;
        let tracked = blocks.into_iter().map(|held| (held.block, Tracked::new(held, true)));
        Network {
            realm,
            pools,
            names,
            spare,
            blocks: tracked.collect(),
            leases: BTreeSet::new(),
            requests: vec![],
            promises: vec![],
            due: Moment::ZERO,
            idle_since: None,
            scarce_until: Moment::ZERO,
        }
    }

    /// Compares what is known with the file: somebody may have removed or replaced it. A block that is gone from
    /// there is given back, or with leases put there again.
    pub fn compare(&mut self, found: &[Held]) {
        let leases = self.leases.clone();
        let is_leased = |block: Block| leases.range(block.first()..=block.last()).next().is_some();
        for tracked in self.blocks.values_mut().filter(|tracked| tracked.is_on_disk) {
            let block = tracked.held.block;
            if !found.iter().any(|held| held.block == block) {
                tracked.is_on_disk = false;
                tracked.held.state =
                    if is_leased(block) { State::Claiming } else { State::Returning };
            }
        }
        for held in found {
            let new = || Tracked::new(held.clone(), true);
            self.blocks.entry(held.block).or_insert_with(new);
        }
    }

    /// Takes over other pools. A realm with blocks on the disk stays: their keys are there. Returns whether
    /// claims of another realm were dropped.
    pub fn configure(&mut self, blocks: Blocks) -> bool {
        let moves =
            self.realm != blocks.realm && !self.blocks.values().any(|tracked| tracked.is_on_disk);
        let drops = moves && !self.blocks.is_empty();
        if moves {
            self.blocks.clear();
            self.realm = blocks.realm;
        }
        for waiting in &mut self.requests {
            let number = waiting.request.pool;
            waiting.is_outdated |= moves
                || self.pools.get(number) != blocks.pools.get(number)
                || self.names.get(number) != blocks.names.get(number);
        }
        self.pools = blocks.pools;
        self.names = blocks.names;
        self.spare = blocks.spare;
        drops
    }

    /// Whether a block has a lease.
    pub fn is_leased(&self, block: Block) -> bool {
        self.leases.range(block.first()..=block.last()).next().is_some()
    }

    /// What was written is on the disk.
    pub fn apply(&mut self, marks: Vec<Mark>) {
        for mark in marks {
            match mark {
                Mark::Put(held) => {
                    let block = held.block;
                    let tracked = self
                        .blocks
                        .entry(block)
                        .or_insert_with(|| Tracked::new(held.clone(), true));
                    let is_other = tracked.held.state != held.state;
                    if is_other {
                        tracked.settles = None;
                    }
                    if is_other && matches!(held.state, State::Active | State::Settling) {
                        (tracked.created, tracked.is_unread) = (None, false); // it was read, or will be
                    }
                    tracked.held = held;
                    tracked.is_on_disk = true;
                }
                Mark::Forget(block) => drop(self.blocks.remove(&block)),
            }
        }
    }

    /// How many addresses of a pool an ADD could have now.
    pub fn free(&mut self, number: usize, now: Moment) -> u64 {
        self.promises.retain(|(_, at)| *at + PROMISE > now);
        let promised = self.promises.iter().filter(|(pool, _)| *pool == number).count() as u64;
        let usable = self.blocks.values().filter(|tracked| tracked.held.is_usable());
        let free = usable.map(|tracked| self.free_in(number, &tracked.held)).sum::<u64>();
        free.saturating_sub(promised)
    }

    /// How many addresses of a pool a block has without a lease.
    pub fn free_in(&self, number: usize, held: &Held) -> u64 {
        let Some(pool) = self.pools.get(number).filter(|_| held.name.is_none()) else { return 0 };
        let leases = self.leases.range(held.block.first()..=held.block.last());
        let used = leases.filter(|ip| pool.allocates(**ip)).count() as u64;
        pool.allocatable(held.block).saturating_sub(used)
    }

    /// The leases as they are now: each new one keeps a promise.
    pub fn lease(&mut self, leases: BTreeSet<IpAddr>) {
        for ip in leases.difference(&self.leases) {
            let is_of = |pool: usize| self.pools.get(pool).is_some_and(|pool| pool.allocates(*ip));
            let kept = self.promises.iter().position(|(pool, _)| is_of(*pool));
            kept.map(|at| self.promises.remove(at));
        }
        self.leases = leases;
    }

    /// An ADD was told of a free address.
    pub fn promise(&mut self, number: usize, now: Moment) {
        self.promises.push((number, now));
    }

    /// The usable block that is kept for a name of a range set.
    pub fn of_name(&self, number: usize, name: &str) -> Option<&Tracked> {
        let pool = self.names.get(number)?;
        let mut named = self.blocks.values().filter(|at| at.held.name.as_deref() == Some(name));
        named.find(|tracked| pool.meets(tracked.held.block))
    }

    /// Whether what an ADD waits for is there.
    pub fn has(&mut self, request: &Request, now: Moment) -> bool {
        if let Some(ip) = request.address {
            let mut usable = self.blocks.values().filter(|tracked| tracked.held.is_usable());
            return usable.any(|tracked| tracked.held.block.contains(ip));
        }
        match &request.name {
            Some(name) => {
                self.of_name(request.pool, name).is_some_and(|tracked| tracked.held.is_usable())
            }
            None => self.free(request.pool, now) > 0,
        }
    }

    /// Whether a block is being claimed for an ADD.
    pub fn is_claiming(&self) -> bool {
        self.blocks.values().any(|tracked| !tracked.is_on_disk)
    }

    /// Whether an ADD waits that a block could serve: a free one, one of its address, one of its name.
    pub fn is_waited_for(&self, held: &Held) -> bool {
        self.requests.iter().map(|waiting| &waiting.request).any(|request| {
            match (&request.address, &request.name) {
                (Some(ip), _) => held.block.contains(*ip),
                (None, Some(name)) => held.name.as_ref() == Some(name),
                (None, None) => {
                    let pool = self.pools.get(request.pool);
                    held.name.is_none() && pool.is_some_and(|pool| pool.meets(held.block))
                }
            }
        })
    }

    /// Whether its blocks are as they should be, and no ADD waits: for tests.
    pub fn is_at_rest(&self) -> bool {
        let rests = |tracked: &Tracked| tracked.is_at_rest() || tracked.held.state == State::Lost;
        self.requests.is_empty() && self.blocks.values().all(rests)
    }
}
