//! The sockets of a DHCPv4 conversation with servers.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::thread;

use super::interface::{Absent, Place};
use crate::error::Result;
use crate::net::packet_socket::{self, ArpSocket, PacketSocket};
use crate::plugins::ipam::dhcp::family::Heard;
use crate::plugins::ipam::dhcp::v4::client::{Destination, Outgoing};
use crate::plugins::ipam::dhcp::v4::message::Message;

/// The stack size of a thread that closes sockets.
const STACK: usize = 64 * 1024;

/// The sockets that are open while answers are expected.
pub struct ExchangeV4 {
    packets: PacketSocket,
    /// The interface no longer has the hardware address that a server would answer to.
    is_readdressed: bool,
    /// On ipvlan, receives what arrives at its master. Some servers, Kea among them, broadcast in
    /// frames to one hardware address, the master's; ipvlan looks for a link with the IP
    /// destination address and leaves such frames to the master.
    master: Option<PacketSocket>,
    /// For an address that was probed.
    arp: Option<ArpSocket>,
    /// The socket that sent to one server: while it is open, the container's kernel does not answer
    /// the server with an ICMP port unreachable.
    unicast: Option<UdpSocket>,
}

impl ExchangeV4 {
    /// Opens the sockets, if the interface still exists.
    pub fn open(place: &Place, prefix: &str) -> Result<ExchangeV4, Absent> {
        let mut packets = None;
        let mut master = None;
        let mut master_here = None;
        let mut is_readdressed = false;
        place.visit(prefix, &mut |at| {
            let link = at.link;
            packets = Some(PacketSocket::open(link.index)?);
            is_readdressed = link.mac() != place.mac;
            match link.lower.filter(|_| link.kind == "ipvlan") {
                Some(lower) if link.lower_is_elsewhere() => master_here = Some(lower),
                lower => master = lower.and_then(listen_too),
            }
            Ok(())
        })?;
        let packets = packets.ok_or(Absent::Gone("its interface is gone"))?;
        let master = master.or_else(|| master_here.and_then(listen_too));
        Ok(ExchangeV4 { packets, is_readdressed, master, arp: None, unicast: None })
    }

    /// Sends a message. A message to one server follows the container's own routes, if the
    /// interface has the address.
    pub fn send(&mut self, outgoing: &Outgoing, place: &Place, prefix: &str) -> Result<(), Absent> {
        let Destination::Server { from, to } = outgoing.to else {
            return Ok(self.broadcast(&outgoing.message)?);
        };
        let datagram = Datagram { from, to, payload: outgoing.message.encode() };
        self.unicast = by_routes(&datagram, place, prefix);
        match self.unicast {
            Some(_) => Ok(()),
            None => Ok(self.packets.send(from, to, &datagram.payload)?),
        }
    }

    fn broadcast(&self, message: &Message) -> Result<()> {
        let mut message = message.clone();
        message.broadcast |= self.is_readdressed;
        self.packets.broadcast(&message.encode())
    }

    /// Probes the link by ARP for a host that has the address.
    pub fn probe(&mut self, address: Ipv4Addr, place: &Place, prefix: &str) -> Result<(), Absent> {
        let arp = &mut self.arp;
        place.visit(prefix, &mut |at| {
            let socket = arp.take().map_or_else(|| ArpSocket::open(at.link.index), Ok)?;
            socket.probe(address, &at.link.mac())?;
            *arp = Some(socket);
            Ok(())
        })
    }

    /// Answers to the ARP probe, and DHCP messages.
    pub fn hear(&self) -> Result<Vec<Heard>> {
        let mut heard = vec![];
        let claim = self.arp.as_ref().map_or(Ok(None), ArpSocket::receive)?;
        heard.extend(claim.map(Heard::ClaimV4));
        heard.extend(hear_message(&self.packets)?);
        if let Some(master) = &self.master {
            heard.extend(hear_message(master)?);
        }
        Ok(heard)
    }

    /// The descriptors to poll for reading: DHCP messages and ARP answers.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let others = [
            self.master.as_ref().map(|master| master.as_fd()),
            self.arp.as_ref().map(|arp| arp.as_fd()),
        ];
        std::iter::once(self.packets.as_fd()).chain(others.into_iter().flatten()).collect()
    }

    /// Closes the sockets on a thread of their own. close(2) on a packet socket waits until no
    /// processor can be using it, tens of milliseconds in which the daemon would serve no other
    /// lease.
    pub fn close(self) {
        let closed = thread::Builder::new().stack_size(STACK).spawn(move || drop(self));
        let _ = closed; // without a thread, the sockets were closed here
    }
}

fn hear_message(socket: &PacketSocket) -> Result<Option<Heard>> {
    let Some((from, payload)) = socket.receive()? else { return Ok(None) };
    let message = Message::decode(&payload);
    Ok(Some(message.map_or(Heard::Malformed(from.into()), Heard::V4)))
}

/// Opens a socket on the master, if possible: the master may be in a namespace that is neither the
/// container's nor ours.
fn listen_too(ifindex: u32) -> Option<PacketSocket> {
    PacketSocket::open(ifindex).ok()
}

/// Sends the message that releases a lease. As a rule no exchange is open for it.
pub fn send_once(outgoing: &Outgoing, place: &Place, prefix: &str) -> Result<(), Absent> {
    if let Destination::Server { from, to } = outgoing.to {
        let datagram = Datagram { from, to, payload: outgoing.message.encode() };
        if by_routes(&datagram, place, prefix).is_some() {
            return Ok(());
        }
    }
    let mut exchange = ExchangeV4::open(place, prefix)?;
    let sent = exchange.send(outgoing, place, prefix);
    exchange.close();
    sent
}

/// A message to one server.
struct Datagram {
    from: Ipv4Addr,
    to: Ipv4Addr,
    payload: Vec<u8>,
}

/// Sends a datagram to a server as any program of the container would. `None` if the interface does
/// not have the address; the datagram can then only be sent to the link.
fn by_routes(datagram: &Datagram, place: &Place, prefix: &str) -> Option<UdpSocket> {
    let Datagram { from, to, payload } = datagram;
    let mut sent = None;
    let _ = place.visit(prefix, &mut |at| {
        // A successful bind proves nothing: in a namespace that never had an address, any can be
        // bound.
        if at.netlink.addresses(at.link)?.iter().any(|address| address.net.addr() == *from) {
            sent = Some(packet_socket::unicast(*from, *to, &at.link.name, payload)?);
        }
        Ok(())
    }); // on failure the caller sends on the link: it needs no routes and no namespace path
    sent
}
