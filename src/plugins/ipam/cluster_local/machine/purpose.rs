//! Who waits for an operation, and how it can end for them.

use super::super::block::Block;
use super::super::engine::{Answer, Name, Operation, Revision, Rival};
use super::At;
use super::interface::RequestId;
use crate::sys::clock::Moment;

/// Who waits for an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The contact: the node's record.
    Meet,
    /// The contact: the node's record was written.
    Register,
    /// The heartbeat, with the moment of the request.
    Heartbeat(Moment),
    /// The node's record and the epoch, beside a heartbeat.
    Look,
    /// The record and the key `alive` of another node, with the moment of the request.
    Ward(Name, Moment),
    /// The fence of another node, which ends its incarnations before this one.
    Fence(Name, u64),
    /// A realm, listed by the operation of this number.
    List(Name, u64),
    /// A watch of a realm.
    Watch(Name),
    /// The record of the node that has the address of the name of an ADD.
    Holder(RequestId),
    /// A block.
    Block(At),
    /// A split of a network's block.
    Split(Name, Block),
    /// The want of this node in a realm.
    Want(Name),
    /// A note of a conflict.
    Note(At, bool),
    /// A note of a pool, which only warns: nothing waits for it.
    Pool,
    /// A key of an ended incarnation of another node, in this realm.
    Freed(Name),
    /// The record of a reclaimed node, before the notes of its pools are deleted.
    Return(Remains),
    /// Nothing but an orphan of this realm: the realm is listed again if it was not deleted.
    Orphan(Name),
}

/// What a reclaimed node may have left in a realm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remains {
    /// The node.
    pub node: Name,
    /// The realm.
    pub realm: Name,
    /// The operations that delete it.
    pub operations: Vec<Operation>,
}

/// An outcome of an operation on blocks.
pub enum Result {
    /// It was done.
    Done(Revision, Answer),
    /// It compared and did not write.
    Lost(Revision, Rival),
    /// It was not done.
    Undone,
    /// It may have been done.
    Unknown,
}
