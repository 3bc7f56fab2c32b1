//! The sockets of a conversation with servers. They are opened in the container's namespace and used from here.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};

use super::exchange_v6::ExchangeV6;
use super::interface::{Absent, Place};
use crate::error::Result;
use crate::net::packet_socket::{self, ArpSocket, PacketSocket};
use crate::plugins::ipam::dhcp::family::{Family, Heard, Outgoing};
use crate::plugins::ipam::dhcp::v4::client::{self, Destination};
use crate::plugins::ipam::dhcp::v4::message::Message;

/// What is open while answers are expected.
pub enum Exchange {
    /// In IPv4.
    V4(ExchangeV4),
    /// In IPv6.
    V6(ExchangeV6),
}

impl Exchange {
    /// Opens the sockets, if the interface still is there.
    pub fn open(place: &Place, prefix: &str, family: Family) -> Result<Exchange, Absent> {
        match family {
            Family::V4 => ExchangeV4::open(place, prefix).map(Exchange::V4),
            Family::V6 => ExchangeV6::open(place, prefix).map(Exchange::V6),
        }
    }

    /// Whether anything can be sent; if not, that is heard of.
    pub fn is_ready(&self) -> bool {
        match self {
            Exchange::V4(_) => true,
            Exchange::V6(exchange) => exchange.is_ready(),
        }
    }

    /// Sends what a client wants to be sent.
    pub fn send(&mut self, outgoing: &Outgoing, place: &Place, prefix: &str) -> Result<(), Absent> {
        match (self, outgoing) {
            (Exchange::V4(exchange), Outgoing::V4(outgoing)) => exchange.send(outgoing, place, prefix),
            (Exchange::V6(exchange), Outgoing::V6(message)) => Ok(exchange.send(message)?),
            (Exchange::V6(exchange), Outgoing::Routers) => Ok(exchange.ask_routers(place)?),
            _ => Ok(()), // a client has an exchange of its own family
        }
    }

    /// Asks who has an address.
    pub fn probe(&self, address: IpAddr, place: &Place) -> Result<()> {
        match (self, address) {
            (Exchange::V4(exchange), IpAddr::V4(address)) => exchange.probe(address, place),
            (Exchange::V6(exchange), IpAddr::V6(address)) => exchange.probe(address, place),
            _ => Ok(()),
        }
    }

    /// What has come. The sockets are asked once each: poll(2) says whether there is more.
    pub fn hear(&mut self) -> Result<Vec<Heard>> {
        match self {
            Exchange::V4(exchange) => exchange.hear(),
            Exchange::V6(exchange) => exchange.hear(),
        }
    }

    /// What becomes readable.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Exchange::V4(exchange) => exchange.descriptors(),
            Exchange::V6(exchange) => exchange.descriptors(),
        }
    }
}

/// Packets, and ARP.
pub struct ExchangeV4 {
    packets: PacketSocket,
    /// Where addresses are tried.
    arp: Option<ArpSocket>,
    /// What asked one server: while it is there, the container's kernel does not tell the server that nobody listens.
    unicast: Option<UdpSocket>,
}

impl ExchangeV4 {
    fn open(place: &Place, prefix: &str) -> Result<ExchangeV4, Absent> {
        let mut opened = None;
        place.visit(prefix, &mut |_, link| {
            let packets = PacketSocket::open(link.index)?;
            let arp = place.probe.then(|| ArpSocket::open(link.index)).transpose()?;
            opened = Some(ExchangeV4 { packets, arp, unicast: None });
            Ok(())
        })?;
        opened.ok_or(Absent::Gone("its interface is gone"))
    }

    /// Sends a message. One to a server leaves by the container's own routes, if the interface has the address.
    fn send(&mut self, outgoing: &client::Outgoing, place: &Place, prefix: &str) -> Result<(), Absent> {
        let payload = outgoing.message.encode();
        let Destination::Server { from, to } = outgoing.to else { return Ok(self.packets.broadcast(&payload)?) };
        let mut sent = None;
        let asked = place.visit(prefix, &mut |netlink, link| {
            // Binding tells nothing: in a namespace that never had an address, any can be bound.
            if netlink.addresses(link)?.iter().any(|address| address.net.addr() == from) {
                sent = Some(packet_socket::unicast(from, to, &link.name, &payload)?);
            }
            Ok(())
        });
        if let Err(Absent::Gone(why)) = asked {
            return Err(Absent::Gone(why));
        }
        self.unicast = sent;
        match self.unicast {
            Some(_) => Ok(()),
            None => Ok(self.packets.send(from, to, &payload)?), // then by whoever is on the link
        }
    }

    /// Asks by ARP who has an address.
    fn probe(&self, address: Ipv4Addr, place: &Place) -> Result<()> {
        self.arp.as_ref().map_or(Ok(()), |arp| arp.probe(address, &place.mac))
    }

    /// What owners say of the address that was probed, and datagrams.
    fn hear(&self) -> Result<Vec<Heard>> {
        let claim = self.arp.as_ref().map_or(Ok(None), ArpSocket::receive)?.map(Heard::ClaimV4);
        let message = |(_, payload): (_, Vec<u8>)| Message::decode(&payload).map_or(Heard::Malformed, Heard::V4);
        Ok(claim.into_iter().chain(self.packets.receive()?.map(message)).collect())
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        [Some(self.packets.as_fd()), self.arp.as_ref().map(|arp| arp.as_fd())].into_iter().flatten().collect()
    }
}
