//! Names of sides, cases and operations, and numbers that are part of them: the budgets look them up.

/// The side that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Ours,
    Reference,
    /// A C program that does the least work possible.
    Floor,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Ours => "ours",
            Side::Reference => "reference",
            Side::Floor => "floor",
        }
    }
}

pub const VERSION: &str = "VERSION";
pub const BRIDGE: &str = "bridge+host-local";
pub const DUAL: &str = "bridge+host-local dual stack";
pub const MACVLAN: &str = "macvlan+host-local";
pub const BANDWIDTH: &str = "bandwidth after bridge";
pub const CHAIN: &str = "bridge ipMasq+portmap+firewall+tuning+bandwidth";
pub const CNITOOL: &str = "the same five through cnitool";
pub const MASQUERADE: &str = "bridge ipMasq nftables";
pub const IPTABLES: &str = "bridge ipMasq iptables";
pub const CROWD: &str = "bridge ipMasq, 20 at a time";
pub const PORT_CROWD: &str = "portmap, a port each, 20 at a time";

/// How many containers a crowd of chains attaches at a time.
pub const WIDTHS: [usize; 4] = [1, 5, 20, 60];

pub fn crowd_of_chains(width: usize) -> String {
    format!("{CHAIN}, {width} at a time")
}

pub fn crowd_of_networks(width: usize) -> String {
    format!("{CHAIN}, by net, {width} at a time")
}

/// How many connections a run opens, and the name of that operation.
pub const CONNECTIONS_OF_A_RUN: usize = 500;
pub const CONNECTIONS: &str = "500 connections";

/// A way of packets through the host, and the operations that are measured on it.
pub struct Way {
    pub datagrams: &'static str,
    pub connections: &'static str,
    pub stream: &'static str,
}

impl Way {
    pub fn operations(&self) -> [&'static str; 3] {
        [self.datagrams, self.connections, self.stream]
    }
}

pub static TO_OUTSIDE: Way = Way {
    datagrams: "a datagram to outside",
    connections: "TCP connections to outside",
    stream: "a TCP stream to outside",
};
pub static TO_PORT: Way = Way {
    datagrams: "a datagram to a published port",
    connections: "TCP connections to a published port",
    stream: "a TCP stream to a published port",
};
pub static TO_NEIGHBOUR: Way = Way {
    datagrams: "a datagram to a neighbour",
    connections: "TCP connections to a neighbour",
    stream: "a TCP stream to a neighbour",
};
pub static WAYS: [&Way; 3] = [&TO_OUTSIDE, &TO_PORT, &TO_NEIGHBOUR];

/// How much a run of those operations sends.
pub const DATAGRAMS_OF_A_RUN: usize = 10_000;
pub const OCTETS_OF_A_STREAM: usize = 64 << 20;

/// The kernel's memory for one container of a full host, in the order of the report.
pub const BARE: &str = "its network namespace";
pub const ATTACHED: &str = "more with the attachment";
pub const FREED: &str = "less after DEL";

pub fn memory(containers: usize) -> String {
    format!("one of {containers} containers, the five")
}

pub fn density(containers: usize) -> String {
    format!("one more than {containers} containers, the five")
}

pub fn packets(containers: usize) -> String {
    format!("{containers} containers")
}

pub fn packets_of_nftables(containers: usize) -> String {
    format!("{containers} containers, the reference on nftables")
}

pub fn packets_beside_netavark(containers: usize) -> String {
    format!("{containers} containers, netavark in the reference's place")
}

pub fn packets_with_fast_path(containers: usize) -> String {
    format!("{containers} containers, ours without fastPath in the reference's place")
}

pub fn full_host(containers: usize) -> String {
    format!("published port of {containers} containers")
}

pub fn killed(points: usize) -> String {
    format!("{CHAIN}, killed at {points} moments")
}

pub fn leases(count: usize) -> String {
    format!("host-local, {count} leases")
}

pub fn mappings(count: usize) -> String {
    format!("portmap, {count} mappings")
}
