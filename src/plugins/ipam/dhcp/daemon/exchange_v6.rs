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
            let servers = LinkSocket::dhcp(link.index, &link.name)?;
            let neighbours = LinkSocket::discovery(link.index, &link.name)?;
            let watch = Watch::ipv6_addresses()?; // before the look, so that no change is missed
            let link_local = match usable(at.netlink, link)? {
                Some(address) => LinkLocal::Usable(address),
                None => LinkLocal::Awaited(Box::new(Awaited {
                    netlink: Netlink::open()?,
                    link: link.clone(),
                    watch,
                })),
            };
            opened = Some(ExchangeV6 { servers, neighbours, link_local, mac: link.mac() });
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
        let mut heard = vec![];
        let own = match &self.link_local {
            LinkLocal::Usable(own) => *own,
            LinkLocal::Awaited(awaited) => {
                awaited.watch.until(Instant::now())?;
                let Some(own) = usable(&awaited.netlink, &awaited.link)? else { return Ok(heard) };
                self.link_local = LinkLocal::Usable(own);
                own
            }
        };
        if let Some((from, packet)) = self.neighbours.receive()? {
            heard.push(match router::decode(&packet, from) {
                Some(router::Heard::Router(told)) => Heard::Router(told, own),
                Some(router::Heard::Claim(address)) => Heard::ClaimV6(address),
                None => Heard::Malformed(from.into()),
            });
        }
        if let Some((from, packet)) = self.servers.receive()? {
            heard.push(Message::decode(&packet).map_or(Heard::Malformed(from.into()), Heard::V6));
        }
        Ok(heard)
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

/// A usable link-local address of the link.
fn usable(netlink: &Netlink, link: &Link) -> Result<Option<Ipv6Addr>> {
    for address in netlink.addresses(link)? {
        let IpNet::V6(net) = address.net else { continue };
        if !net.addr().is_unicast_link_local() {
            continue;
        }
        if address.dad_failed {
            let msg = format!(
                "address {} of interface {:?} is in use by another (DADFAILED)",
                net, link.name
            );
            return Err(Error::new(Code::CONFLICT, msg));
        }
        if !address.tentative {
            return Ok(Some(net.addr()));
        }
    }
    Ok(None)
}
