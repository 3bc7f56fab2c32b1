//! DHCP of either family behind one face, for the daemon: what one client says is what the other
//! says, about other addresses.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::client::{self, State};
use super::{v4, v6};
use crate::cni::result::AddResult;
use crate::hex;
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// Of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u8", into = "u8")]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];
}

impl From<u8> for Family {
    fn from(version: u8) -> Family {
        if version == 6 { Family::V6 } else { Family::V4 }
    }
}

impl From<Family> for u8 {
    fn from(family: Family) -> u8 {
        match family {
            Family::V4 => 4,
            Family::V6 => 6,
        }
    }
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a lease of IPv4 or of IPv6")]
pub enum Lease {
    /// Of IPv4.
    V4(v4::lease::Lease),
    /// Of IPv6.
    V6(v6::lease::Lease),
}

impl Lease {
    /// The address with the length of its prefix.
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

    /// Who has granted it: an address, or the DUID of a server of DHCPv6.
    pub fn server(&self) -> String {
        match self {
            Lease::V4(lease) => lease.server.to_string(),
            Lease::V6(lease) => match lease.router.filter(|_| lease.server.is_empty()) {
                Some(router) => router.to_string(),
                None => hex::encode(&lease.server),
            },
        }
    }

    /// The router of IPv6, which may be another one at any time.
    pub fn router(&self) -> Option<Ipv6Addr> {
        if let Lease::V6(lease) = self { lease.router } else { None }
    }

    /// When it was asked for, T1, T2 and the end.
    pub fn times(&self) -> [Moment; 4] {
        match self {
            Lease::V4(lease) => [lease.acquired, lease.t1, lease.t2, lease.expires],
            Lease::V6(lease) => [lease.acquired, lease.t1, lease.t2, lease.expires],
        }
    }

    /// What ADD returns, for a link that carries `mtu` bytes. A `priority` of 0 is none.
    pub fn result(&self, priority: i64, mtu: u32) -> AddResult {
        let mut result = match self {
            Lease::V4(lease) => lease.result(priority),
            Lease::V6(lease) => lease.result(priority),
        };
        // A route's counts even where it is larger than what the link can carry.
        for route in result.routes.iter_mut().filter(|route| route.mtu >= mtu.into()) {
            route.mtu = 0;
        }
        result
    }

    /// Of its address.
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
    /// Of IPv4.
    V4(v4::client::Intent),
    /// Of IPv6.
    V6(v6::client::Intent),
}

impl Intent {
    /// Of its address.
    pub fn family(&self) -> Family {
        match self {
            Intent::V4(_) => Family::V4,
            Intent::V6(_) => Family::V6,
        }
    }
}

/// What a client sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A message of DHCPv4.
    V4(v4::client::Outgoing),
    /// A message of DHCPv6, to the servers of the link.
    V6(v6::message::Message),
    /// A question to the routers of the link.
    Routers,
}

/// What has come in an exchange.
pub enum Heard {
    /// A message of DHCPv4.
    V4(v4::message::Message),
    /// A message of DHCPv6.
    V6(v6::message::Message),
    /// What a router tells, and the link's own address.
    Router(v6::router::Advertisement, Ipv6Addr),
    /// Somebody answers ARP for an address.
    ClaimV4(crate::net::packet_socket::Claim),
    /// Somebody says that he has an address.
    ClaimV6(Ipv6Addr),
    /// From here a packet that is nothing of these.
    Malformed(IpAddr),
}

/// What has to be done now.
pub type Action = client::Action<Outgoing, IpAddr, Intent, Lease>;

/// A client, by reference: a lease is moved at each look.
pub enum Client {
    /// Of DHCPv4.
    V4(Box<v4::client::Client>),
    /// Of DHCPv6, or of routers.
    V6(Box<v6::client::Client>),
}

impl Client {
    /// When [`Client::on_time`] has to be called, unless something else comes before.
    pub fn deadline(&self) -> Moment {
        match self {
            Client::V4(client) => client.deadline(),
            Client::V6(client) => client.deadline(),
        }
    }

    /// Whether an answer may come now, or something is due that may send.
    pub fn needs_sockets(&self, now: Moment) -> bool {
        match self {
            Client::V4(client) => client.needs_sockets(now),
            Client::V6(client) => client.needs_sockets(now),
        }
    }

    /// Where the client is.
    pub fn state(&self) -> State {
        match self {
            Client::V4(client) => client.state(),
            Client::V6(client) => client.state(),
        }
    }

    /// Looks at the clock.
    pub fn on_time(&mut self, now: Moment, random: &mut Random) -> Vec<Action> {
        match self {
            Client::V4(client) => of_v4(client.on_time(now, random)),
            Client::V6(client) => of_v6(client.on_time(now, random)),
        }
    }

    /// Takes what has come.
    pub fn on_heard(&mut self, heard: Heard, now: Moment, random: &mut Random) -> Vec<Action> {
        match (self, heard) {
            (Client::V4(client), Heard::V4(message)) => {
                of_v4(client.on_message(&message, now, random))
            }
            (Client::V4(client), Heard::ClaimV4(claim)) => {
                of_v4(client.on_conflict(claim.address, claim.mac, now, random))
            }
            (Client::V4(client), Heard::Malformed(IpAddr::V4(from))) => {
                client.on_malformed(from);
                vec![]
            }
            (Client::V6(client), Heard::V6(message)) => {
                of_v6(client.on_message(&message, now, random))
            }
            (Client::V6(client), Heard::Router(told, own)) => {
                of_v6(client.on_router(told, own, now, random))
            }
            (Client::V6(client), Heard::ClaimV6(address)) => {
                of_v6(client.on_conflict(address, now, random))
            }
            _ => vec![], // the sockets of an exchange are of the client's family
        }
    }

    /// Ends the client. What it has, or has asked for, is to be given back by this message.
    pub fn release(&mut self, random: &mut Random) -> Option<Outgoing> {
        match self {
            Client::V4(client) => client.release(random).map(Outgoing::V4),
            Client::V6(client) => client.release(random).map(Outgoing::V6),
        }
    }
}

/// The actions of a client of DHCPv4.
pub fn of_v4(actions: Vec<v4::client::Action>) -> Vec<Action> {
    let of =
        |action: v4::client::Action| action.map(Outgoing::V4, IpAddr::V4, Intent::V4, Lease::V4);
    actions.into_iter().map(of).collect()
}

/// The actions of a client of DHCPv6.
pub fn of_v6(actions: Vec<v6::client::Action>) -> Vec<Action> {
    let send = |outgoing| match outgoing {
        v6::client::Outgoing::Message(message) => Outgoing::V6(message),
        v6::client::Outgoing::Routers => Outgoing::Routers,
    };
    let of = |action: v6::client::Action| action.map(send, IpAddr::V6, Intent::V6, Lease::V6);
    actions.into_iter().map(of).collect()
}
