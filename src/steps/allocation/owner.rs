//! Leases: which attachment owns which address.

use std::net::IpAddr;

use crate::cni::attachment::Key;

/// The owner of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The container's id.
    pub container_id: String,
    /// The interface's name; None in leases of old plugins, which did not write it.
    pub ifname: Option<String>,
}

impl Owner {
    /// The owner that an attachment is.
    pub fn new(container_id: &str, ifname: &str) -> Owner {
        Owner { container_id: container_id.trim().to_owned(), ifname: Some(ifname.to_owned()) }
    }

    /// The owner that the attachment of this key is.
    pub fn of(key: &Key) -> Owner {
        Owner::new(key.container_id.as_str(), key.ifname.as_str())
    }

    /// The same container without an interface name, as old plugins wrote it.
    #[must_use]
    pub fn without_ifname(&self) -> Owner {
        Owner { container_id: self.container_id.clone(), ifname: None }
    }
}

/// An address and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub ip: IpAddr,
    /// The attachment that holds it.
    pub owner: Owner,
}
