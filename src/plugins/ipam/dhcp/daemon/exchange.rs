//! The sockets of a conversation with servers. They are opened in the container's namespace and used from here.

use std::net::UdpSocket;
use std::os::fd::{AsFd as _, BorrowedFd};

use super::interface::{Absent, Place};
use crate::error::Result;
use crate::net::packet_socket::{self, ArpSocket, Claim, PacketSocket};
use crate::plugins::ipam::dhcp::v4::client::{Destination, Outgoing};

/// What is open while answers are expected.
pub struct Exchange {
    packets: PacketSocket,
    /// Where addresses are tried.
    arp: Option<ArpSocket>,
    /// What asked one server: while it is there, the container's kernel does not tell the server that nobody listens.
    unicast: Option<UdpSocket>,
}

impl Exchange {
    /// Opens the sockets, if the interface still is there.
    pub fn open(place: &Place, prefix: &str) -> Result<Exchange, Absent> {
        let mut opened = None;
        place.visit(prefix, &mut |_, link| {
            let packets = PacketSocket::open(link.index)?;
            let arp = place.probe.then(|| ArpSocket::open(link.index)).transpose()?;
            opened = Some(Exchange { packets, arp, unicast: None });
            Ok(())
        })?;
        opened.ok_or(Absent::Gone("its interface is gone"))
    }

    /// Sends a message. One to a server leaves by the container's own routes, if the interface has the address.
    pub fn send(&mut self, outgoing: &Outgoing, place: &Place, prefix: &str) -> Result<(), Absent> {
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
    pub fn probe(&self, address: std::net::Ipv4Addr, place: &Place) -> Result<()> {
        self.arp.as_ref().map_or(Ok(()), |arp| arp.probe(address, &place.mac))
    }

    /// The next datagram.
    pub fn datagram(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.packets.receive()?.map(|(_, payload)| payload))
    }

    /// The next word about the address that was probed for.
    pub fn claim(&self) -> Result<Option<Claim>> {
        self.arp.as_ref().map_or(Ok(None), ArpSocket::receive)
    }

    /// What becomes readable: datagrams, and claims.
    pub fn descriptors(&self) -> (BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.packets.as_fd(), self.arp.as_ref().map(|arp| arp.as_fd()))
    }
}
