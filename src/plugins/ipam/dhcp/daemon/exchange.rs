//! The sockets of a conversation with servers. They are opened in the container's namespace and
//! used from outside it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::thread;
use std::time::Instant;

use ipnet::IpNet;

use super::interface::{Absent, Place};
use super::journal::Record;
use crate::error::{Code, Error, Result};
use crate::family::Family;
use crate::net::link_socket::LinkSocket;
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, Netlink, Watch};
use crate::net::packet_socket::{self, ArpSocket, PacketSocket};
use crate::plugins::ipam::dhcp::client::{Heard, Outgoing};
use crate::plugins::ipam::dhcp::v4;
use crate::plugins::ipam::dhcp::v6::{self, ALL_SERVERS, router};

/// The stack size of a thread that closes sockets.
const STACK: usize = 64 * 1024;

/// The sockets that are open while answers are expected. Messages and addresses are of the family
/// of their client.
pub trait Exchange {
    /// Whether the exchange can send; a descriptor becomes readable when that changes.
    fn is_ready(&self) -> bool;

    /// Sends a client's message.
    fn send(&mut self, outgoing: &Outgoing, place: &Place) -> Result<(), Absent>;

    /// Probes the link for a host that has the address.
    fn probe(&mut self, address: IpAddr, place: &Place) -> Result<(), Absent>;

    /// Everything received. Reads each socket once: poll(2) reports it if there is more.
    fn hear(&mut self) -> Result<Vec<Heard>>;

    /// The descriptors to poll for reading.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Closes the sockets.
    fn close(self: Box<Self>);
}

/// Opens the sockets, if the interface still exists.
pub fn open(record: &Record) -> Result<Box<dyn Exchange>, Absent> {
    Ok(match record.family() {
        Family::V4 => Box::new(ExchangeV4::open(&record.place)?),
        Family::V6 => Box::new(ExchangeV6::open(&record.place)?),
    })
}

/// Sends the message that releases a lease. As a rule no exchange is open for it.
pub fn send_once(outgoing: &Outgoing, place: &Place) -> Result<(), Absent> {
    if let Outgoing::V4 { message, server: Some(server) } = outgoing
        && send_by_routes(message, *server, place).is_some()
    {
        return Ok(());
    }
    match outgoing {
        Outgoing::V4 { .. } => {
            let mut exchange = ExchangeV4::open(place)?;
            let sent = exchange.send(outgoing, place);
            Box::new(exchange).close();
            sent
        }
        Outgoing::V6(message) => place.visit(|at| {
            let link = at.link;
            LinkSocket::dhcp(link.index, &link.name)?.send(&message.encode(), ALL_SERVERS)
        }),
        Outgoing::Routers => Ok(()), // routers keep no state to release
    }
}

/// The sockets for DHCPv4.
struct ExchangeV4 {
    packets: PacketSocket,
    /// The interface no longer has the hardware address that a server would answer to.
    is_readdressed: bool,
    /// On ipvlan, receives what arrives at its master. Some servers, Kea among them, broadcast in
    /// frames to one hardware address, the master's; ipvlan looks for a link with the IP
    /// destination address and leaves such frames to the master. It may be in a namespace that is
    /// neither the container's nor ours; then there is no such socket.
    master: Option<PacketSocket>,
    /// For an address that was probed.
    arp: Option<ArpSocket>,
    /// The socket that sent to one server: while it is open, the container's kernel does not answer
    /// the server with an ICMP port unreachable.
    unicast: Option<UdpSocket>,
}

impl ExchangeV4 {
    fn open(place: &Place) -> Result<ExchangeV4, Absent> {
        let listen_to = |ifindex| PacketSocket::open(ifindex).ok();
        let (mut exchange, master_here) = place.visit(|at| {
            let link = at.link;
            let master = link.lower.filter(|_| link.kind == "ipvlan");
            let (here, there) =
                if link.lower_is_elsewhere() { (master, None) } else { (None, master) };
            let exchange = ExchangeV4 {
                packets: PacketSocket::open(link.index)?,
                is_readdressed: link.mac() != place.mac,
                master: there.and_then(listen_to),
                arp: None,
                unicast: None,
            };
            Ok((exchange, here))
        })?;
        exchange.master = exchange.master.or_else(|| master_here.and_then(listen_to));
        Ok(exchange)
    }
}

impl Exchange for ExchangeV4 {
    fn is_ready(&self) -> bool {
        true
    }

    /// A message to one server follows the container's own routes, if the interface has the
    /// address.
    fn send(&mut self, outgoing: &Outgoing, place: &Place) -> Result<(), Absent> {
        let Outgoing::V4 { message, server } = outgoing else { return Ok(()) };
        let Some(server) = *server else {
            let mut message = message.clone();
            message.broadcast |= self.is_readdressed;
            return Ok(self.packets.broadcast(&message.encode())?);
        };
        self.unicast = send_by_routes(message, server, place);
        match self.unicast {
            Some(_) => Ok(()),
            None => Ok(self.packets.send(message.ciaddr, server, &message.encode())?),
        }
    }

    fn probe(&mut self, address: IpAddr, place: &Place) -> Result<(), Absent> {
        let IpAddr::V4(address) = address else { return Ok(()) };
        let arp = &mut self.arp;
        place.visit(|at| {
            let socket = arp.take().map_or_else(|| ArpSocket::open(at.link.index), Ok)?;
            socket.probe(address, &at.link.mac())?;
            *arp = Some(socket);
            Ok(())
        })
    }

    fn hear(&mut self) -> Result<Vec<Heard>> {
        let mut heard = vec![];
        let claim = self.arp.as_ref().map_or(Ok(None), ArpSocket::receive)?;
        heard.extend(claim.map(Heard::ClaimV4));
        for socket in [&self.packets].into_iter().chain(&self.master) {
            if let Some((from, payload)) = socket.receive()? {
                let message = v4::Message::decode(&payload);
                heard.push(message.map_or(Heard::Malformed(from.into()), Heard::V4));
            }
        }
        Ok(heard)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let master = self.master.as_ref().map(|master| master.as_fd());
        let arp = self.arp.as_ref().map(|arp| arp.as_fd());
        [Some(self.packets.as_fd()), master, arp].into_iter().flatten().collect()
    }

    /// Closes the sockets on a thread of their own. close(2) on a packet socket waits until no
    /// processor can be using it, tens of milliseconds in which the daemon would serve no other
    /// lease.
    fn close(self: Box<Self>) {
        let closed = thread::Builder::new().stack_size(STACK).spawn(move || drop(self));
        let _ = closed; // without a thread, the sockets were closed here
    }
}

/// Sends a message to a server as any program of the container would. `None` if the interface does
/// not have the address; the message can then only be sent to the link.
fn send_by_routes(message: &v4::Message, to: Ipv4Addr, place: &Place) -> Option<UdpSocket> {
    let from = message.ciaddr;
    let sent = place.visit(|at| {
        // A successful bind proves nothing: in a namespace that never had an address, any can be
        // bound.
        if at.netlink.addresses(at.link)?.iter().any(|address| address.net.addr() == from) {
            packet_socket::unicast(from, to, &at.link.name, &message.encode()).map(Some)
        } else {
            Ok(None)
        }
    });
    sent.ok().flatten() // on failure the caller sends on the link: it needs no routes and no namespace path
}

/// The sockets for DHCPv6 and router advertisements. The kernel sends from the link-local address,
/// which is usable a second or two after the link is up; nothing can be sent before that.
struct ExchangeV6 {
    servers: LinkSocket,
    neighbours: LinkSocket,
    link_local: LinkLocal,
    /// The interface's hardware address.
    mac: MacAddr,
}

/// The link-local address that the kernel sends from.
enum LinkLocal {
    /// Duplicate address detection is still under way.
    Awaited(Box<Awaited>),
    Usable(Ipv6Addr),
}

struct Awaited {
    netlink: Netlink,
    link: Link,
    watch: Watch,
}

impl ExchangeV6 {
    fn open(place: &Place) -> Result<ExchangeV6, Absent> {
        place.visit(|at| {
            let link = at.link;
            let servers = LinkSocket::dhcp(link.index, &link.name)?;
            let neighbours = LinkSocket::discovery(link.index, &link.name)?;
            let watch = Watch::ipv6_addresses()?; // before the look, so that no change is missed
            let link_local = match usable_link_local(at.netlink, link)? {
                Some(address) => LinkLocal::Usable(address),
                None => {
                    let (netlink, link) = (Netlink::open()?, link.clone());
                    LinkLocal::Awaited(Box::new(Awaited { netlink, link, watch }))
                }
            };
            Ok(ExchangeV6 { servers, neighbours, link_local, mac: link.mac() })
        })
    }
}

impl Exchange for ExchangeV6 {
    fn is_ready(&self) -> bool {
        matches!(self.link_local, LinkLocal::Usable(_))
    }

    fn send(&mut self, outgoing: &Outgoing, _: &Place) -> Result<(), Absent> {
        match outgoing {
            Outgoing::V6(message) => Ok(self.servers.send(&message.encode(), ALL_SERVERS)?),
            Outgoing::Routers => {
                let solicitation = router::solicitation(&self.mac);
                Ok(self.neighbours.send(&solicitation, router::ALL_ROUTERS)?)
            }
            Outgoing::V4 { .. } => Ok(()),
        }
    }

    fn probe(&mut self, address: IpAddr, _: &Place) -> Result<(), Absent> {
        let IpAddr::V6(address) = address else { return Ok(()) };
        let (message, group) = router::probe(address, &self.mac);
        Ok(self.neighbours.send(&message, group)?)
    }

    fn hear(&mut self) -> Result<Vec<Heard>> {
        let own = match &self.link_local {
            LinkLocal::Usable(own) => *own,
            LinkLocal::Awaited(awaited) => {
                awaited.watch.until(Instant::now())?;
                let Some(own) = usable_link_local(&awaited.netlink, &awaited.link)? else {
                    return Ok(vec![]);
                };
                self.link_local = LinkLocal::Usable(own);
                own
            }
        };
        let mut heard = vec![];
        if let Some((from, packet)) = self.neighbours.receive()? {
            heard.push(match router::decode(&packet, from) {
                Some(router::Heard::Router(told)) => Heard::Router(told, own),
                Some(router::Heard::Claim(address)) => Heard::ClaimV6(address),
                None => Heard::Malformed(from.into()),
            });
        }
        if let Some((from, packet)) = self.servers.receive()? {
            let message = v6::Message::decode(&packet);
            heard.push(message.map_or(Heard::Malformed(from.into()), Heard::V6));
        }
        Ok(heard)
    }

    /// Packets that arrive before the first message can be sent stay queued.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match &self.link_local {
            LinkLocal::Usable(_) => vec![self.servers.as_fd(), self.neighbours.as_fd()],
            LinkLocal::Awaited(awaited) => vec![awaited.watch.as_fd()],
        }
    }

    fn close(self: Box<Self>) {}
}

/// A usable link-local address of the link.
fn usable_link_local(netlink: &Netlink, link: &Link) -> Result<Option<Ipv6Addr>> {
    for address in netlink.addresses(link)? {
        let IpNet::V6(net) = address.net else { continue };
        if !net.addr().is_unicast_link_local() {
            continue;
        }
        if address.dad_failed {
            let ifname = &link.name;
            let msg =
                format!("address {net} of interface {ifname:?} is in use by another (DADFAILED)");
            return Err(Error::new(Code::CONFLICT, msg));
        }
        if !address.tentative {
            return Ok(Some(net.addr()));
        }
    }
    Ok(None)
}
