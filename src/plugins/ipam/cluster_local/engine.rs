//! What the daemon asks of the cluster's store, and what it hears: pure data between the state
//! machine, which knows no socket, and an engine, which knows no state.
//!
//! | of the design | operations |
//! |---|---|
//! | list | [`Operation::List`], [`Operation::ReadBlock`], [`Operation::ReadNode`], [`Operation::Survey`] |
//! | claim | [`Operation::Claim`], [`Operation::Replace`] |
//! | release | [`Operation::Release`], [`Operation::Hold`] |
//! | heartbeat | [`Operation::Register`], [`Operation::Heartbeat`], [`Operation::Fence`] |
//! | changes | [`Operation::Want`], [`Operation::NoteConflict`], [`Operation::NotePool`], their ends, and [`Change`] |
//!
//! Each operation is one atomic step of the store, except for [`Operation::Heartbeat`]. A store that
//! compares a version of one object at a time can be an engine as well, if it serializes the claims
//! of overlapping blocks in another way, for example with an object per block of one fixed length.
//!
//! Reads are linearizable. An engine repeats no write whose outcome is unknown, and never guesses
//! an outcome.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::block::Block;
use super::pool::Span;
use crate::sys::random::Random;

/// The longest name of a node or a realm: that of a host.
const LONGEST_NAME: usize = 253;

/// The name of a node or a realm: a part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoName(String);

impl fmt::Display for NoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = "expected letters, digits, '.', '_' and '-', a letter or digit first";
        write!(f, "{:?} is not a valid name, {expected}", self.0)
    }
}

impl FromStr for Name {
    type Err = NoName;

    fn from_str(text: &str) -> Result<Name, NoName> {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let begins_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let is_name = begins_well && text.len() <= LONGEST_NAME && text.chars().all(is_of_name);
        if is_name { Ok(Name(text.into())) } else { Err(NoName(text.to_owned())) }
    }
}

impl TryFrom<String> for Name {
    type Error = NoName;

    fn try_from(text: String) -> Result<Name, NoName> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.as_str().to_owned()
    }
}

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

/// A lease of the store, by which a node's sign of life ends on its own.
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

/// One step of the store. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a node's record and sign of life, and the epoch, at one revision.
    /// Answer: [`Answer::Node`].
    ReadNode {
        /// The node.
        node: Name,
    },
    /// Writes the node's own record if its revision is `seen`, 0 if there is none.
    /// Answer: [`Answer::Written`].
    Register {
        /// The node.
        node: Name,
        /// The record.
        record: NodeRecord,
        /// The revision of the record that it replaces.
        seen: Revision,
    },
    /// Keeps the node's sign of life. Without a lease: grants one and writes `n/<node>/alive` with it,
    /// if the node's record is unchanged. With a lease: keeps that alive. Answer:
    /// [`Answer::Lease`]; [`Outcome::Lost`] if the lease has ended or the record is another.
    Heartbeat {
        /// The node.
        node: Name,
        /// The id of the current boot.
        boot: String,
        /// The lease of an earlier heartbeat.
        lease: Option<LeaseId>,
        /// How long the sign of life lasts.
        ttl: u32,
        /// The revision of the node's record.
        node_revision: Revision,
    },
    /// Reads all blocks, wants and conflict notes of a realm at one revision. Answer:
    /// [`Answer::Realm`].
    List {
        /// The realm.
        realm: Name,
    },
    /// Reads the keys of a block, of all blocks inside it and of all its ancestors, and the conflict
    /// notes of these, at one revision. Answer: [`Answer::Realm`] without wants.
    ReadBlock {
        /// The realm.
        realm: Name,
        /// The block.
        block: Block,
    },
    /// Writes a block's key, if there is no key in its range, none of an ancestor, none of the name
    /// that it is kept for, and the ground is as given. Answer: [`Answer::Written`].
    Claim {
        /// The realm.
        realm: Name,
        /// The block.
        block: Block,
        /// The value.
        claimed: Claimed,
        /// The node's record and the epoch.
        ground: Ground,
    },
    /// Replaces a block's key by those of parts of it, each with the value `claimed`, if the key is as
    /// `seen` and the ground is as given. Answer: [`Answer::Written`].
    Replace {
        /// The realm.
        realm: Name,
        /// The block's key.
        seen: Seen,
        /// The parts that the owner keeps: apart from each other, and at most 64.
        kept: Vec<Block>,
        /// The value of the kept parts.
        claimed: Claimed,
        /// The node's record and the epoch.
        ground: Ground,
    },
    /// Deletes a block's key if it is as `seen`. It is an operator's, too, who reclaims a node.
    /// Answer: [`Answer::Written`].
    Release {
        /// The realm.
        realm: Name,
        /// The block's key.
        seen: Seen,
    },
    /// Changes the value of a sticky address, if its key is as `seen`, no other key has the new name, and
    /// the ground is as given: takes over a vacant one, or vacates one's own. Answer:
    /// [`Answer::Written`].
    Hold {
        /// The realm.
        realm: Name,
        /// The key.
        seen: Seen,
        /// The new value.
        claimed: Claimed,
        /// The node's record and the epoch.
        ground: Ground,
    },
    /// Writes a node's want with a lease of its own, or deletes it. Answer: [`Answer::Written`].
    Want {
        /// The realm.
        realm: Name,
        /// The node.
        node: Name,
        /// The want; None deletes the key.
        want: Option<Want>,
        /// How long it lasts.
        ttl: u32,
    },
    /// Fences a node, if its record is as `seen` and it has no sign of life: an operator's first step
    /// of a reclaim. Answer: [`Answer::Written`].
    Fence {
        /// The node.
        node: Name,
        /// The record as it was read.
        seen: Versioned<NodeRecord>,
    },
    /// Raises the epoch if it is `seen`: an operator's step after a restore. Answer:
    /// [`Answer::Written`].
    Recover {
        /// The epoch as it was read.
        seen: Epoch,
    },
    /// Notes a conflict, or deletes the note. Answer: [`Answer::Written`].
    NoteConflict {
        /// The realm.
        realm: Name,
        /// The block.
        block: Block,
        /// The note; None deletes it.
        note: Option<ConflictNote>,
    },
    /// Deletes the note of a conflict if it is as given. Answer: [`Answer::Written`].
    EndConflict {
        /// The realm.
        realm: Name,
        /// The block.
        block: Block,
        /// The note as it was read.
        note: ConflictNote,
    },
    /// Notes a pool under a hash of it, unless there is a note. Answer: [`Answer::Written`], or
    /// [`Outcome::Lost`] if there is one.
    NotePool {
        /// The realm.
        realm: Name,
        /// The hash.
        hash: String,
        /// The note.
        note: PoolNote,
    },
    /// Deletes the note of a pool if it is as given. Answer: [`Answer::Written`].
    DropPool {
        /// The realm.
        realm: Name,
        /// The hash.
        hash: String,
        /// The note as it was read.
        note: PoolNote,
    },
    /// Reads every key of the cluster at one revision. Answer: [`Answer::Cluster`].
    Survey,
    /// Watches the blocks and wants of a realm from a revision on. It has no outcome while it lasts;
    /// its events are [`Change`]s.
    Watch {
        /// The realm.
        realm: Name,
        /// The first revision to report.
        from: Revision,
    },
}

impl Operation {
    /// Whether it can change the store, so that an outcome can be unknown.
    pub fn writes(&self) -> bool {
        use Operation::{List, ReadBlock, ReadNode, Survey, Watch};
        !matches!(self, ReadNode { .. } | List { .. } | ReadBlock { .. } | Survey | Watch { .. })
    }
}

/// A node's keys and the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// The record, if there is one.
    pub record: Option<Versioned<NodeRecord>>,
    /// The boot id of its sign of life, if it has one.
    pub alive: Option<String>,
    /// The epoch.
    pub epoch: Epoch,
}

/// The keys of a realm, or those of them that overlap a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RealmState {
    /// The blocks, in the order of [`Block`].
    pub blocks: Vec<Found>,
    /// The wants.
    pub wants: Vec<(Name, Want)>,
    /// The conflict notes.
    pub notes: Vec<(Block, ConflictNote)>,
    /// The notes of pools, by their hashes.
    pub pools: Vec<(String, PoolNote)>,
}

/// The keys of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The record; None if there is none, or none that can be read.
    pub record: Option<Versioned<NodeRecord>>,
    /// The boot id of its sign of life, if it has one.
    pub alive: Option<String>,
}

/// Every key of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// The epoch.
    pub epoch: Epoch,
    /// The nodes.
    pub nodes: BTreeMap<Name, Member>,
    /// The realms.
    pub realms: BTreeMap<Name, RealmState>,
    /// The keys of other forms, or whose values cannot be read.
    pub unreadable: Vec<String>,
}

/// What an operation that was done returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It wrote, at the outcome's revision.
    Written,
    /// A node's keys.
    Node(NodeState),
    /// The keys of a realm.
    Realm(RealmState),
    /// The keys of the cluster.
    Cluster(Box<ClusterState>),
    /// The lease of a sign of life.
    Lease(LeaseId),
}

/// What a write that lost its comparison found at the same revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rival {
    /// The keys of the operation's own node and the epoch.
    pub node: NodeState,
    /// For operations on a block: the keys that overlap it.
    pub blocks: Vec<Found>,
    /// For claims of a sticky address: the address that its name has.
    pub named: Option<Block>,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done {
        /// The store's revision at that time; of a write, the revision that it wrote.
        revision: Revision,
        /// What it returns.
        answer: Answer,
    },
    /// It compared and did not write.
    Lost {
        /// The store's revision at that time.
        revision: Revision,
        /// What it found.
        rival: Box<Rival>,
    },
    /// The store refused it for good, and wrote nothing: no permission, no space left.
    Refused {
        /// The store's reason.
        reason: String,
    },
    /// It never reached the store, at any endpoint.
    Unreachable {
        /// The last error.
        reason: String,
    },
    /// It was sent, and may have been done or may still be: a timeout, a 503, a reset connection.
    /// Of a read, it is the same as unreachable.
    Unknown {
        /// The error.
        reason: String,
    },
    /// The store does not accept the credentials, and wrote nothing.
    Unauthenticated {
        /// The store's reason.
        reason: String,
    },
    /// The watch has ended; its revision no longer exists. List, then watch again.
    Compacted {
        /// The oldest revision that exists.
        revision: Revision,
    },
}

/// What a watch saw. It is a hint alone: the state machine lists before it acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A block's key was written.
    Claimed(Found),
    /// A block's key was deleted.
    Released(Block),
    /// A node wants blocks, or no longer does.
    Wanted(Name, Option<Want>),
    /// A conflict was noted, or its note deleted.
    Noted(Block, Option<ConflictNote>),
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_keys() {
        for name in ["default", "node-1.example.org", "a_b", "0", &"a".repeat(253)] {
            assert_eq!(name.parse::<Name>().unwrap().as_str(), name);
        }
        for name in ["", ".", "-a", "a/b", "a b", "ä", &"a".repeat(254)] {
            let refused = name.parse::<Name>().unwrap_err().to_string();
            assert!(refused.contains("is not a valid name, expected letters"), "{refused}");
        }
    }

    #[test]
    fn values_of_keys_have_one_text() {
        let owner = Identity { node: "n1".parse().unwrap(), uid: Token(1), incarnation: 2 };
        let mut claimed = Claimed { owner, token: Token(0xfe), sticky: None, vacant: false };
        let plain = concat!(
            r#"{"node":"n1","uid":"00000000000000000000000000000001","incarnation":2,"#,
            r#""token":"000000000000000000000000000000fe"}"#
        );
        assert_eq!(serde_json::to_string(&claimed).unwrap(), plain);
        assert_eq!(serde_json::from_str::<Claimed>(plain).unwrap(), claimed);
        claimed.sticky = Some("default/web-0/eth0".to_owned());
        claimed.vacant = true;
        let text = serde_json::to_string(&claimed).unwrap();
        assert!(text.ends_with(r#","sticky":"default/web-0/eth0","vacant":true}"#), "{text}");
        assert_eq!(serde_json::from_str::<Claimed>(&text).unwrap(), claimed);
        let record = NodeRecord {
            uid: Token(1),
            incarnation: 2,
            standing: Standing::Live,
            version: "0.1.0".to_owned(),
        };
        let text = serde_json::to_string(&record).unwrap();
        assert!(
            text.ends_with(r#""incarnation":2,"standing":"live","version":"0.1.0"}"#),
            "{text}"
        );
        let want =
            Want { count: 3, spans: vec!["10.1.0.1-10.1.0.9".parse().unwrap()], names: vec![] };
        assert_eq!(
            serde_json::to_string(&want).unwrap(),
            r#"{"count":3,"spans":["10.1.0.1-10.1.0.9"]}"#
        );
    }

    #[test]
    fn only_reads_cannot_have_an_unknown_outcome() {
        let realm: Name = "default".parse().unwrap();
        let block = "4-0a580100-26".parse().unwrap();
        assert!(!Operation::List { realm: realm.clone() }.writes());
        assert!(!Operation::ReadBlock { realm: realm.clone(), block }.writes());
        assert!(!Operation::Watch { realm: realm.clone(), from: 1 }.writes());
        assert!(!Operation::Survey.writes());
        assert!(Operation::NoteConflict { realm, block, note: None }.writes());
    }
}
