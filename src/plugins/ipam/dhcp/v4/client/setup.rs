//! What a client is told once, and the messages that it sends.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::net::mac::MacAddr;
use crate::plugins::ipam::dhcp::v4::lease::Lease;
use crate::plugins::ipam::dhcp::v4::message::{Message, MessageType};
use crate::plugins::ipam::dhcp::v4::options::{Options, code};
use crate::sys::random::Random;

/// What a message may be long: that of Ethernet.
const MAX_MESSAGE_SIZE: u16 = 1500;

/// What a client is and wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The hardware address of the link, which is Ethernet.
    pub mac: MacAddr,
    /// The value of option 61, unless it is provided.
    pub client_id: Vec<u8>,
    /// Answers have to be broadcast, as the link does not take those to its hardware address.
    pub broadcast: bool,
    /// An address is tried by ARP before it is used.
    pub probe: bool,
    /// Options for the server, in place of ours; those that make a message what it is stay ours.
    pub provide: Vec<(u8, Vec<u8>)>,
    /// Options that the server is asked for.
    pub request: Vec<u8>,
    /// How long it tries.
    pub patience: Patience,
}

/// How long a client waits for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For the first answer; each wait after it is twice as long.
    pub timeout: Duration,
    /// The longest of these waits.
    pub resend_max: Duration,
    /// For a lease, in all.
    pub resend_timeout: Duration,
}

/// Whom a message goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Everybody on the link, from no address.
    Broadcast,
    /// One server. If the link does not have `from`, as after an ADD that failed, the packet has
    /// both addresses and is for everybody on the link.
    Server {
        /// The leased address.
        from: Ipv4Addr,
        /// The server's.
        to: Ipv4Addr,
    },
}

/// A message to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The message.
    pub message: Message,
    /// Whom it goes to.
    pub to: Destination,
}

/// An address that is about to be requested. If nobody knows what came of it, it has to be given
/// back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The address.
    pub address: Ipv4Addr,
    /// Who has offered it.
    pub server: Ipv4Addr,
    /// Of the exchange.
    pub xid: u32,
}

/// Gives back what was requested, for who does not know whether it was granted.
pub fn release_of(intent: &Intent, setup: &Setup, random: &mut Random) -> Outgoing {
    setup.release(intent.address, intent.server, random.word())
}

impl Setup {
    /// DHCPDISCOVER; the server is asked for the address that is `wanted`.
    pub(super) fn discover(&self, xid: u32, secs: u16, wanted: Option<Ipv4Addr>) -> Outgoing {
        let mut message = self.message(MessageType::Discover, xid, secs);
        message.broadcast = self.broadcast;
        if let Some(wanted) = wanted {
            message.options.set(code::REQUESTED_ADDRESS, &wanted.octets());
        }
        Outgoing { message, to: Destination::Broadcast }
    }

    /// DHCPREQUEST for what was offered.
    pub(super) fn request(&self, secs: u16, intent: &Intent) -> Outgoing {
        let mut message = self.message(MessageType::Request, intent.xid, secs);
        message.broadcast = self.broadcast;
        name_offer(&mut message.options, intent.address, intent.server);
        Outgoing { message, to: Destination::Broadcast }
    }

    /// DHCPREQUEST for more time with a lease, of its server or of any.
    pub(super) fn renew(&self, xid: u32, secs: u16, lease: &Lease, of_any: bool) -> Outgoing {
        let mut message = self.message(MessageType::Request, xid, secs);
        message.ciaddr = lease.address;
        message.options.remove(code::REQUESTED_ADDRESS);
        let server = Destination::Server { from: lease.address, to: lease.server };
        Outgoing { message, to: if of_any { Destination::Broadcast } else { server } }
    }

    /// DHCPDECLINE of what was offered and is somebody else's.
    pub(super) fn decline(&self, intent: &Intent) -> Outgoing {
        let mut message = self.bare(MessageType::Decline, intent.xid);
        name_offer(&mut message.options, intent.address, intent.server);
        Outgoing { message, to: Destination::Broadcast }
    }

    /// DHCPRELEASE.
    pub(super) fn release(&self, address: Ipv4Addr, server: Ipv4Addr, xid: u32) -> Outgoing {
        let mut message = self.bare(MessageType::Release, xid);
        message.ciaddr = address;
        message.options.set(code::SERVER_ID, &server.octets());
        Outgoing { message, to: Destination::Server { from: address, to: server } }
    }

    /// The value of option 61. The reference forgets in RELEASE what is provided, and the server
    /// does not know the lease.
    pub(super) fn client_id(&self) -> &[u8] {
        let provided = self.provide.iter().rev().find(|(code, _)| *code == code::CLIENT_ID);
        provided.map_or(&self.client_id, |(_, value)| value)
    }

    /// A message that asks for something.
    fn message(&self, kind: MessageType, xid: u32, secs: u16) -> Message {
        let mut message = self.bare(kind, xid);
        message.secs = secs;
        message.options.set(code::MAX_MESSAGE_SIZE, &MAX_MESSAGE_SIZE.to_be_bytes());
        if !self.request.is_empty() {
            message.options.set(code::PARAMETER_REQUEST, &self.request);
        }
        let is_ours = |code| matches!(code, code::MESSAGE_TYPE | code::SERVER_ID | code::OVERLOAD);
        for (code, value) in self.provide.iter().filter(|(code, _)| !is_ours(*code)) {
            message.options.set(*code, value);
        }
        message
    }

    /// A message that says who sends it and no more.
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
