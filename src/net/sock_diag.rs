//! Which socket of this namespace receives what is sent to a port: sock_diag(7).

use std::net::IpAddr;

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use nix::errno::Errno;
use nix::libc;

use super::netlink::transport::Transport;
use super::nfnetlink::NLM_F_REQUEST;
use crate::error::{Error, Result};

/// nlmsghdr.
const HEADER: usize = 16;
// linux/sock_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
// linux/inet_diag.h: the offsets of inet_diag_msg, and the cookie of any socket
const IDIAG_STATE: usize = 1;
const IDIAG_INODE: usize = 68;
const INET_DIAG_NOCOOKIE: [u8; 8] = [0xff; 8];
/// TCP_LISTEN of net/tcp_states.h.
const LISTEN: u8 = 10;

/// A port at an address of this namespace.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// IPPROTO_TCP or IPPROTO_UDP.
    pub protocol: u8,
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
}

/// A socket for the questions.
pub struct SocketDiag {
    transport: Transport,
}

impl SocketDiag {
    /// Opens a socket in the namespace of this thread.
    pub fn open() -> Result<SocketDiag> {
        let transport = Transport::open(NETLINK_SOCK_DIAG)
            .map_err(|e| Error::kernel("open a sock_diag socket", e))?;
        Ok(SocketDiag { transport })
    }

    /// The inode of the TCP socket that listens at the port, or of the UDP socket that is bound to
    /// it, at this address or at all. The kernel looks in its hash table, as for a packet: the
    /// cost does not depend on the number of sockets.
    pub fn receiver(&self, local: &Local) -> Result<Option<u32>> {
        let what = format_args!("find the socket at port {}", local.port);
        let seq = self.transport.next_seq();
        self.transport.send(&local.request(seq)).map_err(|e| Error::kernel(what, e))?;
        let mut inode = None;
        match self.transport.one(seq, |reply| inode = local.read(reply.payload)) {
            Err(refusal) if refusal.errno == Errno::ENOENT => Ok(None),
            answered => answered.map(|()| inode).map_err(|e| Error::kernel(what, e.errno)),
        }
    }
}

impl Local {
    /// nlmsghdr and inet_diag_req_v2.
    fn request(&self, seq: u32) -> Vec<u8> {
        let (family, address) = match self.address {
            IpAddr::V4(ip) => (libc::AF_INET, [&ip.octets()[..], &[0; 12]].concat()),
            IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
        };
        let port = self.port.to_be_bytes();
        // As a request about UDP, the destination is this side.
        let is_destination = i32::from(self.protocol) == libc::IPPROTO_UDP;
        let none = (vec![0; 2], vec![0; 16]);
        let own = (port.to_vec(), address);
        let (from, to) = if is_destination { (none, own) } else { (own, none) };
        let body = [
            &[family as u8, self.protocol, 0, 0][..],
            &[0xff; 4], // any state
            &from.0,
            &to.0,
            &from.1,
            &to.1,
            &[0; 4], // any interface
            &INET_DIAG_NOCOOKIE,
        ]
        .concat();
        let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        bytes.extend(NLM_F_REQUEST.to_ne_bytes());
        bytes.extend(seq.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes
    }

    /// Reads inet_diag_msg; None for a TCP socket that does not listen.
    fn read(&self, payload: &[u8]) -> Option<u32> {
        let inode = payload.get(IDIAG_INODE..IDIAG_INODE + 4)?;
        let is_tcp = i32::from(self.protocol) == libc::IPPROTO_TCP;
        let receives = !is_tcp || payload.get(IDIAG_STATE) == Some(&LISTEN);
        receives.then(|| u32::from_ne_bytes([inode[0], inode[1], inode[2], inode[3]]))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_question_has_the_port_on_the_side_that_the_protocol_wants() {
        let request = |protocol: i32| {
            let address = Ipv4Addr::new(10, 0, 0, 1).into();
            Local { protocol: protocol as u8, address, port: 0x1234 }.request(7)
        };
        let [tcp, udp] = [libc::IPPROTO_TCP, libc::IPPROTO_UDP].map(request);
        assert_eq!((tcp.len(), udp.len()), (72, 72));
        assert_eq!(
            (&tcp[24..28], &udp[24..28]),
            (&[0x12, 0x34, 0, 0][..], &[0, 0, 0x12, 0x34][..])
        );
        assert_eq!((&tcp[28..32], &udp[44..48]), (&[10, 0, 0, 1][..], &[10, 0, 0, 1][..]));
    }

    #[test]
    fn a_connection_does_not_receive_what_comes_to_its_port() {
        let local = |protocol: i32| {
            let address = Ipv4Addr::LOCALHOST.into();
            Local { protocol: protocol as u8, address, port: 1 }
        };
        let message = |state: u8| [&[2, state][..], &[0; 66], &9_u32.to_ne_bytes()].concat();
        assert_eq!(local(libc::IPPROTO_TCP).read(&message(LISTEN)), Some(9));
        assert_eq!(local(libc::IPPROTO_TCP).read(&message(1)), None);
        assert_eq!(local(libc::IPPROTO_UDP).read(&message(7)), Some(9));
        assert_eq!(local(libc::IPPROTO_UDP).read(&message(7)[..70]), None);
    }
}
