//! What a client is made of and what it yields.

use super::super::engine::{Change, Name, OperationId, Outcome};
use super::endpoint::Endpoint;
use super::login::Login;
use super::tls::Tls;

/// Where a client connects to.
#[derive(Clone, Debug)]
pub struct Store {
    /// The name of the cluster, a part of each key.
    pub cluster: Name,
    /// The members.
    pub endpoints: Vec<Endpoint>,
    /// Certificates.
    pub tls: Tls,
    /// User and password, if the store asks for them.
    pub login: Option<Login>,
}

/// What a client yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An operation has ended.
    Outcome(OperationId, Outcome),
    /// A watch saw a change.
    Change(OperationId, Change),
    /// The store was inspected.
    Inspected(Inspection),
}

/// Why the etcd of a control plane is not used.
pub const CONTROL_PLANE: &str = "this etcd has the objects of a Kubernetes control plane, and the user \
    can read them: use an etcd of its own, or a role for the prefix /cni-multi/ alone, or set \
    etcd.acceptControlPlane";

/// What an inspection of the store found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inspection {
    /// A Kubernetes control plane keeps its objects here, and the user can read them.
    ControlPlane,
    /// It does not, or the user cannot.
    Separate,
    /// The store could not be asked.
    Failed(Outcome),
}

/// One of a client's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The connection for requests.
    Requests,
    /// The stream of the watch with this id.
    Watch(OperationId),
}
