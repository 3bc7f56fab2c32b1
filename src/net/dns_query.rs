//! A question to a name server: the servers of the root (RFC 1035), which each knows.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};

use super::request::{self, Answer, Request, unless_rejected};
use crate::error::{Error, Result};
use crate::family::Family;
use crate::sys::impl_as_fd;

/// The port of DNS.
pub const PORT: u16 = 53;
/// Identifier, recursion is desired, one question, and one record more.
const HEADER: [u8; 12] = [0xc4, 0x91, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
/// The name of the root, NS, IN.
const QUESTION: [u8; 5] = [0, 0, 2, 0, 1];
/// The record OPT (RFC 6891): no name, type 41, answers of 1232 octets, no flags.
const OPTIONS: [u8; 9] = [0, 0, 41, 4, 208, 0, 0, 0, 0];
/// The option Padding (RFC 7830).
const PADDING: u16 = 12;
const UDP_HEADER: usize = 8;

/// A query with its socket.
pub struct DnsQuery {
    socket: UdpSocket,
    to: SocketAddr,
    message: Vec<u8>,
}

impl DnsQuery {
    /// Opens the socket in this thread's namespace. The query's packet has this length, IP header
    /// included.
    pub fn open(from_port: u16, to: SocketAddr, length: u32) -> Result<DnsQuery> {
        let open = || {
            let socket = UdpSocket::bind((Family::of(to.ip()).unspecified(), from_port))?;
            socket.set_nonblocking(true)?;
            socket.connect(to)?;
            let header = if to.is_ipv4() { 20 } else { 40 };
            let length = (length as usize).saturating_sub(header + UDP_HEADER);
            Ok(DnsQuery { socket, to, message: message(length) })
        };
        open().map_err(|e| failed(to, &e))
    }
}

impl Request for DnsQuery {
    fn send(&mut self) -> Result<()> {
        let sent = request::send(&self.socket, &self.message);
        match sent {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()), // receive says it
            sent => sent.map(drop).map_err(|e| failed(self.to, &e)),
        }
    }

    fn receive(&mut self) -> Result<Option<Answer>> {
        let mut answer = [0; 2048];
        match self.socket.recv(&mut answer) {
            Ok(_) => Ok(Some(Answer::Yes)),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => Ok(None),
                ErrorKind::ConnectionRefused => Ok(Some(Answer::Refused)),
                _ => unless_rejected(error).map(|_| None).map_err(|e| failed(self.to, &e)),
            },
        }
    }
}

impl_as_fd!(DnsQuery, socket);

fn failed(to: SocketAddr, error: &io::Error) -> Error {
    Error::io(format_args!("send a DNS query to {to}"), error)
}

/// The message, padded to this length.
fn message(length: usize) -> Vec<u8> {
    let mut message = [&HEADER[..], &QUESTION, &OPTIONS].concat();
    let padding = length.saturating_sub(message.len() + 6) as u16;
    message.extend([padding + 4, PADDING, padding].map(u16::to_be_bytes).concat());
    message.resize(message.len() + usize::from(padding), 0);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_padded_to_its_length() {
        assert_eq!(message(700).len(), 700);
        let [high, low] = 672_u16.to_be_bytes();
        assert_eq!(message(700)[26..32], [high, low, 0, 12, 2, 156]);
    }
}
