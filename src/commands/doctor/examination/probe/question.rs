//! One question to the link of a container: who has an address, or whether a host answers a ping.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::net::echo::Echo;
use crate::net::mac::MacAddr;
use crate::net::netlink::{Address, Link};
use crate::net::packet_socket::{ArpSocket, NdpSocket};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The hardware address of the gateway.
    Gateway,
    /// The hardware address of another host with the container's address.
    Duplicate,
    /// An answer to a ping.
    Ping,
}

impl Kind {
    /// How long an answer may take: the first packets of a new link are lost. That no other host has
    /// an address is known after as many probes as RFC 5227 sends.
    pub fn patience(self) -> Duration {
        match self {
            Kind::Gateway | Kind::Ping => Duration::from_secs(2),
            Kind::Duplicate => Duration::from_millis(600),
        }
    }
}

/// A question with its socket, which belongs to the container's namespace.
pub struct Question {
    /// What is asked.
    pub kind: Kind,
    /// The address that it is about.
    pub address: IpAddr,
    /// The hardware addresses that have answered, empty ones for pings.
    pub answers: Vec<MacAddr>,
    /// Why it could not be asked.
    pub error: Option<Error>,
    socket: Socket,
    mac: MacAddr,
}

enum Socket {
    Arp(ArpSocket, Ipv4Addr),
    Ndp(NdpSocket, Option<Ipv6Addr>),
    Echo(Echo),
}

/// An interface with its addresses.
#[derive(Clone, Copy)]
pub struct Interface<'n> {
    /// The link.
    pub link: &'n Link,
    /// The addresses of the whole namespace.
    pub addresses: &'n [Address],
}

impl<'n> Interface<'n> {
    /// Its addresses, but for those that the kernel does not use.
    pub fn own(self) -> impl Iterator<Item = &'n Address> {
        let is_used =
            |it: &&Address| !it.tentative && !it.dad_failed && !it.net.addr().is_loopback();
        self.addresses.iter().filter(move |it| it.link == self.link.index).filter(is_used)
    }

    /// The address that a host on the link is asked from: of its subnet if there is one.
    fn source_for(self, to: IpAddr) -> Result<IpAddr> {
        let of_family = || self.own().filter(|it| it.net.addr().is_ipv4() == to.is_ipv4());
        let found = of_family().find(|it| it.net.contains(&to)).or_else(|| of_family().next());
        found.map(|it| it.net.addr()).ok_or_else(|| self.no_address(to))
    }

    fn no_address(self, to: IpAddr) -> Error {
        let family = if to.is_ipv4() { "IPv4" } else { "IPv6" };
        let name = &self.link.name;
        Error::new(Code::KERNEL, format!("ask for {to}: {name:?} has no {family} address"))
    }

    /// The questions about a gateway. A link without ARP has no neighbours.
    pub fn about_gateway(self, gateway: IpAddr) -> Result<Vec<Question>> {
        let mut all = vec![];
        let source = self.source_for(gateway)?;
        if self.link.arp {
            all.push(self.question(Kind::Gateway, gateway, self.resolver(Some(source))?));
        }
        let echo = Echo::open(gateway, self.link.index)?;
        all.push(self.question(Kind::Ping, gateway, Socket::Echo(echo)));
        Ok(all)
    }

    /// The question about one of its own addresses; None for a link without ARP.
    pub fn about_own(self, own: IpAddr) -> Result<Option<Question>> {
        if !self.link.arp {
            return Ok(None);
        }
        let unspecified = if own.is_ipv4() { Some(Ipv4Addr::UNSPECIFIED.into()) } else { None };
        Ok(Some(self.question(Kind::Duplicate, own, self.resolver(unspecified)?)))
    }

    /// A socket that asks from this address: ARP, or NDP without an IPv4 address.
    fn resolver(self, source: Option<IpAddr>) -> Result<Socket> {
        Ok(match source {
            Some(IpAddr::V4(source)) => Socket::Arp(ArpSocket::open(self.link.index)?, source),
            Some(IpAddr::V6(source)) => {
                Socket::Ndp(NdpSocket::open(self.link.index)?, Some(source))
            }
            None => Socket::Ndp(NdpSocket::open(self.link.index)?, None),
        })
    }

    fn question(self, kind: Kind, address: IpAddr, socket: Socket) -> Question {
        let mac = self.link.mac();
        Question { kind, address, answers: vec![], error: None, socket, mac }
    }
}

impl Question {
    /// Whether nothing more is to be learnt after this time.
    pub fn is_done(&self, after: Duration) -> bool {
        !self.answers.is_empty() || self.error.is_some() || after >= self.kind.patience()
    }

    /// Asks once more.
    pub fn ask(&mut self) {
        let asked = match (&mut self.socket, self.address) {
            (Socket::Arp(socket, from), IpAddr::V4(address)) => {
                socket.request(address, *from, &self.mac)
            }
            (Socket::Ndp(socket, from), IpAddr::V6(address)) => {
                socket.solicit(address, *from, &self.mac)
            }
            (Socket::Echo(echo), _) => echo.send(),
            _ => Err(Error::new(Code::BUG, "a question of another family than its socket")),
        };
        self.error = self.error.take().or(asked.err());
    }

    /// Reads what has arrived. What the container itself has sent is no answer.
    pub fn read(&mut self) {
        match self.receive() {
            Ok(Some(mac)) if self.kind == Kind::Ping || mac != self.mac => self.answers.push(mac),
            Ok(_) => (),
            Err(error) => self.error = Some(error),
        }
    }

    fn receive(&self) -> Result<Option<MacAddr>> {
        let about = |address: IpAddr, mac| Some(mac).filter(|_| address == self.address);
        Ok(match &self.socket {
            Socket::Arp(socket, _) => {
                socket.receive()?.and_then(|claim| about(claim.address.into(), claim.mac))
            }
            Socket::Ndp(socket, _) => {
                socket.receive()?.and_then(|(address, mac)| about(address.into(), mac))
            }
            Socket::Echo(echo) => echo.receive()?.then(|| MacAddr::new(&[])),
        })
    }
}

impl AsFd for Question {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Arp(socket, _) => socket.as_fd(),
            Socket::Ndp(socket, _) => socket.as_fd(),
            Socket::Echo(echo) => echo.as_fd(),
        }
    }
}
