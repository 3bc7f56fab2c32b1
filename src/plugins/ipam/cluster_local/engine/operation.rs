//! What the daemon and operators ask of the store.

use super::super::block::Block;
#[cfg(doc)]
use super::{Answer, Change, Outcome};
use super::{
    Claimed, ConflictNote, Epoch, Ground, LeaseId, Name, NodeRecord, PoolNote, Revision, Seen,
    Versioned, Want,
};

/// One step of the store. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a node's record and key `alive`, and the epoch, at one revision.
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
    /// Sends the node's heartbeat. Without a lease: grants one and writes `n/<node>/alive` with it,
    /// if the node's record is unchanged. With a lease: keeps that alive. Answer:
    /// [`Answer::Lease`]; [`Outcome::Lost`] if the lease has ended or the record is another.
    Heartbeat {
        /// The node.
        node: Name,
        /// The id of the current boot.
        boot: String,
        /// The lease of an earlier heartbeat.
        lease: Option<LeaseId>,
        /// How long the heartbeat lasts.
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
    /// Fences a node, if its record is as `seen` and the node is not alive: the first step of a
    /// reclaim. Answer: [`Answer::Written`].
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
