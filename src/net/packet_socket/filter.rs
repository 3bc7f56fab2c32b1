//! Packet filters of sockets, which run in the kernel: the daemon is not woken for the rest of a
//! link's traffic.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

use crate::sys::bpf::{Program, Test, Width};

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
