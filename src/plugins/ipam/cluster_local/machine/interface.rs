//! What goes into the state machine and what comes out of it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::super::block::Block;
use super::super::engine::{Change, Epoch, Name, Operation, OperationId, Outcome};
use super::super::held::{Blocks, Held, Token};
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// The number of a write to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(pub u64);

/// The number of an ADD that found nothing free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The facts that a machine gets at its start.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The node's name.
    pub node: Name,
    /// Its uid.
    pub uid: Token,
    /// The program's version.
    pub version: String,
    /// The id of the current boot.
    pub boot: String,
    /// How long new claims wait before use, after a restore.
    pub settle: Duration,
    /// After how long without a heartbeat the daemons reclaim a node; None if only an operator does.
    pub reclaim_after: Option<Duration>,
    /// Whether each network with blocks of this node was given to [`super::Machine::new`]: only
    /// then is a key of this node without a block on the disk an orphan, which is deleted.
    pub is_complete: bool,
}

/// The part of `node.json` that changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeFile {
    /// How often the node was reclaimed.
    pub incarnation: u64,
    /// The epoch in which its blocks were verified; None before the first contact.
    pub epoch: Option<Epoch>,
}

/// An ADD that found nothing free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// The network.
    pub network: Name,
    /// The number of the range set.
    pub pool: usize,
    /// The address that it needs, if only one will do.
    pub address: Option<IpAddr>,
    /// The name whose address it needs.
    pub name: Option<String>,
    /// When it gives up.
    pub until: Moment,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// [`super::Machine::deadline`] has come.
    Time,
    /// A network's pools, before its first request and when they change; its blocks only matter if the
    /// network is new. Without pools, all its blocks are given back once they are free.
    Configured {
        /// The network.
        network: Name,
        /// What it has.
        blocks: Blocks,
    },
    /// An operation has ended.
    Outcome {
        /// The operation.
        id: OperationId,
        /// How.
        outcome: Outcome,
    },
    /// A watch saw something.
    Changed {
        /// The realm.
        realm: Name,
        /// What it saw.
        change: Change,
    },
    /// A write to the disk has ended.
    Written {
        /// The write.
        id: WriteId,
        /// How.
        written: Written,
    },
    /// The leases of a network as they are now. They come before each request, at least each minute
    /// while the network has blocks, and four times a second while another node wants some.
    Leases {
        /// The network.
        network: Name,
        /// The leased addresses.
        leases: BTreeSet<IpAddr>,
    },
    /// An ADD found nothing free.
    Exhausted(Request),
    /// An ADD no longer waits.
    Withdrawn(RequestId),
}

/// How a write ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is on the disk.
    Done,
    /// A block that had to be without leases has one: nothing was written.
    Leased,
    /// The old content is on the disk.
    Failed(String),
}

/// A change of a network's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Adds the block, or replaces the one of the same prefix.
    Put(Held),
    /// Removes the block.
    Forget(Block),
    /// Confirms the network: plugins may allocate from its blocks in this boot, until this time.
    Confirm {
        /// The id of the boot.
        boot: String,
        /// The time, in seconds since boot; None for the whole boot.
        until: Option<u64>,
    },
    /// Sets the node that has other pools for the network.
    Differs(Option<Name>),
}

/// What is written to the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The node's file.
    Node(NodeFile),
    /// Blocks of a network: all marks in one atomic write under the network's lock, unless one of the
    /// blocks `unleased` has a lease.
    Marks {
        /// The network.
        network: Name,
        /// The changes, in this order.
        marks: Vec<Mark>,
        /// The blocks that must not have a lease.
        unleased: Vec<Block>,
    },
}

/// The answer to an ADD that found nothing free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// An address is free now: look again.
    LookAgain,
    /// Every address of the pool is in use.
    Full,
    /// Another node has the address of the name.
    Elsewhere(Holder),
    /// A node has noted a conflict about the address of the name.
    Contested(Contest),
    /// New blocks are not used yet: the store was restored.
    Settling,
    /// The store does not answer, or refuses; the reason.
    Away(String),
    /// The node was reclaimed.
    Fenced,
    /// Another machine has the node's name.
    NameTaken,
}

/// A node that has the address of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The address.
    pub address: IpAddr,
    /// The node.
    pub node: Name,
    /// Whether it is alive; None if that is not known.
    pub is_alive: Option<bool>,
}

/// An address of a name in conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contest {
    /// The address.
    pub address: IpAddr,
    /// The node that has noted the conflict, which may be this one.
    pub node: Name,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// The store is away.
    ContactLost(String),
    /// The store answers.
    Contact,
    /// The store was restored: it lacks what it had.
    Restored,
    /// The store no longer had a claim of this node; it was claimed again.
    ClaimedAgain(Block),
    /// Another node has a block, too.
    Conflict(Block),
    /// The conflict has ended.
    ConflictEnded(Block),
    /// The node was reclaimed.
    Fenced,
    /// The node registered again.
    Registered(u64),
    /// The store has accepted no heartbeat for so long that other nodes may soon reclaim this one.
    Stopped,
    /// This daemon has fenced another node, which had sent no heartbeat for `reclaimAfter`.
    Reclaimed(Name),
    /// Another machine has the node's name.
    NameTaken,
    /// A key of this node without a block is deleted.
    Orphan(Block),
    /// A write to the disk failed.
    WriteFailed(String),
    /// The store refused an operation.
    Refused(String),
    /// A network has other pools on another node.
    PoolsDiffer(Name, Name),
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::ContactLost(reason) => write!(f, "the store is away: {reason}; addresses of held blocks stay in use"),
            Line::Contact => f.write_str("the store answers"),
            Line::Restored => f.write_str("the store was restored to an earlier state; every block is verified"),
            Line::ClaimedAgain(block) => write!(f, "block {}: the store had lost its claim; claimed again", block.prefix()),
            Line::Conflict(block) => write!(f, "block {}: another node has it, too; nothing is allocated from it", block.prefix()),
            Line::ConflictEnded(block) => write!(f, "block {}: no other node has it any more", block.prefix()),
            Line::Fenced => f.write_str("this node was reclaimed: nothing is allocated from its old blocks"),
            Line::Stopped => f.write_str("the store has accepted no heartbeat for most of reclaimAfter: other nodes may soon reclaim this one, so plugins allocate no address until the store answers"),
            Line::Reclaimed(node) => write!(f, "node {:?} has sent no heartbeat for reclaimAfter: this daemon has fenced it and frees its blocks", node.as_str()),
            Line::Registered(incarnation) => write!(f, "registered, incarnation {incarnation}"),
            Line::NameTaken => f.write_str("another machine has the name of this node; give one of them another, or reclaim the name"),
            Line::Orphan(block) => write!(f, "block {}: its claim is on no file of this node; deleted", block.prefix()),
            Line::WriteFailed(reason) => write!(f, "{reason}; tried again"),
            Line::PoolsDiffer(network, node) => write!(f, "network {:?}: node {:?} has other ranges or another block size; configure it alike on all nodes", network.as_str(), node.as_str()),
            Line::Refused(reason) => write!(f, "the store refused an operation: {reason}"),
        }
    }
}

/// What the daemon must do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // few exist at a time, and each is consumed at once
pub enum Action {
    /// Write to the disk, and give [`Event::Written`] once it is there.
    Write {
        /// The number.
        id: WriteId,
        /// What.
        record: Record,
    },
    /// Send an operation to the store, and give [`Event::Outcome`].
    Send {
        /// The number.
        id: OperationId,
        /// The operation.
        operation: Operation,
    },
    /// Answer an ADD.
    Reply {
        /// The ADD.
        request: RequestId,
        /// The answer.
        reply: Reply,
    },
    /// Write a line to the log.
    Log(Line),
}

/// One call of the machine: the time, random numbers, and the actions to return.
pub struct Turn<'a> {
    /// The time since boot.
    pub now: Moment,
    /// The time of day, in seconds since 1970.
    pub wall: u64,
    /// The source of tokens, of candidates and of spread.
    pub random: &'a mut Random,
    /// What the caller must do.
    pub actions: Vec<Action>,
}

impl<'a> Turn<'a> {
    /// Begins a call.
    pub fn new(now: Moment, wall: u64, random: &'a mut Random) -> Turn<'a> {
        Turn { now, wall, random, actions: vec![] }
    }

    /// A moment between `wait` and one and a half times `wait` from now.
    pub fn after(&mut self, wait: Duration) -> Moment {
        self.now + wait + self.random.below(wait / 2)
    }

    /// Adds a line to the log.
    pub fn log(&mut self, line: Line) {
        self.actions.push(Action::Log(line));
    }
}
