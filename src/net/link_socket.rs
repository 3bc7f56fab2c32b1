//! Sockets for the IPv6 messages that a host without an address exchanges with its link (ipv6(7),
//! raw(7)): neighbour discovery and DHCPv6.
//!
//! A socket belongs to the namespace of the thread that opened it, wherever it is used. None of the
//! sockets blocks. The kernel sends from the link-local address, so the link must have one that is
//! not tentative.

use std::ffi::OsString;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, bind, recvfrom, sendto,
    setsockopt, socket, sockopt,
};

use super::packet_socket::Filter;
use crate::error::{Error, Result};
use crate::sys::impl_as_fd;

/// The port of DHCPv6 clients.
const CLIENT: u16 = 546;
/// The port of DHCPv6 servers.
const SERVER: u16 = 547;
/// The hop limit of neighbour discovery, with which only hosts on the link accept a message (RFC
/// 4861).
const HOP_LIMIT: i32 = 255;
/// The length of the receive buffer: larger than an Ethernet frame.
const LONGEST: usize = 4096;

/// A socket bound to one link.
pub struct LinkSocket {
    socket: OwnedFd,
    ifindex: u32,
    /// The port it sends to.
    port: u16,
}

impl LinkSocket {
    /// Opens a socket for Router and Neighbour Solicitations; it receives the Advertisements of
    /// this link.
    pub fn discovery(ifindex: u32, ifname: &str) -> Result<LinkSocket> {
        let open = || {
            let socket = open(SockType::Raw, Some(SockProtocol::IcmpV6), ifname)?;
            Filter::advertisements().attach(socket.as_fd())?;
            setsockopt(&socket, sockopt::Ipv6MulticastHops, &HOP_LIMIT)?;
            Ok(socket)
        };
        let socket = open()
            .map_err(|e| Error::kernel(format_args!("open an ICMPv6 socket on {ifname:?}"), e))?;
        Ok(LinkSocket { socket, ifindex, port: 0 })
    }

    /// Opens the socket of a DHCPv6 client.
    pub fn dhcp(ifindex: u32, ifname: &str) -> Result<LinkSocket> {
        let open = || {
            let socket = open(SockType::Datagram, None, ifname)?;
            setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
            // The container may run a client of its own for other links.
            setsockopt(&socket, sockopt::ReuseAddr, &true)?;
            let any = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, CLIENT, 0, 0);
            bind(socket.as_raw_fd(), &SockaddrIn6::from(any))?;
            Ok(socket)
        };
        let socket = open()
            .map_err(|e| Error::kernel(format_args!("open port {CLIENT} on {ifname:?}"), e))?;
        Ok(LinkSocket { socket, ifindex, port: SERVER })
    }

    /// Sends a message to a group of the link.
    pub fn send(&self, message: &[u8], to: Ipv6Addr) -> Result<()> {
        let to = SockaddrIn6::from(SocketAddrV6::new(to, self.port, 0, self.ifindex));
        let sent = sendto(self.socket.as_raw_fd(), message, &to, MsgFlags::empty());
        sent.map(drop).map_err(|e| Error::kernel(format_args!("send to {}", to.ip()), e))
    }

    /// Receives the next message and its sender, if there is one.
    pub fn receive(&self) -> Result<Option<(Ipv6Addr, Vec<u8>)>> {
        let mut buffer = [0; LONGEST];
        match recvfrom::<SockaddrIn6>(self.socket.as_raw_fd(), &mut buffer) {
            Ok((length, Some(from))) => Ok(Some((from.ip(), buffer[..length].to_vec()))),
            // poll(2) reports when to try again
            Ok((_, None)) | Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(e) => Err(Error::kernel("receive from the link", e)),
        }
    }
}

impl_as_fd!(LinkSocket, socket);

/// Opens a socket that receives nothing from other links.
fn open(kind: SockType, protocol: Option<SockProtocol>, ifname: &str) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet6, kind, flags, protocol)?;
    setsockopt(&socket, sockopt::BindToDevice, &OsString::from(ifname))?;
    Ok(socket)
}
