//! A client's settings, and the messages that it sends.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::net::mac::MacAddr;
use crate::plugins::ipam::dhcp::v4::lease::Lease;
use crate::plugins::ipam::dhcp::v4::message::{Message, MessageType};
use crate::plugins::ipam::dhcp::v4::options::{Options, code};
use crate::sys::random::Random;

/// The longest message to accept: Ethernet's MTU.
const MAX_MESSAGE_SIZE: u16 = 1500;

/// The settings of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The hardware address of the link, which is Ethernet.
    pub mac: MacAddr,
    /// The value of option 61, unless `provide` has one.
    pub client_id: Vec<u8>,
    /// Servers must broadcast their answers: the link does not receive frames to its hardware
    /// address.
    pub broadcast: bool,
    /// Probe an address by ARP before using it.
    pub probe: bool,
    /// Options to send to the server in place of the client's own, except those that define the
    /// message.
    pub provide: Vec<(u8, Vec<u8>)>,
    /// Options to request from the server.
    pub request: Vec<u8>,
    /// How long to try.
    pub patience: Patience,
}

/// How long a client waits for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The wait for the first answer; each further wait doubles.
    pub timeout: Duration,
    /// The longest of these waits.
    pub resend_max: Duration,
    /// The total time to acquire a lease.
    pub resend_timeout: Duration,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Every host on the link, from the unspecified address.
    Broadcast,
    /// One server. If the link does not have `from`, as after a failed ADD, the packet has both IP
    /// addresses and is broadcast on the link.
    Server {
        /// The leased address.
        from: Ipv4Addr,
        /// The server's address.
        to: Ipv4Addr,
    },
}

/// A message to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The message.
    pub message: Message,
    /// Its destination.
    pub to: Destination,
}

/// An address that is about to be requested. It must be released if the outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The address.
    pub address: Ipv4Addr,
    /// The server that has offered it.
    pub server: Ipv4Addr,
    /// The transaction id of the exchange.
    pub xid: u32,
}

impl Intent {
    /// The intent that led to a lease, which releases it.
    pub(super) fn of(lease: &Lease) -> Intent {
        Intent { address: lease.address, server: lease.server, xid: lease.xid }
    }
}

/// What the messages of an exchange have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Exchange {
    /// The transaction id.
    pub xid: u32,
    /// Seconds since the search, or the renewal, began.
    pub secs: u16,
}

/// The message that releases a requested address when the outcome is unknown.
pub fn release_of(intent: &Intent, setup: &Setup, random: &mut Random) -> Outgoing {
    setup.release(intent.address, intent.server, random.word())
}

impl Setup {
    /// DHCPDISCOVER; asks for the address `wanted`, if any.
    pub(super) fn discover(&self, exchange: Exchange, wanted: Option<Ipv4Addr>) -> Outgoing {
        let mut message = self.message(MessageType::Discover, exchange);
        message.broadcast = self.broadcast;
        if let Some(wanted) = wanted {
            message.options.set(code::REQUESTED_ADDRESS, &wanted.octets());
        }
        Outgoing { message, to: Destination::Broadcast }
    }

    /// DHCPREQUEST for an offered address.
    pub(super) fn request(&self, secs: u16, intent: &Intent) -> Outgoing {
        let exchange = Exchange { xid: intent.xid, secs };
        let mut message = self.message(MessageType::Request, exchange);
        message.broadcast = self.broadcast;
        name_offer(&mut message.options, intent.address, intent.server);
        Outgoing { message, to: Destination::Broadcast }
    }

    /// DHCPREQUEST to extend a lease, to its server or to any.
    pub(super) fn renew(&self, exchange: Exchange, lease: &Lease, of_any: bool) -> Outgoing {
        let mut message = self.message(MessageType::Request, exchange);
        message.ciaddr = lease.address;
        message.options.remove(code::REQUESTED_ADDRESS);
        let server = Destination::Server { from: lease.address, to: lease.server };
        Outgoing { message, to: if of_any { Destination::Broadcast } else { server } }
    }

    /// DHCPDECLINE of an offered address that another host has.
    pub(super) fn decline(&self, intent: &Intent) -> Outgoing {
        let mut message = self.bare(MessageType::Decline, intent.xid);
        name_offer(&mut message.options, intent.address, intent.server);
        Outgoing { message, to: Destination::Broadcast }
    }

    /// DHCPRELEASE of a lease.
    pub(super) fn release(&self, address: Ipv4Addr, server: Ipv4Addr, xid: u32) -> Outgoing {
        let mut message = self.bare(MessageType::Release, xid);
        message.ciaddr = address;
        message.options.set(code::SERVER_ID, &server.octets());
        Outgoing { message, to: Destination::Server { from: address, to: server } }
    }

    /// The value of option 61. The reference leaves the provided one out of RELEASE, so that the
    /// server does not find the lease.
    pub(super) fn client_id(&self) -> &[u8] {
        let provided = self.provide.iter().rfind(|(code, _)| *code == code::CLIENT_ID);
        provided.map_or(&self.client_id, |(_, value)| value)
    }

    /// A message that requests something.
    fn message(&self, kind: MessageType, exchange: Exchange) -> Message {
        let mut message = self.bare(kind, exchange.xid);
        message.secs = exchange.secs;
        message.options.set(code::MAX_MESSAGE_SIZE, &MAX_MESSAGE_SIZE.to_be_bytes());
        if !self.request.is_empty() {
            message.options.set(code::PARAMETER_REQUEST, &self.request);
        }
        self.add_provided(&mut message.options);
        message
    }

    fn add_provided(&self, options: &mut Options) {
        let is_ours = |code| matches!(code, code::MESSAGE_TYPE | code::SERVER_ID | code::OVERLOAD);
        for (code, value) in self.provide.iter().filter(|(code, _)| !is_ours(*code)) {
            options.set(*code, value);
        }
    }

    /// A message that only identifies its sender.
    fn bare(&self, kind: MessageType, xid: u32) -> Message {
        let mut message = Message::of_client(kind, xid, &self.mac);
        message.options.set(code::CLIENT_ID, self.client_id());
        message
    }
}

fn name_offer(options: &mut Options, address: Ipv4Addr, server: Ipv4Addr) {
    options.set(code::REQUESTED_ADDRESS, &address.octets());
    options.set(code::SERVER_ID, &server.octets());
}
