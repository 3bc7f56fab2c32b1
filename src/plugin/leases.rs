//! Leases for operators: what an IPAM plugin with leases offers to the commands about addresses,
//! whatever its store is.

use std::net::IpAddr;
use std::time::SystemTime;

use super::Context;
use crate::cni::attachment::NetworkName;
use crate::error::Result;

/// An address that is not free, and the attachment that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The address.
    pub address: IpAddr,
    /// The container's id; empty if the lease names none.
    pub container_id: String,
    /// The interface's name; empty in leases of old plugins.
    pub ifname: String,
    /// When it was allocated, if that is known.
    pub since: Option<SystemTime>,
    /// The path of the container's namespace, if the lease has it; else empty.
    pub netns_path: String,
}

/// A range that addresses are allocated from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeUse {
    /// The first and the last address: `10.88.0.2-10.88.0.254`.
    pub range: String,
    /// How many of its addresses are not free.
    pub held: u64,
    /// How many addresses it has to allocate; the largest number for more.
    pub size: u64,
}

/// The leases of one network, and its ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// The leases, in any order.
    pub held: Vec<Holding>,
    /// The configured ranges; none if the configuration has none, or is invalid.
    pub ranges: Vec<RangeUse>,
}

/// The leases of an IPAM plugin. The network of each call is that of the context's configuration.
pub trait LeaseStore: Sync {
    /// The network's leases. Takes no lock that an ADD would wait for.
    fn holdings(&self, cx: &Context<'_>) -> Result<Holdings>;

    /// The networks with leases in the default place, also those without a configuration.
    fn networks(&self) -> Result<Vec<NetworkName>>;

    /// The plugin whose store this is, if it is another one's: that plugin lists the networks without
    /// a configuration.
    fn shares_place_of(&self) -> Option<&'static str>;

    /// Frees the address if it is still held so; returns whether it was.
    fn free(&self, cx: &Context<'_>, held: &Holding) -> Result<bool>;

    /// What writes leases from elsewhere; None if only a server can grant them.
    fn importer(&self) -> Option<&dyn LeaseImporter>;
}

/// Leases that come from another machine.
pub struct Incoming<'a> {
    /// The leases.
    pub leases: &'a [Holding],
    /// Called before each lease is written, with the number of leases that are done and of all.
    pub tell: &'a dyn Fn(usize, usize),
}

/// Writes leases that come from another machine.
pub trait LeaseImporter {
    /// The number of leases that are missing here. Fails if a lease is outside of the ranges, or its
    /// address has another owner.
    fn preview(&self, cx: &Context<'_>, leases: &[Holding]) -> Result<usize>;

    /// Writes the missing leases and calls `then`, under the lock of ADD; returns how many were
    /// missing. Any failure, also of `then`, leaves the store as it was.
    fn import(
        &self,
        cx: &Context<'_>,
        incoming: &Incoming<'_>,
        then: &mut dyn FnMut() -> Result<()>,
    ) -> Result<usize>;
}
