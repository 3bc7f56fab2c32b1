//! ICMP echo (RFC 792, RFC 4443): what ping(8) sends.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::packet_socket::ipv4;
use crate::error::{Code, Error, Result};

/// The length of the header: type, code, checksum, identifier, sequence number.
const HEADER: usize = 8;
/// The data behind the header, which the answer repeats.
const DATA: &[u8] = b"cni-multi echo request";
/// How long one request waits for its answer before the next one is sent: a bridge drops packets
/// of a port that does not forward yet.
const INTERVAL: Duration = Duration::from_millis(200);

/// The types of a request and of its answer.
struct Types {
    request: u8,
    reply: u8,
}

const V4: Types = Types { request: 8, reply: 0 };
const V6: Types = Types { request: 128, reply: 129 };

fn types(to: IpAddr) -> Types {
    if to.is_ipv4() { V4 } else { V6 }
}

/// Sends echo requests from this thread's namespace until one is answered; returns the time that
/// this answer took. Fails with code 11 after `patience`. Needs CAP_NET_RAW.
pub fn ping(to: IpAddr, patience: Duration) -> Result<Duration> {
    let failed = |e: io::Error| Error::io(format_args!("ping {to}"), &e);
    let socket = open(to).map_err(failed)?;
    let end = Instant::now() + patience;
    let mut number = 0_u16;
    while Instant::now() < end {
        let sent = Instant::now();
        if exchange(&socket, to, number, sent + INTERVAL).map_err(failed)? {
            return Ok(sent.elapsed());
        }
        number = number.wrapping_add(1);
    }
    Err(Error::new(Code::TRY_AGAIN, format!("ping {to}: no answer within {patience:?}")))
}

/// A raw socket, which std knows nothing of: what connects, sends and receives is the same for all
/// sockets of datagrams.
fn open(to: IpAddr) -> io::Result<UdpSocket> {
    let (family, protocol) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
    };
    let socket = UdpSocket::from(socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?);
    socket.connect(SocketAddr::new(to, 0))?;
    Ok(socket)
}

/// Sends a request; whether its answer comes before `end`. Other packets are skipped.
fn exchange(socket: &UdpSocket, to: IpAddr, number: u16, end: Instant) -> io::Result<bool> {
    socket.send(&request(to, number)).or_else(unless_unreachable)?;
    let mut packet = [0; 256];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        socket.set_read_timeout(Some(left))?;
        match socket.recv(&mut packet).or_else(unless_unreachable) {
            Ok(length) if is_reply(&packet[..length], to, number) => return Ok(true),
            Ok(_) => (),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

/// A neighbour that does not answer yet is no error: the next request may reach it.
fn unless_unreachable(error: io::Error) -> io::Result<usize> {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EHOSTUNREACH) => Ok(0),
        _ => Err(error),
    }
}

/// The message; the kernel fills in the checksum of ICMPv6.
fn request(to: IpAddr, number: u16) -> Vec<u8> {
    let mut message = vec![types(to).request, 0, 0, 0];
    message.extend(identity(number));
    message.extend(DATA);
    if to.is_ipv4() {
        let checksum = ipv4::checksum(&message);
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    message
}

/// Identifier and sequence number.
fn identity(number: u16) -> [u8; 4] {
    let [id, sequence] = [(std::process::id() as u16).to_be_bytes(), number.to_be_bytes()];
    [id[0], id[1], sequence[0], sequence[1]]
}

/// Whether the packet is the answer; a raw IPv4 socket receives the IP header as well.
fn is_reply(packet: &[u8], to: IpAddr, number: u16) -> bool {
    let start = if to.is_ipv4() { ipv4::header_length(packet) } else { 0 };
    let message = packet.get(start..).unwrap_or_default();
    message.first() == Some(&types(to).reply) && message.get(4..HEADER) == Some(&identity(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_type_checksum_and_number() {
        let message = request(IpAddr::from([127, 0, 0, 1]), 7);
        assert_eq!((message[0], message[1], &message[6..8]), (8, 0, &[0, 7][..]));
        assert_eq!(ipv4::checksum(&message), 0);
        let message = request("::1".parse().unwrap(), 7);
        assert_eq!((message[0], &message[2..4]), (128, &[0, 0][..]));
    }

    #[test]
    fn an_answer_is_the_reply_to_this_request() {
        let to: IpAddr = "::1".parse().unwrap();
        let mut reply = request(to, 7);
        assert!(!is_reply(&reply, to, 7), "the request itself");
        reply[0] = V6.reply;
        assert!(is_reply(&reply, to, 7));
        assert!(!is_reply(&reply, to, 8));
        assert!(!is_reply(&reply[..7], to, 7));
        assert!(!is_reply(&[], to, 7));
    }

    #[test]
    fn the_reply_of_ipv4_follows_its_header() {
        let to = IpAddr::from([127, 0, 0, 1]);
        let mut reply = request(to, 7);
        reply[0] = V4.reply;
        let packet = [vec![0x46; 24], reply].concat();
        assert!(is_reply(&packet, to, 7));
    }
}
