//! The sockets of a conversation with servers and routers in IPv6. The kernel sends from the
//! link-local address, which is usable a second or two after the link is up; nothing can be sent
//! before that.

use std::net::Ipv6Addr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Instant;

use ipnet::IpNet;

use super::interface::{Absent, Place};
use crate::error::{Code, Error, Result};
use crate::net::link_socket::LinkSocket;
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, Netlink, Watch};
use crate::plugins::ipam::dhcp::family::Heard;
use crate::plugins::ipam::dhcp::v6::message::{ALL_SERVERS, Message};
use crate::plugins::ipam::dhcp::v6::router;

/// The sockets that are open while answers are expected.
pub struct ExchangeV6 {
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
    /// Opens the sockets, if the interface still exists.
    pub fn open(place: &Place, prefix: &str) -> Result<ExchangeV6, Absent> {
        let mut opened = None;
        place.visit(prefix, &mut |at| {
            let link = at.link;
            opened = Some(ExchangeV6 {
                servers: LinkSocket::dhcp(link.index, &link.name)?,
                neighbours: LinkSocket::discovery(link.index, &link.name)?,
                link_local: LinkLocal::find(at.netlink, link)?,
                mac: link.mac(),
            });
            Ok(())
        })?;
        opened.ok_or(Absent::Gone("its interface is gone"))
    }

    /// Whether the exchange can send.
    pub fn is_ready(&self) -> bool {
        matches!(self.link_local, LinkLocal::Usable(_))
    }

    /// Sends a message to the servers on the link.
    pub fn send(&self, message: &Message) -> Result<()> {
        self.servers.send(&message.encode(), ALL_SERVERS)
    }

    /// Sends a router solicitation.
    pub fn ask_routers(&self) -> Result<()> {
        self.neighbours.send(&router::solicitation(&self.mac), router::ALL_ROUTERS)
    }

    /// Probes the link for a host that has the address.
    pub fn probe(&self, address: Ipv6Addr) -> Result<()> {
        let (message, group) = router::probe(address, &self.mac);
        self.neighbours.send(&message, group)
    }

    /// Everything received. Reads each socket once: poll(2) reports it if there is more.
    pub fn hear(&mut self) -> Result<Vec<Heard>> {
        let Some(own) = self.own_address()? else { return Ok(vec![]) };
        let mut heard = vec![];
        heard.extend(self.hear_neighbour(own)?);
        heard.extend(self.hear_server()?);
        Ok(heard)
    }

    /// The link-local address, once it is usable.
    fn own_address(&mut self) -> Result<Option<Ipv6Addr>> {
        let own = match &self.link_local {
            LinkLocal::Usable(own) => Some(*own),
            LinkLocal::Awaited(awaited) => awaited.look()?,
        };
        if let Some(own) = own {
            self.link_local = LinkLocal::Usable(own);
        }
        Ok(own)
    }

    fn hear_neighbour(&self, own: Ipv6Addr) -> Result<Option<Heard>> {
        let received = self.neighbours.receive()?;
        Ok(received.map(|(from, packet)| match router::decode(&packet, from) {
            Some(router::Heard::Router(told)) => Heard::Router(told, own),
            Some(router::Heard::Claim(address)) => Heard::ClaimV6(address),
            None => Heard::Malformed(from.into()),
        }))
    }

    fn hear_server(&self) -> Result<Option<Heard>> {
        let Some((from, packet)) = self.servers.receive()? else { return Ok(None) };
        let message = Message::decode(&packet);
        Ok(Some(message.map_or(Heard::Malformed(from.into()), Heard::V6)))
    }

    /// The descriptors to poll for reading. Packets that arrive before the first message can be
    /// sent stay queued.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match &self.link_local {
            LinkLocal::Usable(_) => vec![self.servers.as_fd(), self.neighbours.as_fd()],
            LinkLocal::Awaited(awaited) => vec![awaited.watch.as_fd()],
        }
    }
}

/// Sends the message that releases a lease.
pub fn send_once(message: &Message, place: &Place, prefix: &str) -> Result<(), Absent> {
    place.visit(prefix, &mut |at| {
        let link = at.link;
        LinkSocket::dhcp(link.index, &link.name)?.send(&message.encode(), ALL_SERVERS)
    })
}

impl LinkLocal {
    fn find(netlink: &Netlink, link: &Link) -> Result<LinkLocal> {
        let watch = Watch::ipv6_addresses()?; // before the look, so that no change is missed
        if let Some(address) = usable(netlink, link)? {
            return Ok(LinkLocal::Usable(address));
        }
        let awaited = Awaited { netlink: Netlink::open()?, link: link.clone(), watch };
        Ok(LinkLocal::Awaited(Box::new(awaited)))
    }
}

impl Awaited {
    fn look(&self) -> Result<Option<Ipv6Addr>> {
        self.watch.until(Instant::now())?;
        usable(&self.netlink, &self.link)
    }
}

/// A usable link-local address of the link.
fn usable(netlink: &Netlink, link: &Link) -> Result<Option<Ipv6Addr>> {
    for address in netlink.addresses(link)? {
        let IpNet::V6(net) = address.net else { continue };
        if !net.addr().is_unicast_link_local() {
            continue;
        }
        if address.dad_failed {
            return Err(in_use(address.net, &link.name));
        }
        if !address.tentative {
            return Ok(Some(net.addr()));
        }
    }
    Ok(None)
}

fn in_use(net: IpNet, ifname: &str) -> Error {
    let msg = format!("address {net} of interface {ifname:?} is in use by another (DADFAILED)");
    Error::new(Code::CONFLICT, msg)
}
