//! The values of the store's keys, and what writes compare them with.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::super::block::Block;
use super::super::pool::Span;
use super::Name;
use crate::sys::random::Random;

/// The random number of one claim, which tells a node's own claim from any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u128);

impl Token {
    /// A fresh one.
    pub fn random(random: &mut Random) -> Token {
        Token(u128::from(random.number()) << 64 | u128::from(random.number()))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Token, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let number = u128::from_str_radix(&digits, 16).ok().map(Token);
        let token = number.filter(|token| token.to_string() == digits);
        token.ok_or_else(|| de::Error::custom(format_args!("{digits:?}: expected 32 hex digits")))
    }
}

/// A revision of the store: each write has a higher one than the write before it. 0 is before any.
pub type Revision = u64;

/// The number of the cluster's history, which `ipam recover` raises. 0 is a store without the key.
pub type Epoch = u64;

/// A lease of the store: a node's key `alive` expires with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseId(pub i64);

/// The number of an operation, which its outcome carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub u64);

/// The identity of a node: the name is the operator's choice, the uid was made once on its disk,
/// and the incarnation counts how often its name was reclaimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The name.
    pub node: Name,
    /// 128 random bits, as 32 digits.
    pub uid: Token,
    /// Raised by each reclaim of the node.
    pub incarnation: u64,
}

/// The value of a block's key. Engines write the same text for the same value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimed {
    /// Who claimed the block.
    #[serde(flatten)]
    pub owner: Identity,
    /// The token of the claim.
    pub token: Token,
    /// The network and the name that a sticky address is kept for. A realm has one such key for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<String>,
    /// The sticky address is free for any node: the owner is the last one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vacant: bool,
}

/// A value and the revision at which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// The revision of its last write.
    pub revision: Revision,
}

/// A block's key as found. A value that cannot be read is None: the block is another's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The block.
    pub block: Block,
    /// The value.
    pub claimed: Option<Claimed>,
    /// The revision of its last write.
    pub revision: Revision,
}

/// What a node's record says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It may claim blocks.
    Live,
    /// It was reclaimed: its blocks are others'.
    Fenced,
}

/// A node's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The uid of the node that wrote it, or was reclaimed.
    pub uid: Token,
    /// Raised by each reclaim.
    pub incarnation: u64,
    /// Whether the node may claim.
    pub standing: Standing,
    /// The version of the program that wrote it.
    pub version: String,
    /// After this number of seconds without a heartbeat other nodes may reclaim the node, which stops using
    /// its blocks before. None if only an operator may.
    #[serde(default, rename = "reclaimAfter", skip_serializing_if = "Option::is_none")]
    pub reclaim_after: Option<u64>,
}

/// What a write compares to be sure that its node was not reclaimed and the store was not restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ground {
    /// The revision of the node's record.
    pub node_revision: Revision,
    /// The epoch.
    pub epoch: Epoch,
}

/// A block's key as its owner last saw it. A write to it compares both: after a restore another
/// key may have the same revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The block.
    pub block: Block,
    /// The value.
    pub claimed: Claimed,
    /// The revision of its last write.
    pub revision: Revision,
}

/// What a node lacks that found nothing free.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// How many addresses.
    pub count: u32,
    /// The addresses that would do.
    pub spans: Vec<Span>,
    /// The names whose sticky addresses it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// A block that two nodes have, as one of them tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictNote {
    /// The node that tells it.
    #[serde(flatten)]
    pub by: Identity,
    /// Its leases in the block.
    pub leases: u64,
}

/// The pools of a network as configured on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolNote {
    /// The node that wrote it first.
    pub by: Name,
    /// The network.
    pub network: String,
    /// The addresses.
    pub spans: Vec<Span>,
    /// The prefix length of its blocks.
    pub length: u8,
}
