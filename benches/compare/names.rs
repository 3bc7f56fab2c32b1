//! Names of cases and operations, and numbers that are part of them: the budgets look them up.

pub const VERSION: &str = "VERSION";
pub const BRIDGE: &str = "bridge+host-local";
pub const DUAL: &str = "bridge+host-local dual stack";
pub const MACVLAN: &str = "macvlan+host-local";
pub const BANDWIDTH: &str = "bandwidth after bridge";
pub const CHAIN: &str = "bridge ipMasq+portmap+firewall+tuning+bandwidth";
pub const CNITOOL: &str = "the same five through cnitool";
pub const IPTABLES: &str = "bridge ipMasq iptables";
pub const CROWD: &str = "bridge ipMasq, 20 at a time";
pub const PORT_CROWD: &str = "portmap, a port each, 20 at a time";

/// How many connections a run opens, and the name of that operation.
pub const CONNECTIONS_OF_A_RUN: usize = 500;
pub const CONNECTIONS: &str = "500 connections";

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
