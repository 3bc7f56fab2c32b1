//! ICMP echo (RFC 792, RFC 4443): what ping(8) sends.

use std::io::{self, ErrorKind};
use std::iter;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::packet_socket::ipv4;
use super::request::{self, Answer, Request, unless_rejected};
use crate::error::{Code, Error, Result};
use crate::sys::impl_as_fd;

/// The length of the header: type, code, checksum, identifier, sequence number.
const HEADER: usize = 8;
/// The data behind the header, which the answer repeats.
const DATA: &[u8] = b"cni-multi echo request";
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
    let answered = request::ask(&mut Echo::open(to, 0)?, patience, &mut 0)?;
    let silent =
        || Error::new(Code::TRY_AGAIN, format!("ping {to}: no answer within {patience:?}"));
    answered.map(|(_, time)| time).ok_or_else(silent)
}

/// Requests to one host. The socket does not block, and belongs to the namespace of the thread that
/// opened it.
pub struct Echo {
    /// A raw socket, which std knows nothing of: what connects, sends and receives is the same for
    /// all sockets of datagrams.
    socket: UdpSocket,
    to: IpAddr,
    /// The number of the last request.
    number: u16,
    /// The length of what a request has behind its header: [`DATA`], cut or filled up.
    length: usize,
}

impl Echo {
    /// Opens the socket. A link-local address is one of the link with this ifindex.
    pub fn open(to: IpAddr, ifindex: u32) -> Result<Echo> {
        let socket = open(to, ifindex).map_err(|e| failed(to, &e))?;
        Ok(Echo { socket, to, number: 0, length: DATA.len() })
    }

    /// Pads each request so that its packet has this length, IP header included.
    #[must_use]
    pub fn of_length(self, length: u32) -> Echo {
        let headers = HEADER + if self.to.is_ipv4() { 20 } else { 40 };
        Echo { length: (length as usize).saturating_sub(headers), ..self }
    }
}

impl Request for Echo {
    fn send(&mut self) -> Result<()> {
        self.number = self.number.wrapping_add(1);
        let sent = request::send(&self.socket, &request(self.to, self.number, self.length));
        sent.map(drop).map_err(|e| failed(self.to, &e))
    }

    fn receive(&mut self) -> Result<Option<Answer>> {
        let mut packet = [0; 256];
        match self.socket.recv(&mut packet).or_else(unless_rejected) {
            Ok(length) if is_reply(&packet[..length], self.to, self.number) => {
                Ok(Some(Answer::Yes))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(failed(self.to, &error)),
        }
    }
}

impl_as_fd!(Echo, socket);

fn failed(to: IpAddr, error: &io::Error) -> Error {
    Error::io(format_args!("ping {to}"), error)
}

fn open(to: IpAddr, ifindex: u32) -> io::Result<UdpSocket> {
    let (family, protocol, to) = match to {
        IpAddr::V4(ip) => (AddressFamily::Inet, SockProtocol::Icmp, SocketAddr::from((ip, 0))),
        IpAddr::V6(ip) => {
            let scope = if ip.is_unicast_link_local() { ifindex } else { 0 };
            let to = SocketAddrV6::new(ip, 0, 0, scope);
            (AddressFamily::Inet6, SockProtocol::IcmpV6, to.into())
        }
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = UdpSocket::from(socket(family, SockType::Raw, flags, protocol)?);
    socket.connect(to)?;
    Ok(socket)
}

/// The message; the kernel fills in the checksum of ICMPv6.
fn request(to: IpAddr, number: u16, length: usize) -> Vec<u8> {
    let mut message = vec![types(to).request, 0, 0, 0];
    message.extend(identity(number));
    message.extend(DATA.iter().chain(iter::repeat(&0)).take(length));
    if to.is_ipv4() {
        let checksum = ipv4::checksum(&message);
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    message
}

/// The identifier of this process's requests, as they have it.
pub fn identifier() -> [u8; 2] {
    (std::process::id() as u16).to_be_bytes()
}

/// Identifier and sequence number.
fn identity(number: u16) -> [u8; 4] {
    let [id, sequence] = [identifier(), number.to_be_bytes()];
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
        let message = request(IpAddr::from([127, 0, 0, 1]), 7, 22);
        assert_eq!((message[0], message[1], &message[6..8]), (8, 0, &[0, 7][..]));
        assert_eq!(ipv4::checksum(&message), 0);
        let message = request("::1".parse().unwrap(), 7, 22);
        assert_eq!((message[0], &message[2..4]), (128, &[0, 0][..]));
    }

    #[test]
    fn an_answer_is_the_reply_to_this_request() {
        let to: IpAddr = "::1".parse().unwrap();
        let mut reply = request(to, 7, 22);
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
        let mut reply = request(to, 7, 22);
        reply[0] = V4.reply;
        let packet = [vec![0x46; 24], reply].concat();
        assert!(is_reply(&packet, to, 7));
    }
}
