//! The cluster's store: records under keys, of which each write touches one.
//!
//! | record | key of etcd below `/cni-multi/v2/<cluster>/` | value |
//! |---|---|---|
//! | meta | `c/meta` | the store's random id, never written again |
//! | node | `n/<node>` | [`NodeRecord`]: the baton of the node |
//! | block | `b/<realm>/4-0a580140-26` | [`Claim`], or how the block is divided |
//! | want | `c/want/<node>` | [`Want`] |
//! | conflict | `c/conflict/<realm>/<block>` | the node that has leases in it |
//!
//! An engine repeats no write of which a byte was sent, and never guesses an outcome.

#[cfg(feature = "cluster")]
pub mod etcd;
#[cfg(feature = "cluster")]
pub mod http;
#[cfg(feature = "cluster")]
pub mod settings;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub mod tests;
mod value;
#[cfg(feature = "cluster")]
pub mod worker;

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::block::Block;
use super::name::Name;
use super::pool::Span;
use crate::sys::random::Random;

/// 128 random bits, as 32 digits: tells one claim, session or machine from any other.
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

/// The key of a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The store's id.
    Meta,
    /// A node's record.
    Node(Name),
    /// A block of a realm.
    Block(Name, Block),
    /// What a node wants.
    Want(Name),
    /// A block of a realm in which a node has leases, and that is another's.
    Conflict(Name, Block),
}

/// The value of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of [`Key::Meta`]: the id.
    Meta(Token),
    /// Of [`Key::Node`].
    Node(NodeRecord),
    /// Of [`Key::Block`]: a node has it.
    Claim(Claim),
    /// Of [`Key::Block`] of 64 addresses: its blocks have so many addresses, 8 or 1.
    Divided(u8),
    /// Of [`Key::Want`].
    Want(Want),
    /// Of [`Key::Conflict`]: the node with leases in it.
    Conflict(Name),
    /// It cannot be read: the block is another's.
    Unreadable,
}

/// A record to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its key.
    pub key: Key,
    /// Its value.
    pub value: Value,
}

/// What an engine needs to write over a record that it has read. Compared for equality only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version(pub Arc<str>);

/// A record as the store has it, or had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The record.
    pub record: Record,
    /// Its version.
    pub version: Version,
}

/// A node's record: each beat writes the next number and a fresh nonce over the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Made on the node's disk; another one after each reclaim.
    pub uid: Token,
    /// The hash of the machine's identity.
    pub machine: Token,
    /// The id of the boot.
    pub boot: String,
    /// Random for each start of the daemon and each batch of claims.
    pub session: Token,
    /// How many beats there were.
    pub number: u64,
    /// Random for each beat.
    pub nonce: Token,
    /// The program's version.
    pub version: String,
    /// The node allocates after a boot without having reached the store (`trustReboot`).
    #[serde(default, rename = "trustReboot", skip_serializing_if = "std::ops::Not::not")]
    pub trusts_reboot: bool,
    /// Written by a reclaim, which goes on if no beat writes over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Token>,
    /// The node was reclaimed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
}

/// The claim of a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The node.
    pub node: Name,
    /// Its uid.
    pub uid: Token,
    /// Random for each claim; of a gift, the nonce of the want.
    pub token: Token,
    /// Random for each time that its node took it over: each such write changes the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<Token>,
    /// The name that a single address is kept for: network, then name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What a node waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// Its uid.
    pub uid: Token,
    /// Random for each want: the token of gifts.
    pub nonce: Token,
    /// The realm.
    pub realm: Name,
    /// The addresses that would do; none if only that of the name would.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<Span>,
    /// The name whose address it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How often it was renewed.
    pub renewal: u64,
    /// The blocks that owners have reserved for it since then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gifts: Vec<Block>,
}

/// The records that a list has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The claims and conflicts of a node. Linearizable.
    Node(Name),
    /// The records of these blocks of a realm, which are a node's, and all conflicts of the realm.
    /// It may have other claims of the node. Linearizable.
    Confirm {
        /// The node.
        node: Name,
        /// The realm.
        realm: Name,
        /// The blocks.
        blocks: Vec<Block>,
    },
    /// The claims of a realm that are kept for a name. Linearizable.
    Named(Name, String),
    /// Claims and divisions of a realm. Hints: they may be some seconds old.
    Realm(Name),
    /// The records of all nodes. Linearizable.
    Nodes,
    /// Every record. Linearizable.
    All,
}

/// What a watch has seen of meta, wants and conflicts. Hints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// All of them as they are now: at the start of a watch, and after it has missed some.
    Now(Vec<Stored>),
    /// A record was written.
    Put(Stored),
    /// A record was deleted.
    Gone(Key),
}

/// How an operation ended. Reasons are for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It was done.
    Done(T),
    /// It compared, and did not write.
    Lost,
    /// The store refused it for good, and wrote nothing.
    Refused(String),
    /// The store does not accept the credentials, and wrote nothing.
    Unauthenticated(String),
    /// The store asks to wait, and wrote nothing.
    Busy(Duration),
    /// It never reached the store.
    Unreachable(String),
    /// It was sent, and may have been done or may still be. Of a read, the same as unreachable.
    Unknown(String),
}

impl<T> Outcome<T> {
    /// The same outcome of another type.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Outcome::Done(value) => Outcome::Done(make(value)),
            Outcome::Lost => Outcome::Lost,
            Outcome::Refused(reason) => Outcome::Refused(reason),
            Outcome::Unauthenticated(reason) => Outcome::Unauthenticated(reason),
            Outcome::Busy(wait) => Outcome::Busy(wait),
            Outcome::Unreachable(reason) => Outcome::Unreachable(reason),
            Outcome::Unknown(reason) => Outcome::Unknown(reason),
        }
    }

    /// The value, or why there is none, for people.
    pub fn value(self) -> Result<T, String> {
        match self {
            Outcome::Done(value) => Ok(value),
            Outcome::Lost => Err("the store has another value".to_owned()),
            Outcome::Busy(_) => Err("the store is busy".to_owned()),
            Outcome::Refused(reason)
            | Outcome::Unauthenticated(reason)
            | Outcome::Unreachable(reason)
            | Outcome::Unknown(reason) => Err(reason),
        }
    }
}

/// An outcome without a value: the error type inside an engine.
pub type Failed = Outcome<Infallible>;

impl<T> From<Result<T, Failed>> for Outcome<T> {
    fn from(done: Result<T, Failed>) -> Outcome<T> {
        done.map_or_else(|failed| failed.map(|never| match never {}), Outcome::Done)
    }
}

/// The store of a cluster. Each call waits for its outcome, with timeouts of seconds.
pub trait Store {
    /// Reads a record. Linearizable.
    fn get(&mut self, key: &Key) -> Outcome<Option<Stored>>;

    /// Reads several records.
    fn list(&mut self, selection: &Selection) -> Outcome<Vec<Stored>>;

    /// Writes a record; lost if the key exists.
    fn create(&mut self, record: &Record) -> Outcome<Stored>;

    /// Writes a record over another of its key; lost unless that is as seen.
    fn update(&mut self, record: &Record, seen: &Stored) -> Outcome<Stored>;

    /// Deletes a record; lost unless it is as seen.
    fn delete(&mut self, seen: &Stored) -> Outcome<()>;

    /// Tells what is heard until `tell` returns false or the watch ends. On a store of its own: it
    /// occupies the connection.
    fn watch(&mut self, tell: &mut dyn FnMut(Heard) -> bool) -> Outcome<()>;
}

/// One step of the store, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // one exists at a time
pub enum Operation {
    /// [`Store::get`].
    Get(Key),
    /// [`Store::list`].
    List(Selection),
    /// [`Store::create`].
    Create(Record),
    /// [`Store::update`].
    Update(Record, Stored),
    /// [`Store::delete`].
    Delete(Stored),
}

/// What an operation returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of a get.
    Found(Option<Stored>),
    /// Of a list.
    Listed(Vec<Stored>),
    /// Of a create or update: the record as it is now.
    Written(Stored),
    /// Of a delete.
    Deleted,
}

impl Operation {
    /// Performs it.
    pub fn perform(&self, store: &mut dyn Store) -> Outcome<Answer> {
        match self {
            Operation::Get(key) => store.get(key).map(Answer::Found),
            Operation::List(selection) => store.list(selection).map(Answer::Listed),
            Operation::Create(record) => store.create(record).map(Answer::Written),
            Operation::Update(record, seen) => store.update(record, seen).map(Answer::Written),
            Operation::Delete(seen) => store.delete(seen).map(|()| Answer::Deleted),
        }
    }
}
