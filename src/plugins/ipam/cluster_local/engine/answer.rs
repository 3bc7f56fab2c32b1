//! What the store says: answers, outcomes and changes.

use std::collections::BTreeMap;

use super::super::block::Block;
#[cfg(doc)]
use super::{Claimed, Operation};
use super::{
    ConflictNote, Epoch, Found, LeaseId, Name, NodeRecord, PoolNote, Revision, Versioned, Want,
};

/// A node's keys and the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// The record, if there is one.
    pub record: Option<Versioned<NodeRecord>>,
    /// The boot id of its key `alive`, if there is one.
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
    /// The boot id of its key `alive`, if there is one.
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
    /// The lease of the node's key `alive`.
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
