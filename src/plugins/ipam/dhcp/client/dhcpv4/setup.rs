//! A client's settings, and the messages that it sends.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hex;
use crate::net::mac::MacAddr;
use crate::plugins::ipam::dhcp::client::Outgoing;
use crate::plugins::ipam::dhcp::v4::lease::Intent;
use crate::plugins::ipam::dhcp::v4::message::{Message, MessageType};
use crate::plugins::ipam::dhcp::v4::options::code;
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
    pub provide: Vec<Provided>,
    /// Options to request from the server.
    pub request: Vec<u8>,
    /// The wait for the first answer; each further wait doubles.
    pub timeout: Duration,
    /// The longest of these waits.
    pub resend_max: Duration,
    /// The total time to acquire a lease.
    pub resend_timeout: Duration,
}

/// An option to send to the server: its code and its value, which is serialised in hex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provided(pub u8, #[serde(with = "hex")] pub Vec<u8>);

impl Setup {
    /// DHCPDISCOVER; asks for the address `wanted`, if any.
    pub(super) fn discover(&self, xid: u32, secs: u16, wanted: Option<Ipv4Addr>) -> Outgoing {
        let mut message = self.message(MessageType::Discover, xid, secs);
        message.broadcast = self.broadcast;
        if let Some(wanted) = wanted {
            message.options.set(code::REQUESTED_ADDRESS, &wanted.octets());
        }
        Outgoing::V4 { message, server: None }
    }

    /// DHCPREQUEST for an offered address.
    pub(super) fn request(&self, intent: &Intent, secs: u16) -> Outgoing {
        let mut message = self.message(MessageType::Request, intent.xid, secs);
        message.broadcast = self.broadcast;
        intent.write(&mut message.options);
        Outgoing::V4 { message, server: None }
    }

    /// DHCPREQUEST to extend the lease of an address, to its server or to any.
    pub(super) fn renew(
        &self,
        xid: u32,
        secs: u16,
        address: Ipv4Addr,
        server: Option<Ipv4Addr>,
    ) -> Outgoing {
        let mut message = self.message(MessageType::Request, xid, secs);
        message.ciaddr = address;
        message.options.remove(code::REQUESTED_ADDRESS);
        Outgoing::V4 { message, server }
    }

    /// DHCPDECLINE of an offered address that another host has.
    pub(super) fn decline(&self, intent: &Intent) -> Outgoing {
        let mut message = self.bare(MessageType::Decline, intent.xid);
        intent.write(&mut message.options);
        Outgoing::V4 { message, server: None }
    }

    /// DHCPRELEASE of an address that is leased, or was requested and may be granted by now.
    pub fn release(&self, intent: &Intent, random: &mut Random) -> Outgoing {
        let mut message = self.bare(MessageType::Release, random.word());
        message.ciaddr = intent.address;
        message.options.set(code::SERVER_ID, &intent.server.octets());
        Outgoing::V4 { message, server: Some(intent.server) }
    }

    /// The value of option 61. The reference leaves the provided one out of RELEASE, so that the
    /// server does not find the lease.
    pub(super) fn client_id(&self) -> &[u8] {
        let provided = self.provide.iter().rfind(|provided| provided.0 == code::CLIENT_ID);
        provided.map_or(&self.client_id, |provided| &provided.1)
    }

    /// A message that requests something.
    fn message(&self, kind: MessageType, xid: u32, secs: u16) -> Message {
        let mut message = self.bare(kind, xid);
        message.secs = secs;
        let options = &mut message.options;
        options.set(code::MAX_MESSAGE_SIZE, &MAX_MESSAGE_SIZE.to_be_bytes());
        if !self.request.is_empty() {
            options.set(code::PARAMETER_REQUEST, &self.request);
        }
        for Provided(code, value) in &self.provide {
            if !matches!(*code, code::MESSAGE_TYPE | code::SERVER_ID | code::OVERLOAD) {
                options.set(*code, value);
            }
        }
        message
    }

    /// A message that only identifies its sender.
    fn bare(&self, kind: MessageType, xid: u32) -> Message {
        let mut message = Message::of_client(kind, xid, &self.mac);
        message.options.set(code::CLIENT_ID, self.client_id());
        message
    }
}
