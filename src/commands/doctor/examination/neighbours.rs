//! Who has an address on a container's link: ARP and neighbour discovery, many questions at once.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::Link;
use crate::net::packet_socket::{ArpSocket, NdpSocket};

/// How long one packet waits for its answer before the next one is sent: a bridge drops packets of a
/// port that does not forward yet.
const INTERVAL: Duration = Duration::from_millis(200);

/// Whether nothing is wrong with this machine: a filter of the container drops the packet, or its link
/// is down, gone, or without such packets.
fn is_expected(error: &Error) -> bool {
    use Errno::{EAFNOSUPPORT, ENETDOWN, ENOBUFS, ENODEV, ENXIO, EPERM};
    [EPERM, ENOBUFS, ENETDOWN, ENODEV, ENXIO, EAFNOSUPPORT].iter().any(|it| error.is_errno(*it))
}

/// A question with its socket, which belongs to the container's namespace.
pub struct Inquiry {
    /// The address that it is about.
    pub address: IpAddr,
    /// The hardware address that has answered for it, of none of the container's links.
    pub answer: Option<MacAddr>,
    socket: Socket,
    mac: MacAddr,
    /// The hardware addresses of the container: Linux answers for an address on any of its links.
    own: Vec<MacAddr>,
    is_sent: bool,
    /// Whether an answer may still come.
    is_open: bool,
}

enum Socket {
    Arp(ArpSocket, Ipv4Addr, Ipv4Addr),
    Ndp(NdpSocket, Ipv6Addr, Option<Ipv6Addr>),
}

impl Inquiry {
    /// Opens the socket, in the namespace of this thread, which has its `own` links. It is asked from `source`, of the same
    /// family, or from no address, which is how a host detects duplicates (RFC 5227, RFC 4862).
    pub fn open(
        own: &[Link],
        link: &Link,
        address: IpAddr,
        source: Option<IpAddr>,
    ) -> Result<Inquiry> {
        let socket = match address {
            IpAddr::V4(ip) => {
                let from = if let Some(IpAddr::V4(from)) = source { Some(from) } else { None };
                let from = from.unwrap_or(Ipv4Addr::UNSPECIFIED);
                Socket::Arp(ArpSocket::open(link.index)?, ip, from)
            }
            IpAddr::V6(ip) => {
                let from = if let Some(IpAddr::V6(from)) = source { Some(from) } else { None };
                Socket::Ndp(NdpSocket::open(link.index)?, ip, from)
            }
        };
        let own = own.iter().map(Link::mac).collect();
        let (mac, is_sent, is_open) = (link.mac(), false, true);
        Ok(Inquiry { address, answer: None, socket, mac, own, is_sent, is_open })
    }

    /// Whether the question was sent, and no host has answered.
    pub fn is_silent(&self) -> bool {
        self.is_open && self.is_sent
    }

    fn send(&self) -> Result<()> {
        match &self.socket {
            Socket::Arp(socket, ip, from) => socket.request(*ip, *from, &self.mac),
            Socket::Ndp(socket, ip, from) => socket.solicit(*ip, *from, &self.mac),
        }
    }

    /// Reads a packet that has arrived.
    fn receive(&mut self) -> Result<()> {
        let claim = match &self.socket {
            Socket::Arp(socket, ..) => socket.receive()?.map(|it| (it.address.into(), it.mac)),
            Socket::Ndp(socket, ..) => socket.receive()?.map(|(ip, mac)| (IpAddr::from(ip), mac)),
        };
        if let Some((ip, mac)) = claim
            && ip == self.address
            && !self.own.contains(&mac)
        {
            (self.answer, self.is_open) = (Some(mac), false);
        }
        Ok(())
    }
}

impl AsFd for Inquiry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Arp(socket, ..) => socket.as_fd(),
            Socket::Ndp(socket, ..) => socket.as_fd(),
        }
    }
}

/// Asks until each is answered, or the patience with all has ended. Adds to the packets that were
/// `sent`. Returns the first error; the others are asked nevertheless.
pub fn ask(all: &mut [Inquiry], patience: Duration, sent: &Cell<usize>) -> Result<()> {
    let begin = Instant::now();
    let mut first = Ok(());
    while begin.elapsed() < patience {
        for inquiry in all.iter_mut().filter(|it| it.is_open) {
            match inquiry.send() {
                Ok(()) => {
                    sent.set(sent.get() + 1);
                    inquiry.is_sent = true;
                }
                Err(error) if is_expected(&error) => (),
                Err(error) => {
                    inquiry.is_open = false;
                    first = first.and(Err(error));
                }
            }
        }
        let mut open: Vec<&mut Inquiry> = all.iter_mut().filter(|it| it.is_open).collect();
        let end = Instant::now() + INTERVAL;
        while !open.is_empty() && Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            let sockets = open.iter().map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN));
            let mut sockets: Vec<PollFd<'_>> = sockets.collect();
            match poll(&mut sockets, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Ok(_) | Err(Errno::EINTR) => (),
                Err(e) => return Err(Error::kernel("wait for answers", e)),
            }
            for inquiry in &mut open {
                if let Err(error) = inquiry.receive() {
                    inquiry.is_open = false;
                    let is_fault = !is_expected(&error);
                    first = first.and(if is_fault { Err(error) } else { Ok(()) });
                }
            }
            open.retain(|it| it.is_open);
        }
        if open.is_empty() {
            break;
        }
    }
    first
}
