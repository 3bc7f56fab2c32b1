//! The packet that opens a TCP connection (RFC 9293), without a connection: the kernel, which has no
//! socket for the answer, resets it.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::packet_socket::ipv4;
use super::request::{self, Answer, Request, unless_rejected};
use crate::error::{Error, Result};
use crate::sys::impl_as_fd;

/// The length of the header.
const HEADER: usize = 24;
/// The header's length in words of 32 bits, and the flag SYN.
const OFFSET_AND_SYN: [u8; 2] = [0x60, 0x02];
/// The option of the largest segment, 1460 octets: firewalls drop a first packet without it.
const MSS: [u8; 4] = [2, 4, 5, 180];
const ACK: u8 = 0x10;
const RST: u8 = 0x04;
const WINDOW: u16 = 64240;
const TCP: u8 = 6;

/// A request to open a connection.
pub struct Syn {
    /// A raw socket, which std knows nothing of.
    socket: UdpSocket,
    to: SocketAddr,
    segment: Vec<u8>,
}

impl Syn {
    /// Opens the socket in this thread's namespace. The packet has this length, IP header included, of
    /// which a server ignores what is behind the header of TCP. Needs CAP_NET_RAW.
    pub fn open(from_port: u16, to: SocketAddr, length: u32) -> Result<Syn> {
        let open = || {
            let (family, headers) = match to {
                SocketAddr::V4(_) => (AddressFamily::Inet, 20),
                SocketAddr::V6(_) => (AddressFamily::Inet6, 40),
            };
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let socket = socket(family, SockType::Raw, flags, SockProtocol::Tcp)?;
            let socket = UdpSocket::from(socket);
            socket.connect((to.ip(), 0))?;
            let from = SocketAddr::new(socket.local_addr()?.ip(), from_port);
            let length = (length as usize).saturating_sub(headers).max(HEADER);
            Ok(Syn { socket, to, segment: segment(from, to, length) })
        };
        open().map_err(|e| failed(to, &e))
    }
}

impl Request for Syn {
    fn send(&mut self) -> Result<()> {
        let sent = request::send(&self.socket, &self.segment);
        sent.map(drop).map_err(|e| failed(self.to, &e))
    }

    fn receive(&mut self) -> Result<Option<Answer>> {
        let mut packet = [0; 256];
        match self.socket.recv(&mut packet).or_else(unless_rejected) {
            Ok(length) => Ok(answer_in(&packet[..length], self.to, &self.segment)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(failed(self.to, &error)),
        }
    }
}

impl_as_fd!(Syn, socket);

fn failed(to: SocketAddr, error: &io::Error) -> Error {
    Error::io(format_args!("connect to {to}"), error)
}

/// The segment with its checksum, filled up to this length.
fn segment(from: SocketAddr, to: SocketAddr, length: usize) -> Vec<u8> {
    let mut segment = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    segment.extend([0, 0, 0, 1, 0, 0, 0, 0]); // sequence and acknowledgement numbers
    segment.extend(OFFSET_AND_SYN);
    segment.extend(WINDOW.to_be_bytes());
    segment.extend([0; 4]); // checksum and urgent pointer
    segment.extend(MSS);
    segment.resize(length, 0);
    let mut pseudo: Vec<u8> = [from.ip(), to.ip()].into_iter().flat_map(octets).collect();
    pseudo.extend([0, TCP]);
    pseudo.extend((length as u16).to_be_bytes());
    pseudo.extend(&segment);
    let checksum = ipv4::checksum(&pseudo);
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    segment
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// What the packet answers to the segment; a raw IPv4 socket receives the IP header as well.
fn answer_in(packet: &[u8], to: SocketAddr, segment: &[u8]) -> Option<Answer> {
    let start = if to.is_ipv4() { ipv4::header_length(packet) } else { 0 };
    let answer = packet.get(start..)?;
    let is_its = answer.get(..2)? == segment.get(2..4)? && answer.get(2..4)? == segment.get(..2)?;
    match *answer.get(13)? {
        flags if is_its && flags & RST != 0 => Some(Answer::Refused),
        flags if is_its && flags & ACK != 0 => Some(Answer::Yes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_answered_by_its_port_s() {
        let (from, to) = ("127.0.0.1:61000".parse().unwrap(), "127.0.0.1:80".parse().unwrap());
        let own = segment(from, to, 100);
        assert_eq!((own.len(), &own[..4], own[13]), (100, &[0xee, 0x48, 0, 80][..], 2));
        let with_flags = |flags: u8| {
            let mut packet = vec![0x45; 20];
            packet.extend(segment(to, from, 24));
            packet[33] = flags;
            packet
        };
        assert_eq!(answer_in(&with_flags(0x12), to, &own), Some(Answer::Yes));
        assert_eq!(answer_in(&with_flags(0x14), to, &own), Some(Answer::Refused));
        assert_eq!(answer_in(&with_flags(0x02), to, &own), None);
        let other = segment(from, "127.0.0.1:81".parse().unwrap(), 100);
        assert_eq!(answer_in(&with_flags(0x12), to, &other), None);
        assert_eq!(answer_in(&[0x45], to, &own), None);
    }
}
