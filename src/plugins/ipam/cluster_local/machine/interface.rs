//! What goes into the state machine and what comes out of it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::block::Block;
use super::super::held::Held;
use super::super::name::Name;
use super::super::store::{Operation, Token};
use crate::cni::attachment::NetworkName;
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// The number of an ADD that found nothing free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The facts that a machine gets at its start.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The node's name.
    pub node: Name,
    /// The hash of the machine's identity.
    pub machine: Token,
    /// The id of the current boot.
    pub boot: String,
    /// The program's version.
    pub version: String,
    /// How long claims wait before use that were made in doubt.
    pub settle: Duration,
    /// Whether plugins may allocate after a boot before the store is reached.
    pub trusts_reboot: bool,
    /// Whether each network with blocks of this node was given to [`super::Machine::new`]: only
    /// then is a key of this node without a block on the disk an orphan, which is deleted.
    pub is_complete: bool,
    /// Whether the data directory is another than the one that was confirmed in this boot, or was
    /// withdrawn in it.
    pub is_replaced: bool,
}

/// The node's record on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFile {
    /// The node's name.
    pub node: Name,
    /// Made on this disk; another one after each reclaim.
    pub uid: Token,
    /// The uids before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Token>,
    /// The hash of the machine's identity.
    pub machine: Token,
    /// The last session that the store has acknowledged, and all since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<Token>,
    /// The number of the last beat that the store has acknowledged.
    pub number: u64,
    /// The store's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<Token>,
    /// The store has had a record of this uid.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub registered: bool,
    /// The node was withdrawn: until a reboot, nothing is allocated and no beat is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<Withdrawn>,
}

/// A withdrawal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdrawn {
    /// The boot that it ends with.
    pub boot: String,
    /// Whether another copy of the machine beats; else the data directory was replaced.
    pub is_copied: bool,
}

/// An ADD that found nothing free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// The network.
    pub network: NetworkName,
    /// The number of the range set.
    pub pool: usize,
    /// The address that it needs, if only one will do.
    pub address: Option<IpAddr>,
    /// The name whose address it needs.
    pub name: Option<String>,
    /// When it gives up.
    pub until: Moment,
}

/// How a write ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is on the disk.
    Done,
    /// A block that had to be without leases has one, in `leases` as they are now: nothing was written.
    Leased(BTreeSet<IpAddr>),
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
}

/// Changes of a network's blocks: all in one durable write under the network's lock, unless one of the
/// blocks `unleased` has a lease, or the file is of another realm by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The network.
    pub network: NetworkName,
    /// Its realm.
    pub realm: Name,
    /// The changes, in this order.
    pub marks: Vec<Mark>,
    /// The blocks that must not have a lease.
    pub unleased: Vec<Block>,
}

/// The answer to an ADD that found nothing free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// An address is free now: look again.
    LookAgain,
    /// Every address of the pool is in use.
    Full,
    /// Another node has the address of the name.
    Elsewhere {
        /// The address.
        address: IpAddr,
        /// The node.
        node: Name,
    },
    /// New blocks are not used yet: the store was restored.
    Settling,
    /// The node cannot claim now.
    Unable(Standing),
}

/// What the node is to its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It claims.
    Connected,
    /// It has just started, or reached the store again, and compares its blocks with the store's.
    Verifying,
    /// The store does not answer, or refuses; the reason.
    Away(String),
    /// Another machine has the node's name.
    NameTaken,
    /// The disk is older than the node's record, or empty: its last beat may still come from elsewhere.
    Restored,
    /// The data directory was replaced under its containers: nothing is allocated in this boot.
    Replaced,
    /// Two machines beat as this node: nothing is allocated in this boot.
    Copied,
    /// The store is another than before.
    OtherStore,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// The standing has changed.
    Stands(Standing),
    /// The node registered, with a new uid if it had one before.
    Registered,
    /// The data directory is a copy of another node's.
    Clone,
    /// The node's record or a key is missing, or older than it was: every block is verified.
    Doubt(&'static str),
    /// The store no longer had a claim of this node; it was claimed again.
    ClaimedAgain(Block),
    /// Another node has a block in which this one has leases.
    Lost(Block),
    /// Another node has leases in a block of this one.
    Contested(Block),
    /// No other node has any more.
    ContestEnded(Block),
    /// A key of this node without a block is deleted.
    Orphan(Block),
    /// A write to the disk failed.
    WriteFailed(String),
    /// The store refused an operation.
    Refused(String),
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Connected => f.write_str("the store answers"),
            Standing::Verifying => {
                f.write_str("the blocks of this node are compared with the store's")
            }
            Standing::Away(reason) => write!(f, "the store cannot be used: {reason}"),
            Standing::NameTaken => f.write_str("another machine has the name of this node"),
            Standing::Restored => {
                f.write_str("the disk of this node is older than its record in the store")
            }
            Standing::Replaced => f.write_str("the data directory was replaced in this boot"),
            Standing::Copied => {
                f.write_str("another copy of this machine has the name of this node")
            }
            Standing::OtherStore => f.write_str("the store is another than before"),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Stands(standing) => write!(f, "{standing}"),
            Line::Registered => f.write_str("registered"),
            Line::Clone => f.write_str(
                "the data directory is a copy of another node's: its blocks are not used",
            ),
            Line::Doubt(why) => write!(f, "{why}: every block is verified"),
            Line::ClaimedAgain(block) => {
                write!(f, "block {}: the store had lost its claim; claimed again", block.prefix())
            }
            Line::Lost(block) => write!(
                f,
                "block {}: another node has it; nothing is allocated from it",
                block.prefix()
            ),
            Line::Contested(block) => write!(
                f,
                "block {}: another node has leases in it; nothing is allocated from it",
                block.prefix()
            ),
            Line::ContestEnded(block) => {
                write!(f, "block {}: no other node has leases in it any more", block.prefix())
            }
            Line::Orphan(block) => {
                write!(f, "block {}: its claim is on no file of this node; deleted", block.prefix())
            }
            Line::WriteFailed(reason) => write!(f, "{reason}; tried again"),
            Line::Refused(reason) => write!(f, "the store refused an operation: {reason}"),
        }
    }
}

/// What plugins may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Allocate from active blocks.
    Confirmed,
    /// Allocate nothing, until a daemon has confirmed the blocks.
    Refused,
    /// Allocate nothing in this boot, whatever directory a daemon starts with.
    Withdrawn,
}

/// What the daemon must do next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // one exists at a time
pub enum Action {
    /// Write the node's record, durably; while it is confirmed, the confirmation as well. Then call
    /// [`super::Machine::wrote`].
    Node(NodeFile),
    /// Change a network's blocks, durably. Then call [`super::Machine::wrote`].
    Marks(Marks),
    /// Write the confirmation of this boot. Then call [`super::Machine::wrote`].
    Confirm(Allocation),
    /// Send an operation to the store; once it has ended, call [`super::Machine::answered`].
    Send(Operation),
    /// Answer an ADD.
    Reply(RequestId, Reply),
    /// Write a line to the log.
    Log(Line),
    /// Nothing before this moment, or an event.
    Wait(Moment),
}

/// One call of the machine: the times, and random numbers.
pub struct Turn<'a> {
    /// The time since boot.
    pub now: Moment,
    /// The time of day, in seconds since 1970.
    pub wall: u64,
    /// The source of tokens, of candidates and of spread.
    pub random: &'a mut Random,
}

impl Turn<'_> {
    /// A fresh token.
    pub fn token(&mut self) -> Token {
        Token::random(self.random)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.random.number() % limit.max(1) as u64) as usize
    }
}
