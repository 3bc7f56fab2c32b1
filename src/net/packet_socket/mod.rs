//! Packet sockets for DHCP (packet(7)), on links that have no address yet and on those that have
//! one.
//!
//! A socket belongs to the namespace of the thread that opened it, wherever it is used. None of the
//! sockets blocks.
//!
//! Their packet filters run in the kernel: the daemon is not woken for the rest of a link's
//! traffic.

mod arp;
pub mod ipv4;
mod ndp;

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc::{self, c_int};
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrIn, SockaddrLike, bind, recv,
    sendto, setsockopt, socket, sockopt,
};

pub use self::arp::{ArpSocket, Claim, claim};
pub use self::ndp::{NdpSocket, solicitation, solicited_group, source_link_address};
use crate::error::{Error, Result};
use crate::sys::bpf::{Program, Test, Width};
use crate::sys::impl_as_fd;

/// The port of DHCP clients.
const CLIENT: u16 = 68;
/// The port of DHCP servers.
const SERVER: u16 = 67;
/// The Ethernet broadcast address.
const EVERYBODY: [u8; 6] = [0xff; 6];
/// The length of the longest packet that is read. Clients announce that they accept 1500 octets.
const LONGEST: usize = 4096;

/// A packet socket of one link and one protocol; the kernel makes and removes the Ethernet header.
struct Link {
    socket: OwnedFd,
    ifindex: c_int,
    /// ETH_P_…
    protocol: u16,
}

impl Link {
    /// Opens a socket that receives nothing yet: packets of other links, and those that the filter
    /// would drop, must not be queued before.
    fn open(ifindex: u32, protocol: c_int) -> Result<Link, Errno> {
        let socket = datagram_socket(AddressFamily::Packet)?;
        let ifindex = c_int::try_from(ifindex).map_err(|_| Errno::ENODEV)?;
        Ok(Link { socket, ifindex, protocol: protocol as u16 })
    }

    /// Begins to receive what the filter passes.
    fn hear(&self, filter: &Filter) -> Result<(), Errno> {
        filter.attach(self.socket.as_fd())?;
        bind(self.socket.as_raw_fd(), &self.address(EVERYBODY)?)
    }

    /// Broadcasts a packet.
    fn send(&self, packet: &[u8]) -> Result<(), Errno> {
        self.send_to(packet, EVERYBODY)
    }

    /// Sends a packet to a hardware address.
    fn send_to(&self, packet: &[u8], to: [u8; 6]) -> Result<(), Errno> {
        let to = self.address(to)?;
        sendto(self.socket.as_raw_fd(), packet, &to, MsgFlags::empty()).map(drop)
    }

    /// Receives the next packet, if there is one; a longer one is truncated.
    fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>, Errno> {
        loop {
            match recv(self.socket.as_raw_fd(), buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => (),
                Err(Errno::EAGAIN) => return Ok(None),
                received => return Ok(buffer.get(..received?)),
            }
        }
    }

    /// The socket address of a hardware address.
    fn address(&self, of: [u8; 6]) -> Result<LinkAddr, Errno> {
        let mut octets = [0; 8];
        octets[..of.len()].copy_from_slice(&of);
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: self.protocol.to_be(),
            sll_ifindex: self.ifindex,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: of.len() as u8,
            sll_addr: octets,
        };
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: it points to a sockaddr_ll, and the length is that of one.
        unsafe { LinkAddr::from_raw((&raw const address).cast(), Some(length)) }
            .ok_or(Errno::EINVAL)
    }
}

/// A socket for the IPv4 packets to DHCP clients that arrive on one link, whatever their
/// destination address.
pub struct PacketSocket {
    link: Link,
}

impl PacketSocket {
    /// Opens a socket in the namespace of this thread.
    pub fn open(ifindex: u32) -> Result<PacketSocket> {
        let open = || {
            let link = Link::open(ifindex, libc::ETH_P_IP)?;
            link.hear(&Filter::datagrams_to(CLIENT))?;
            Ok(PacketSocket { link })
        };
        open().map_err(|e| Error::kernel(format_args!("open a packet socket on link {ifindex}"), e))
    }

    /// Broadcasts a datagram to all servers of the link, from the unspecified address.
    pub fn broadcast(&self, payload: &[u8]) -> Result<()> {
        self.send(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, payload)
    }

    /// Sends a datagram to one server, from an address that the link need not have. The frame is
    /// broadcast, as no host would answer our ARP request; so it only reaches servers on the link.
    pub fn send(&self, from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Result<()> {
        let packet = ipv4::datagram((from, CLIENT), (to, SERVER), payload);
        let sent = packet.ok_or(Errno::EMSGSIZE).and_then(|packet| self.link.send(&packet));
        sent.map_err(|e| Error::kernel(format_args!("send a datagram to {to}"), e))
    }

    /// Receives the sender and the payload of the next datagram. None if nothing has arrived, or
    /// something damaged: try again when poll(2) reports more.
    pub fn receive(&self) -> Result<Option<(Ipv4Addr, Vec<u8>)>> {
        let mut buffer = [0; LONGEST];
        let packet =
            self.link.receive(&mut buffer).map_err(|e| Error::kernel("receive a datagram", e))?;
        let datagram = packet.and_then(|packet| ipv4::payload(packet, CLIENT));
        Ok(datagram.map(|(from, payload)| (from, payload.to_vec())))
    }
}

impl_as_fd!(PacketSocket, link.socket);

fn datagram_socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(family, SockType::Datagram, flags, None)
}

fn socket_address(address: Ipv4Addr, port: u16) -> SockaddrIn {
    SocketAddrV4::new(address, port).into()
}

/// Sends a datagram to one server, by the routes of this thread's namespace, from an address that
/// the link has. As long as the returned socket exists, the kernel does not reject the answers;
/// read them from a [`PacketSocket`].
///
/// Without that address it fails with EADDRNOTAVAIL, except in a namespace that never had any:
/// there the kernel sends the datagram, and its arrival is left open. For an address that is known
/// not to be on the link use [`PacketSocket::send`].
pub fn unicast(from: Ipv4Addr, to: Ipv4Addr, ifname: &str, payload: &[u8]) -> Result<UdpSocket> {
    let send = || {
        let socket = datagram_socket(AddressFamily::Inet)?;
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
        setsockopt(&socket, sockopt::BindToDevice, &OsString::from(ifname))?;
        bind(socket.as_raw_fd(), &socket_address(from, CLIENT))?;
        sendto(socket.as_raw_fd(), payload, &socket_address(to, SERVER), MsgFlags::empty())?;
        Ok(UdpSocket::from(socket))
    };
    send().map_err(|e| {
        Error::kernel(format_args!("send a datagram from {from} to {to} over {ifname:?}"), e)
    })
}

/// Where a filter finds the packet type: which host the frame was for.
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
/// The frame was for another hardware address, or for a VLAN that does not exist here.
const OTHERS: u32 = 3; // PACKET_OTHERHOST
/// The bits of a fragment: more fragments follow, or this is not the first.
const FRAGMENT: u32 = 0x3fff;
const UDP: u32 = 17;
const ICMPV6: u32 = 58;
/// Where a filter finds the hop limit, on a socket whose packets begin after the IPv6 header.
const HOP_LIMIT: u32 = (libc::SKF_NET_OFF + 7).cast_unsigned();
const ROUTER_ADVERTISEMENT: u32 = 134;
const NEIGHBOUR_ADVERTISEMENT: u32 = 136;

/// The answers: how much of the packet the socket receives.
const DROP: u32 = 0;
const PASS: u32 = u32::MAX;

/// A filter.
pub struct Filter(Program);

impl Filter {
    /// Passes unfragmented IPv4 packets with UDP to a port.
    pub fn datagrams_to(port: u16) -> Filter {
        let mut program = for_us();
        program.load(Width::Byte, 0).mask(0xf0).answer_unless(Test::Is(4 << 4), DROP);
        program.load(Width::Byte, 9).answer_unless(Test::Is(UDP), DROP);
        program.load(Width::Half, 6).answer_if(Test::HasAny(FRAGMENT), DROP);
        program.load_after_ipv4_header(Width::Half, 2);
        program.answer_unless(Test::Is(port.into()), DROP).answer(PASS);
        Filter(program)
    }

    /// Passes ARP packets from any host that claims the address.
    pub fn claims_of(address: Ipv4Addr) -> Filter {
        let mut program = for_us();
        program.load(Width::Word, 14).answer_unless(Test::Is(address.to_bits()), DROP).answer(PASS);
        Filter(program)
    }

    /// Passes ICMPv6 Neighbour Advertisements, in IPv6 packets without extension headers.
    pub fn neighbour_advertisements() -> Filter {
        let mut program = for_us();
        program.load(Width::Byte, 6).answer_unless(Test::Is(ICMPV6), DROP);
        program.load(Width::Byte, 40).answer_unless(Test::Is(NEIGHBOUR_ADVERTISEMENT), DROP);
        program.answer(PASS);
        Filter(program)
    }

    /// Passes Router and Neighbour Advertisements to a raw ICMPv6 socket, and only those sent on
    /// the link: a forwarded packet no longer has a hop limit of 255 (RFC 4861, sections 6.1.2 and
    /// 7.1.2).
    pub fn advertisements() -> Filter {
        let mut program = Program::default();
        program.load(Width::Byte, HOP_LIMIT).answer_unless(Test::Is(255), DROP);
        program.load(Width::Byte, 0).answer_if(Test::Is(ROUTER_ADVERTISEMENT), PASS);
        program.answer_unless(Test::Is(NEIGHBOUR_ADVERTISEMENT), DROP).answer(PASS);
        Filter(program)
    }

    /// Makes a socket receive only what the filter passes, in place of an earlier filter.
    pub fn attach(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let program = self.0.as_fprog()?;
        let (program, size) =
            ((&raw const program).cast(), size_of_val(&program) as libc::socklen_t);
        // SAFETY: the kernel reads a sock_fprog and the instructions of our program, which it points
        // to, and keeps a copy.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                program,
                size,
            )
        };
        Errno::result(set).map(drop)
    }
}

/// The beginning of every program for packets: drops frames for other hosts.
fn for_us() -> Program {
    let mut program = Program::default();
    program.load(Width::Byte, PACKET_TYPE).answer_if(Test::Is(OTHERS), DROP);
    program
}
