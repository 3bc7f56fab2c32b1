//! The sockets of a conversation with servers in IPv4.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::thread;

use super::interface::{Absent, Place};
use crate::error::Result;
use crate::net::packet_socket::{self, ArpSocket, PacketSocket};
use crate::plugins::ipam::dhcp::family::Heard;
use crate::plugins::ipam::dhcp::v4::client::{Destination, Outgoing};
use crate::plugins::ipam::dhcp::v4::message::Message;

/// For a thread that closes sockets.
const STACK: usize = 64 * 1024;

/// What is open while answers are expected.
pub struct ExchangeV4 {
    packets: PacketSocket,
    /// The interface has got another hardware address than the one that a server would answer to.
    is_readdressed: bool,
    /// On ipvlan, what its master gets. Some servers, Kea among them, broadcast in frames to one
    /// hardware address, the master's; ipvlan looks for whose IP address they are for and
    /// leaves them to the master.
    master: Option<PacketSocket>,
    /// Where an address was tried.
    arp: Option<ArpSocket>,
    /// What asked one server: while it is there, the container's kernel does not tell the server
    /// that nobody listens.
    unicast: Option<UdpSocket>,
}

impl ExchangeV4 {
    /// Opens the sockets, if the interface still is there.
    pub fn open(place: &Place, prefix: &str) -> Result<ExchangeV4, Absent> {
        let mut packets = None;
        let mut master = None;
        let mut master_here = None;
        let mut is_readdressed = false;
        place.visit(prefix, &mut |_, link| {
            packets = Some(PacketSocket::open(link.index)?);
            is_readdressed = link.mac() != place.mac;
            match link.lower.filter(|_| link.kind == "ipvlan") {
                Some(lower) if link.lower_is_elsewhere => master_here = Some(lower),
                lower => master = lower.and_then(listen_too),
            }
            Ok(())
        })?;
        let packets = packets.ok_or(Absent::Gone("its interface is gone"))?;
        let master = master.or_else(|| master_here.and_then(listen_too));
        Ok(ExchangeV4 { packets, is_readdressed, master, arp: None, unicast: None })
    }

    /// Sends a message. One to a server leaves by the container's own routes, if the interface has
    /// the address.
    pub fn send(&mut self, outgoing: &Outgoing, place: &Place, prefix: &str) -> Result<(), Absent> {
        let Destination::Server { from, to } = outgoing.to else {
            let mut message = outgoing.message.clone();
            message.broadcast |= self.is_readdressed;
            return Ok(self.packets.broadcast(&message.encode())?);
        };
        let payload = outgoing.message.encode();
        self.unicast = by_routes(from, to, &payload, place, prefix);
        match self.unicast {
            Some(_) => Ok(()),
            None => Ok(self.packets.send(from, to, &payload)?),
        }
    }

    /// Asks by ARP who has an address.
    pub fn probe(&mut self, address: Ipv4Addr, place: &Place, prefix: &str) -> Result<(), Absent> {
        let arp = &mut self.arp;
        place.visit(prefix, &mut |_, link| {
            let socket = arp.take().map_or_else(|| ArpSocket::open(link.index), Ok)?;
            socket.probe(address, &link.mac())?;
            *arp = Some(socket);
            Ok(())
        })
    }

    /// What an owner says of the address that was probed, and datagrams.
    pub fn hear(&self) -> Result<Vec<Heard>> {
        let mut heard = vec![];
        heard.extend(self.arp.as_ref().map_or(Ok(None), ArpSocket::receive)?.map(Heard::ClaimV4));
        for socket in [Some(&self.packets), self.master.as_ref()].into_iter().flatten() {
            let Some((from, payload)) = socket.receive()? else { continue };
            heard.push(Message::decode(&payload).map_or(Heard::Malformed(from.into()), Heard::V4));
        }
        Ok(heard)
    }

    /// What becomes readable: datagrams, and claims.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let others = [
            self.master.as_ref().map(|master| master.as_fd()),
            self.arp.as_ref().map(|arp| arp.as_fd()),
        ];
        std::iter::once(self.packets.as_fd()).chain(others.into_iter().flatten()).collect()
    }

    /// Closes the sockets. The kernel lets who closes a packet socket wait until no processor can
    /// be at work on it, tens of milliseconds, which a thread does that ends with it; all
    /// others have theirs to do meanwhile.
    pub fn close(self) {
        let closed = thread::Builder::new().stack_size(STACK).spawn(move || drop(self));
        let _ = closed; // where no thread is to be had they have been closed here
    }
}

/// A socket on the master, as far as it can be had: the master may be in a namespace that is
/// neither the container's nor ours.
fn listen_too(ifindex: u32) -> Option<PacketSocket> {
    PacketSocket::open(ifindex).ok()
}

/// Sends what gives a lease back. Nothing is open for it as a rule.
pub fn send_once(outgoing: &Outgoing, place: &Place, prefix: &str) -> Result<(), Absent> {
    if let Destination::Server { from, to } = outgoing.to
        && by_routes(from, to, &outgoing.message.encode(), place, prefix).is_some()
    {
        return Ok(());
    }
    let mut exchange = ExchangeV4::open(place, prefix)?;
    let sent = exchange.send(outgoing, place, prefix);
    exchange.close();
    sent
}

/// Sends a datagram to a server as any program of the container would; None where the interface
/// does not have the address, and then it can only go to whoever is on the link.
fn by_routes(
    from: Ipv4Addr,
    to: Ipv4Addr,
    payload: &[u8],
    place: &Place,
    prefix: &str,
) -> Option<UdpSocket> {
    let mut sent = None;
    let _ = place.visit(prefix, &mut |netlink, link| {
        // Binding tells nothing: in a namespace that never had an address, any can be bound.
        if netlink.addresses(link)?.iter().any(|address| address.net.addr() == from) {
            sent = Some(packet_socket::unicast(from, to, &link.name, payload)?);
        }
        Ok(())
    }); // the link may reach it where the routes do not, and where the namespace has lost its path
    sent
}
