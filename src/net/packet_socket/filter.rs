//! Packet filters of sockets, which run in the kernel (Documentation/networking/filter.rst): the
//! daemon is not woken for the rest of a link's traffic.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::libc::{
    self, BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K,
    BPF_LD, BPF_LDX, BPF_MSH, BPF_RET, BPF_W, sock_filter,
};

/// Where a filter finds the packet type: which host the frame was for.
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
/// The frame was for another hardware address, or for a VLAN that does not exist here.
const OTHERS: u32 = 3; // PACKET_OTHERHOST
/// The bits of a fragment: more fragments follow, or this is not the first.
const FRAGMENT: u32 = 0x3fff;
const UDP: u32 = 17;
/// Where a filter finds the hop limit, on a socket whose packets begin after the IPv6 header.
const HOP_LIMIT: u32 = (libc::SKF_NET_OFF + 7).cast_unsigned();
const ROUTER_ADVERTISEMENT: u32 = 134;
const NEIGHBOUR_ADVERTISEMENT: u32 = 136;

/// A filter program. A packet that is too short for a load is dropped.
pub struct Filter(Vec<sock_filter>);

impl Filter {
    /// Passes unfragmented IPv4 packets with UDP to a port.
    pub fn datagrams_to(port: u16) -> Filter {
        let mut filter = Filter::for_us();
        filter.add(BPF_LD | BPF_B | BPF_ABS, 0);
        filter.add(BPF_ALU | BPF_AND | BPF_K, 0xf0);
        filter.drop_unless(BPF_JEQ, 4 << 4);
        filter.add(BPF_LD | BPF_B | BPF_ABS, 9);
        filter.drop_unless(BPF_JEQ, UDP);
        filter.add(BPF_LD | BPF_H | BPF_ABS, 6);
        filter.drop_if(BPF_JSET, FRAGMENT);
        filter.add(BPF_LDX | BPF_B | BPF_MSH, 0); // the length of the header
        filter.add(BPF_LD | BPF_H | BPF_IND, 2);
        filter.drop_unless(BPF_JEQ, port.into());
        filter.pass()
    }

    /// Passes ARP packets from any host that claims the address.
    pub fn claims_of(address: Ipv4Addr) -> Filter {
        let mut filter = Filter::for_us();
        filter.add(BPF_LD | BPF_W | BPF_ABS, 14);
        filter.drop_unless(BPF_JEQ, address.to_bits());
        filter.pass()
    }

    /// Passes Router and Neighbour Advertisements to a raw ICMPv6 socket, and only those sent on
    /// the link: a forwarded packet no longer has a hop limit of 255 (RFC 4861, sections 6.1.2 and
    /// 7.1.2).
    pub fn advertisements() -> Filter {
        let mut filter = Filter(vec![]);
        filter.add(BPF_LD | BPF_B | BPF_ABS, HOP_LIMIT);
        filter.drop_unless(BPF_JEQ, 255);
        filter.add(BPF_LD | BPF_B | BPF_ABS, 0);
        filter.pass_if(BPF_JEQ, ROUTER_ADVERTISEMENT);
        filter.drop_unless(BPF_JEQ, NEIGHBOUR_ADVERTISEMENT);
        filter.pass()
    }

    /// The beginning of every program for packets: drops frames for other hosts.
    fn for_us() -> Filter {
        let mut filter = Filter(vec![]);
        filter.add(BPF_LD | BPF_B | BPF_ABS, PACKET_TYPE);
        filter.drop_if(BPF_JEQ, OTHERS);
        filter
    }

    fn add(&mut self, code: u32, k: u32) {
        self.0.push(sock_filter { code: code as u16, jt: 0, jf: 0, k });
    }

    fn drop_unless(&mut self, test: u32, k: u32) {
        self.0.push(sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt: 1, jf: 0, k });
        self.add(BPF_RET | BPF_K, 0);
    }

    fn drop_if(&mut self, test: u32, k: u32) {
        self.0.push(sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt: 0, jf: 1, k });
        self.add(BPF_RET | BPF_K, 0);
    }

    fn pass_if(&mut self, test: u32, k: u32) {
        self.0.push(sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt: 0, jf: 1, k });
        self.add(BPF_RET | BPF_K, u32::MAX);
    }

    fn pass(mut self) -> Filter {
        self.add(BPF_RET | BPF_K, u32::MAX);
        self
    }

    /// Makes a socket receive only what the filter passes, in place of an earlier filter.
    pub fn attach(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let len = u16::try_from(self.0.len()).map_err(|_| Errno::EINVAL)?;
        let program = libc::sock_fprog { len, filter: self.0.as_ptr().cast_mut() };
        let (program, size) =
            ((&raw const program).cast(), size_of_val(&program) as libc::socklen_t);
        // SAFETY: the kernel reads a sock_fprog and the `len` instructions that it points to, and
        // keeps a copy.
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
