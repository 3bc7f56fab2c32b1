//! DHCP of either family behind one interface, for the daemon: both clients do the same, with
//! addresses of their family.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::client::{self, State, Turn};
use super::{v4, v6};
use crate::cni::result::{AddResult, Route};
use crate::family::Family;
use crate::hex;
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a lease of IPv4 or of IPv6")]
pub enum Lease {
    /// An IPv4 lease.
    V4(v4::lease::Lease),
    /// An IPv6 lease.
    V6(v6::lease::Lease),
}

impl Lease {
    /// The address with its prefix length.
    pub fn net(&self) -> IpNet {
        match self {
            Lease::V4(lease) => lease.net().into(),
            Lease::V6(lease) => lease.net().into(),
        }
    }

    /// The address.
    pub fn address(&self) -> IpAddr {
        self.net().addr()
    }

    /// The server that granted it: an IPv4 address, or the DUID of a DHCPv6 server.
    pub fn server(&self) -> String {
        match self {
            Lease::V4(lease) => lease.server.to_string(),
            Lease::V6(lease) => source(lease),
        }
    }

    /// The IPv6 router, which may change at any time.
    pub fn router(&self) -> Option<Ipv6Addr> {
        if let Lease::V6(lease) = self { lease.router } else { None }
    }

    /// The four times: requested, T1, T2 and expiry.
    pub fn times(&self) -> [Moment; 4] {
        match self {
            Lease::V4(lease) => lease.times(),
            Lease::V6(lease) => lease.times(),
        }
    }

    /// The result of ADD for a link with this `mtu`. A `priority` of 0 means no metric.
    pub fn result(&self, priority: i64, mtu: u32) -> AddResult {
        let mut result = self.result_for_any_link(priority);
        limit_mtus(&mut result.routes, mtu);
        result
    }

    fn result_for_any_link(&self, priority: i64) -> AddResult {
        match self {
            Lease::V4(lease) => lease.result(priority),
            Lease::V6(lease) => lease.result(priority),
        }
    }

    /// The family of its address.
    pub fn family(&self) -> Family {
        match self {
            Lease::V4(_) => Family::V4,
            Lease::V6(_) => Family::V6,
        }
    }
}

/// An address that is about to be requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected an address and its server")]
pub enum Intent {
    /// An IPv4 address.
    V4(v4::client::Intent),
    /// An IPv6 address.
    V6(v6::client::Intent),
}

impl Intent {
    /// The family of its address.
    pub fn family(&self) -> Family {
        match self {
            Intent::V4(_) => Family::V4,
            Intent::V6(_) => Family::V6,
        }
    }
}

/// A message that a client sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A DHCPv4 message.
    V4(v4::client::Outgoing),
    /// A DHCPv6 message, to the servers on the link.
    V6(v6::message::Message),
    /// A router solicitation.
    Routers,
}

/// What an exchange has received.
pub enum Heard {
    /// A DHCPv4 message.
    V4(v4::message::Message),
    /// A DHCPv6 message.
    V6(v6::message::Message),
    /// A router's advertisement, and the link's own address.
    Router(v6::router::Advertisement, Ipv6Addr),
    /// A host answers ARP for an IPv4 address.
    ClaimV4(crate::net::packet_socket::Claim),
    /// A host claims this IPv6 address.
    ClaimV6(Ipv6Addr),
    /// A packet from this address that is none of these.
    Malformed(IpAddr),
}

/// What the daemon must do now.
pub type Action = client::Action<Outgoing, IpAddr, Intent, Lease>;

/// A client, boxed because its entry is moved each time it is looked at.
pub enum Client {
    /// A DHCPv4 client.
    V4(Box<v4::client::Client>),
    /// A client of DHCPv6, or of router advertisements.
    V6(Box<v6::client::Client>),
}

impl Client {
    /// When [`Client::on_time`] must be called, if nothing happens before.
    pub fn deadline(&self) -> Moment {
        match self {
            Client::V4(client) => client.deadline(),
            Client::V6(client) => client.deadline(),
        }
    }

    /// Whether an answer may arrive now, or something is due that may send.
    pub fn needs_sockets(&self, now: Moment) -> bool {
        match self {
            Client::V4(client) => client.needs_sockets(now),
            Client::V6(client) => client.needs_sockets(now),
        }
    }

    /// The client's state.
    pub fn state(&self) -> State {
        match self {
            Client::V4(client) => client.state(),
            Client::V6(client) => client.state(),
        }
    }

    /// Does what is due by `now`.
    pub fn on_time(&mut self, now: Moment, random: &mut Random) -> Vec<Action> {
        match self {
            Client::V4(client) => of_v4(client.on_time(Turn::new(now, random))),
            Client::V6(client) => of_v6(client.on_time(Turn::new(now, random))),
        }
    }

    /// Takes what an exchange has received.
    pub fn on_heard(&mut self, heard: Heard, now: Moment, random: &mut Random) -> Vec<Action> {
        match self {
            Client::V4(client) => of_v4(heard_by_v4(client, heard, Turn::new(now, random))),
            Client::V6(client) => of_v6(heard_by_v6(client, heard, Turn::new(now, random))),
        }
    }

    /// Ends the client. The returned message releases what it has or has requested.
    pub fn release(&mut self, random: &mut Random) -> Option<Outgoing> {
        match self {
            Client::V4(client) => client.release(random).map(Outgoing::V4),
            Client::V6(client) => client.release(random).map(Outgoing::V6),
        }
    }
}

fn heard_by_v4(
    client: &mut v4::client::Client,
    heard: Heard,
    turn: v4::client::Turn<'_>,
) -> Vec<v4::client::Action> {
    match heard {
        Heard::V4(message) => client.on_message(&message, turn),
        Heard::ClaimV4(claim) => client.on_conflict(claim.address, claim.mac, turn),
        Heard::Malformed(IpAddr::V4(from)) => {
            client.on_malformed(from);
            vec![]
        }
        _ => vec![], // an exchange has sockets of its client's family
    }
}

fn heard_by_v6(
    client: &mut v6::client::Client,
    heard: Heard,
    turn: v6::client::Turn<'_>,
) -> Vec<v6::client::Action> {
    match heard {
        Heard::V6(message) => client.on_message(&message, turn),
        Heard::Router(told, own) => client.on_router(told, own, turn),
        Heard::ClaimV6(address) => client.on_conflict(address, turn),
        _ => vec![],
    }
}

/// The server of an IPv6 lease, or the router that advertised the prefix of its address.
fn source(lease: &v6::lease::Lease) -> String {
    match lease.router.filter(|_| lease.server.is_empty()) {
        Some(router) => router.to_string(),
        None => hex::encode(&lease.server),
    }
}

/// Removes the MTUs that are not less than the link's: the kernel uses a route's MTU even if it is
/// larger.
fn limit_mtus(routes: &mut [Route], mtu: u32) {
    for route in routes.iter_mut().filter(|route| route.mtu >= mtu.into()) {
        route.mtu = 0;
    }
}

/// Converts the actions of a DHCPv4 client.
pub fn of_v4(actions: Vec<v4::client::Action>) -> Vec<Action> {
    actions.into_iter().map(v4::client::Action::convert).collect()
}

/// Converts the actions of a DHCPv6 client.
pub fn of_v6(actions: Vec<v6::client::Action>) -> Vec<Action> {
    actions.into_iter().map(v6::client::Action::convert).collect()
}

impl From<v4::client::Outgoing> for Outgoing {
    fn from(outgoing: v4::client::Outgoing) -> Outgoing {
        Outgoing::V4(outgoing)
    }
}

impl From<v6::client::Outgoing> for Outgoing {
    fn from(outgoing: v6::client::Outgoing) -> Outgoing {
        match outgoing {
            v6::client::Outgoing::Message(message) => Outgoing::V6(message),
            v6::client::Outgoing::Routers => Outgoing::Routers,
        }
    }
}

impl From<v4::client::Intent> for Intent {
    fn from(intent: v4::client::Intent) -> Intent {
        Intent::V4(intent)
    }
}

impl From<v6::client::Intent> for Intent {
    fn from(intent: v6::client::Intent) -> Intent {
        Intent::V6(intent)
    }
}

impl From<v4::lease::Lease> for Lease {
    fn from(lease: v4::lease::Lease) -> Lease {
        Lease::V4(lease)
    }
}

impl From<v6::lease::Lease> for Lease {
    fn from(lease: v6::lease::Lease) -> Lease {
        Lease::V6(lease)
    }
}
