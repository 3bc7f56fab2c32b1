//! What the clients of both families share: how they are called, the actions that they return, and
//! the leases that they acquire.

pub mod dhcpv4;
pub mod dhcpv6;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::cni::result::AddResult;
use crate::hex;
use crate::net::packet_socket::Claim;
use crate::plugins::ipam::dhcp::times::Times;
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// How long the owner of an address has to answer a probe.
pub const PROBE: Duration = Duration::from_millis(50);

/// A client on one link: a state machine without sockets, clocks or random numbers of its own.
pub trait Client {
    /// When [`Client::on_time`] must be called, if nothing happens before.
    fn deadline(&self) -> Moment;

    /// Whether an answer may arrive now, or something is due that may send.
    fn needs_sockets(&self, now: Moment) -> bool;

    /// The client's state.
    fn state(&self) -> State;

    /// Does what is due by now.
    fn on_time(&mut self, turn: Turn<'_>) -> Vec<Action>;

    /// Takes what was received; ignores what is for other clients, and what is not expected.
    fn on_heard(&mut self, heard: Heard, turn: Turn<'_>) -> Vec<Action>;

    /// Ends the client. The returned message releases what it has or has requested.
    fn release(&mut self, random: &mut Random) -> Option<Outgoing>;
}

/// One call of a client: the time, random numbers, and the actions to return.
pub struct Turn<'a> {
    /// The time of the event.
    pub now: Moment,
    /// The source of transaction ids and of spread.
    pub random: &'a mut Random,
    /// What the caller must do, in this order.
    pub actions: Vec<Action>,
}

impl<'a> Turn<'a> {
    /// Begins a call.
    pub fn new(now: Moment, random: &'a mut Random) -> Turn<'a> {
        Turn { now, random, actions: vec![] }
    }
}

/// What an exchange has received.
pub enum Heard {
    /// A DHCPv4 message.
    V4(super::v4::Message),
    /// A DHCPv6 message.
    V6(super::v6::Message),
    /// A router's advertisement, and the link's own address.
    Router(super::v6::router::Advertisement, Ipv6Addr),
    /// A host answers ARP for an IPv4 address.
    ClaimV4(Claim),
    /// A host claims this IPv6 address.
    ClaimV6(Ipv6Addr),
    /// A packet from this address that is none of these.
    Malformed(IpAddr),
}

/// What the caller must do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the message.
    Send(Outgoing),
    /// Probe the link for a host that has the address.
    Probe(IpAddr),
    /// Journal the intent before the message that follows.
    Intend(Intent),
    /// The first lease: journal it.
    Bound(Lease),
    /// The lease was extended, or has another router: journal it.
    Renewed(Lease),
    /// The address must leave the link. The client tries to get it again.
    Lost(Reason),
    /// The lost address is leased again: put it back and journal the lease.
    Regained(Lease),
    /// There will be no lease, for this reason. The client has ended.
    GaveUp(String),
}

/// A message that a client sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A DHCPv4 message.
    V4 {
        /// The message.
        message: super::v4::Message,
        /// The one server that it goes to, from its `ciaddr`. If the link does not have that
        /// address, as after a failed ADD, the packet has both IP addresses and is broadcast on the
        /// link. `None` is every host on the link, from the unspecified address.
        server: Option<Ipv4Addr>,
    },
    /// A DHCPv6 message, to the servers on the link.
    V6(super::v6::Message),
    /// A solicitation to the routers on the link.
    Routers,
}

/// An address that is about to be requested. It must be released if the outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected an address and its server")]
pub enum Intent {
    /// An IPv4 address.
    V4(super::v4::lease::Intent),
    /// An IPv6 address.
    V6(super::v6::lease::Intent),
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a lease of IPv4 or of IPv6")]
pub enum Lease {
    /// An IPv4 lease.
    V4(super::v4::lease::Lease),
    /// An IPv6 lease.
    V6(super::v6::lease::Lease),
}

impl Lease {
    /// The address with its prefix length.
    pub fn net(&self) -> IpNet {
        match self {
            Lease::V4(lease) => lease.net.into(),
            Lease::V6(lease) => lease.net.into(),
        }
    }

    /// When it was requested, is due and ends.
    pub fn times(&self) -> &Times {
        match self {
            Lease::V4(lease) => &lease.times,
            Lease::V6(lease) => &lease.times,
        }
    }

    /// Who granted it: the address of a DHCPv4 server, the DUID of a DHCPv6 server, or the router
    /// that advertised the prefix of its address.
    pub fn server(&self) -> String {
        match self {
            Lease::V4(lease) => lease.server.to_string(),
            Lease::V6(super::v6::lease::Lease { server, router: Some(router), .. })
                if server.is_empty() =>
            {
                router.to_string()
            }
            Lease::V6(lease) => hex::encode(&lease.server),
        }
    }

    /// The IPv6 router, which may change at any time.
    pub fn router(&self) -> Option<Ipv6Addr> {
        if let Lease::V6(lease) = self { lease.router } else { None }
    }

    /// The result of ADD for a link with this `mtu`. A `priority` of 0 means no metric.
    pub fn result(&self, priority: i64, mtu: u32) -> AddResult {
        let mut result = match self {
            Lease::V4(lease) => lease.result(priority),
            Lease::V6(lease) => lease.result(priority),
        };
        // The kernel uses a route's MTU even if it is larger than the link's.
        for route in result.routes.iter_mut().filter(|route| route.mtu >= mtu.into()) {
            route.mtu = 0;
        }
        result
    }
}

/// A wait with up to a tenth added or subtracted, so that clients started together do not send
/// together.
pub fn jittered(wait: Duration, random: &mut Random) -> Duration {
    wait - wait / 10 + random.below(wait / 5)
}

/// The state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is looking for servers.
    Selecting,
    /// It has requested an offered address.
    Requesting,
    /// It waits before it looks for servers again: the last request was refused, or the address was
    /// in use by another host.
    Waiting,
    /// It has a lease.
    Bound,
    /// It has a lease and has asked its server to extend it.
    Renewing,
    /// It has a lease and has asked all servers to extend it.
    Rebinding,
    /// Its lease has ended, and it tries to get the same address again.
    Expired,
    /// It has given up, or has released its lease.
    Ended,
}

/// Why an address must leave the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its lease has expired.
    Expired,
    /// A server has refused it, and no server has offered it again.
    Refused,
    /// Its server has refused it and offers only this one, which the running container cannot take
    /// over.
    OtherAddress(Ipv4Addr),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Expired => f.write_str("expired"),
            Reason::Refused => f.write_str("refused"),
            Reason::OtherAddress(other) => write!(f, "refused, {other} offered"),
        }
    }
}

/// How many different answers the error of a failed search lists. A server could send a different
/// one each time.
const TROUBLES_MAX: usize = 8;

/// The problems heard in a search without a lease so far, each once, in order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    heard: Vec<String>,
    left_out: usize,
}

impl Troubles {
    /// Notes a problem.
    pub fn note(&mut self, what: String) {
        if self.heard.contains(&what) {
            return;
        }
        if self.heard.len() < TROUBLES_MAX { self.heard.push(what) } else { self.left_out += 1 }
    }

    /// All problems as text; `silence` if there are none.
    pub fn or(&self, silence: &str) -> String {
        match (self.heard.join("; "), self.left_out) {
            (none, 0) if none.is_empty() => silence.to_owned(),
            (all, 0) => all,
            (all, more) => format!("{all}; and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn troubles_are_told_once_in_order_and_not_without_end() {
        let mut troubles = Troubles::default();
        assert_eq!(troubles.or("silence"), "silence");
        ["a", "b", "a"].into_iter().for_each(|what| troubles.note(what.into()));
        assert_eq!(troubles.or("silence"), "a; b");
        (0..100).for_each(|number| troubles.note(number.to_string()));
        assert_eq!(troubles.or("silence"), "a; b; 0; 1; 2; 3; 4; 5; and 94 more");
    }
}
