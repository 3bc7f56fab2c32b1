//! What a difference that CHECK finds is about.

use std::net::IpAddr;

use ipnet::IpNet;

/// What a difference is about, so that a caller that has reported its cause need not report it
/// again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aspect {
    /// The container's interface is missing, down or another.
    Interface,
    /// The host's end of the pair is missing or down.
    HostEnd,
    /// The bridge is missing or down.
    Bridge,
    /// The host's end is not a port of the bridge.
    Port,
    /// The container lacks an address.
    Address(IpNet),
    /// The container lacks the route to this destination, or the host's leads elsewhere.
    Route(IpNet),
    /// The host lacks the gateway's address.
    Gateway(IpAddr),
    /// A sysctl of the host has another value.
    Setting(String),
    /// An address is not masqueraded.
    Masquerade,
    /// An address has no lease, or that of another container.
    Lease,
    /// What it belongs to is missing, which is a difference of its own.
    Cause,
}
