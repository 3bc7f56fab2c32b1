//! A network of this node: its pools, its blocks, its leases and the ADDs that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::super::block::Block;
use super::super::engine::{Name, Revision};
use super::super::held::{Blocks, Held, State};
use super::super::pool::Pool;
use super::interface::{Contest, Holder, Mark, Request, Written};
use crate::sys::clock::{Moment, NEVER};

/// The wait before a write that failed is tried again.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// How long a block stays free before it is given back.
pub const IDLE: Duration = Duration::from_secs(300);

/// What a block waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// A write to the disk.
    Writing,
    /// An outcome.
    Asking,
}

/// What is known of a block's key in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// No claim was sent.
    Unsent,
    /// Nothing: it must be read.
    Doubt,
    /// It is this node's.
    Own(Revision),
    /// There is none, nor any that overlaps.
    Absent,
    /// Another node has it, or one that overlaps.
    Foreign,
}

/// A block on the disk, with what is known of its key.
#[derive(Clone, Debug)]
pub struct Tracked {
    /// What is on the disk.
    pub held: Held,
    /// Whether it is on the disk, and not only about to be.
    pub is_written: bool,
    /// What it waits for.
    pub step: Step,
    /// Its key.
    pub key: Key,
    /// Another node has noted a conflict.
    pub contested: bool,
    /// This node may have noted a conflict.
    pub noted: bool,
    /// The number of the operation that `key` is known from, or a later one.
    pub known: u64,
    /// The key and the notes were read after its time to settle.
    pub confirmed: bool,
    /// Nothing is done before.
    pub due: Moment,
    /// When it may be used, if it settles; None before that is known.
    pub settled: Option<Moment>,
}

impl Tracked {
    /// A block on the disk of which nothing else is known.
    pub fn of_file(held: Held) -> Tracked {
        let noted = held.state == State::Conflict;
        Tracked {
            held,
            is_written: true,
            step: Step::Rest,
            key: Key::Doubt,
            contested: false,
            noted,
            known: 0,
            confirmed: false,
            due: Duration::ZERO,
            settled: None,
        }
    }

    /// Whether addresses are allocated from it, and nothing is going on with it.
    pub fn is_idle(&self) -> bool {
        let is_own = matches!(self.key, Key::Own(_)) && !self.contested;
        self.held.state == State::Active
            && self.step == Step::Rest
            && self.held.of.is_none()
            && is_own
    }
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
    /// The boot for which its file is confirmed.
    pub confirmed: String,
    /// Until when plugins may allocate in that boot, in seconds since boot.
    pub until: Option<u64>,
    /// The blocks on the disk, and those that are about to be.
    pub blocks: BTreeMap<Block, Tracked>,
    /// The keys of blocks that are being split, by the block.
    pub origins: BTreeMap<Block, Key>,
    /// The splits that wait for an outcome.
    pub asking: BTreeSet<Block>,
    /// The leased addresses.
    pub leases: BTreeSet<IpAddr>,
    /// The ADDs that wait.
    pub requests: Vec<Waiting>,
    /// No claim before.
    pub pause: Moment,
    /// Since when more blocks are free than `spare`.
    pub idle_since: Option<Moment>,
    /// A write of its confirmation is going on.
    pub confirming: bool,
    /// The earliest time of the next such write, after one that failed.
    pub confirm_due: Moment,
    /// A node that has other pools for it, as its file says.
    pub differs: Option<Name>,
    /// Why its file could not be written, since the last write that was done.
    pub unwritten: Option<String>,
}

/// An ADD that waits.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The request.
    pub request: Request,
    /// The number of the machine's last operation when it came.
    pub since: u64,
    /// The pool was found full since.
    pub is_full: bool,
    /// Of a name: what it wants of other nodes.
    pub names: Vec<String>,
    /// Of a name: it wants any address for names, too.
    pub wants_any: bool,
    /// Of a name: the node that has its address.
    pub holder: Option<Holder>,
    /// Of a name: the conflict about its address.
    pub contest: Option<Contest>,
    /// Of a name: nothing is tried before.
    pub pause: Moment,
}

impl Waiting {
    /// An ADD that came after the operation of this number.
    pub fn new(request: Request, since: u64) -> Waiting {
        let (names, pause) = (vec![], Duration::ZERO);
        let (is_full, wants_any) = (false, false);
        Waiting { request, since, is_full, names, wants_any, holder: None, contest: None, pause }
    }
}

impl Network {
    /// A network with what its file has.
    pub fn new(blocks: Blocks) -> Network {
        let Blocks { realm, pools, names, spare, confirmed, until, differs, blocks } = blocks;
        let tracked = blocks.into_iter().map(|held| (held.block, Tracked::of_file(held)));
        let blocks: BTreeMap<Block, Tracked> = tracked.collect();
        let origins = blocks.values().filter_map(|tracked| tracked.held.of);
        Network {
            realm,
            pools,
            names,
            spare,
            confirmed,
            until,
            origins: origins.map(|origin| (origin.block, Key::Doubt)).collect(),
            blocks,
            asking: BTreeSet::new(),
            leases: BTreeSet::new(),
            requests: vec![],
            pause: Duration::ZERO,
            idle_since: None,
            confirming: false,
            confirm_due: Duration::ZERO,
            differs,
            unwritten: None,
        }
    }

    /// Takes over other pools. A realm with blocks stays: their keys are there.
    pub fn configure(&mut self, blocks: Blocks) {
        if self.blocks.is_empty() {
            self.realm = blocks.realm;
        }
        self.pools = blocks.pools;
        self.names = blocks.names;
        self.spare = blocks.spare;
    }

    /// The first moment after `now` at which something is due. What was due before waits for an event.
    pub fn deadline(&self, now: Moment) -> Moment {
        let of_blocks = self.blocks.values().filter(|tracked| tracked.step == Step::Rest);
        let dues = of_blocks.flat_map(|tracked| [Some(tracked.due), tracked.settled]).flatten();
        let requests =
            self.requests.iter().flat_map(|waiting| [waiting.request.until, waiting.pause]);
        let pause = (!self.requests.is_empty()).then_some(self.pause);
        let idle = self.idle_since.map(|since| since + IDLE);
        let all = dues.chain(requests).chain(pause).chain(idle).chain([self.confirm_due]);
        all.filter(|moment| *moment > now).min().unwrap_or(NEVER)
    }

    /// Whether no block waits for anything.
    pub fn is_at_rest(&self) -> bool {
        let rests = |tracked: &Tracked| {
            tracked.step == Step::Rest
                && matches!(tracked.held.state, State::Active | State::Lost | State::Conflict)
        };
        self.origins.is_empty() && self.blocks.values().all(rests)
    }

    /// How many leases a block has.
    pub fn leases_in(&self, block: Block) -> usize {
        self.leases.range(block.first()..=block.last()).count()
    }

    /// Whether a block is being claimed, and no answer of the store has shown that the claim was executed.
    pub(super) fn doubts_claim(&self, block: Block) -> bool {
        self.blocks.get(&block).is_some_and(|tracked| {
            tracked.held.state == State::Claiming
                && matches!(tracked.key, Key::Doubt | Key::Absent | Key::Foreign)
        })
    }

    /// How many addresses of a pool a block has free.
    pub fn free_in(&self, pool: &Pool, block: Block) -> u64 {
        let leases = self.leases.range(block.first()..=block.last());
        let used = leases.filter(|ip| pool.allocates(**ip)).count() as u64;
        pool.allocatable(block).saturating_sub(used)
    }

    /// Blocks wait for a write.
    pub fn await_write(&mut self, marks: &[Mark]) {
        for mark in marks {
            match mark {
                Mark::Put(held) => self.await_put(held),
                Mark::Forget(block) => self.set_step(*block, Step::Writing),
                Mark::Confirm { .. } => self.confirming = true,
                Mark::Differs(_) => (), // nothing waits for it
            }
        }
    }

    /// A block that is not on the disk yet has its place already, so that nothing else takes it.
    fn await_put(&mut self, held: &Held) {
        let unsent =
            || Tracked { key: Key::Unsent, is_written: false, ..Tracked::of_file(held.clone()) };
        self.blocks.entry(held.block).or_insert_with(unsent).step = Step::Writing;
    }

    fn set_step(&mut self, block: Block, step: Step) {
        if let Some(tracked) = self.blocks.get_mut(&block) {
            tracked.step = step;
        }
    }

    /// What was written is on the disk.
    pub fn apply(&mut self, marks: Vec<Mark>) {
        self.unwritten = None;
        for mark in marks {
            match mark {
                Mark::Put(held) => self.put(held),
                Mark::Forget(block) => drop(self.blocks.remove(&block)),
                Mark::Confirm { boot, until } => {
                    self.confirmed = boot;
                    self.until = until;
                    self.confirming = false;
                }
                Mark::Differs(node) => self.differs = node,
            }
        }
        let parts = self.blocks.values().filter_map(|tracked| tracked.held.of);
        let origins: BTreeSet<Block> = parts.map(|origin| origin.block).collect();
        self.origins.retain(|block, _| origins.contains(block));
    }

    fn put(&mut self, held: Held) {
        if let Some(origin) = held.of {
            self.origins.entry(origin.block).or_insert(Key::Own(origin.mod_revision));
        }
        if let Some(tracked) = self.blocks.get_mut(&held.block) {
            tracked.step = Step::Rest;
            tracked.is_written = true;
            tracked.held = held;
        }
    }

    /// Nothing was written: blocks are as they were, and those that were not there are gone.
    pub fn keep_as_it_was(&mut self, marks: &[Mark], now: Moment) {
        for mark in marks {
            match mark {
                Mark::Put(Held { block, .. }) | Mark::Forget(block) => self.keep(*block, now),
                Mark::Confirm { .. } => {
                    self.confirming = false;
                    self.confirm_due = now + AFTER_FAILURE;
                }
                Mark::Differs(_) => (), // the next list tries again
            }
        }
    }

    /// Keeps the error of a write that failed, for the reports of what depends on it.
    pub fn note_refusal(&mut self, refused: Written) {
        if let Written::Failed(error) = refused {
            self.unwritten = Some(error);
        }
    }

    fn keep(&mut self, block: Block, now: Moment) {
        let Some(tracked) = self.blocks.get_mut(&block) else { return };
        tracked.step = Step::Rest;
        tracked.due = now + AFTER_FAILURE;
        if !tracked.is_written {
            self.blocks.remove(&block);
        }
    }
}
