//! Messages of DHCPv4 as they are on the wire (RFC 2131, section 2; RFC 2132).

pub mod lease;
pub mod options;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;

use self::options::{Options, code};
use crate::net::mac::MacAddr;
use crate::plugins::ipam::dhcp::reader::Reader;

/// The offset of the options, behind the fixed fields and the magic cookie.
const OPTIONS: usize = 240;
/// `sname`, the server's name, which may contain options.
const SNAME: std::ops::Range<usize> = 44..108;
/// `file`, the boot file's name, which may contain options.
const FILE: std::ops::Range<usize> = 108..236;
/// The magic cookie, which distinguishes DHCP options from BOOTP vendor data.
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// The length of a BOOTP message; some relays and servers reject shorter ones.
const SHORTEST: usize = 300;
/// The size of the hardware address field.
const CHADDR: usize = 16;
/// The broadcast bit of `flags`.
const BROADCAST: u16 = 0x8000;
/// Ethernet in `htype`.
const ETHERNET: u8 = 1;

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A client.
    Request = 1,
    /// A server.
    Reply = 2,
}

/// The type of a message: option 53.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    /// A client looks for servers.
    Discover = 1,
    /// A server offers an address.
    Offer = 2,
    /// A client requests an address, or an extension.
    Request = 3,
    /// A client has found an address to be in use.
    Decline = 4,
    /// A server grants an address, or an extension.
    Ack = 5,
    /// A server refuses.
    Nak = 6,
    /// A client releases its address.
    Release = 7,
}

/// A message. The names of server and boot file are not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender.
    pub op: Op,
    /// The transaction id, which matches answers to requests.
    pub xid: u32,
    /// Seconds since the client began.
    pub secs: u16,
    /// Whether the client asks for a broadcast answer.
    pub broadcast: bool,
    /// The client's address, if it has one and answers ARP for it.
    pub ciaddr: Ipv4Addr,
    /// The address for the client.
    pub yiaddr: Ipv4Addr,
    /// The next server to boot from.
    pub siaddr: Ipv4Addr,
    /// The relay's address.
    pub giaddr: Ipv4Addr,
    /// The client's hardware address, at most 16 octets.
    pub chaddr: MacAddr,
    /// The options, including those in overloaded fields.
    pub options: Options,
}

impl Message {
    /// A client's message of this type, with no other options.
    pub fn of_client(kind: MessageType, xid: u32, chaddr: &MacAddr) -> Message {
        let none = Ipv4Addr::UNSPECIFIED;
        let mut options = Options::default();
        options.set(code::MESSAGE_TYPE, &[kind as u8]);
        Message {
            op: Op::Request,
            xid,
            secs: 0,
            broadcast: false,
            ciaddr: none,
            yiaddr: none,
            siaddr: none,
            giaddr: none,
            chaddr: chaddr.clone(),
            options,
        }
    }

    /// The type of the message; `None` for BOOTP and for types that no client receives.
    pub fn kind(&self) -> Option<MessageType> {
        use MessageType::{Ack, Decline, Discover, Nak, Offer, Release, Request};
        let octet = self.options.octet(code::MESSAGE_TYPE)?;
        let all = [Discover, Offer, Request, Decline, Ack, Nak, Release];
        all.into_iter().find(|kind| *kind as u8 == octet)
    }

    /// The server that identifies itself in the message.
    pub fn server(&self) -> Option<Ipv4Addr> {
        self.options.address(code::SERVER_ID).filter(|server| !server.is_unspecified())
    }

    /// Parses the payload of a datagram. The options must have an END, also those in overloaded
    /// fields.
    pub fn decode(bytes: &[u8]) -> Result<Message, &'static str> {
        const SHORT: &str = "it is shorter than 240 octets";
        let (fixed, after_cookie) = bytes.split_at_checked(OPTIONS).ok_or(SHORT)?;
        let op = match fixed[0] {
            1 => Op::Request,
            2 => Op::Reply,
            _ => return Err("its op is neither request nor reply"),
        };
        if fixed[FILE.end..] != COOKIE {
            return Err("it has no magic cookie");
        }
        if usize::from(fixed[2]) > CHADDR {
            return Err("its hardware address is longer than 16 octets");
        }
        let mut options = Options::default();
        options.read(after_cookie)?;
        let overloaded = options.octet(code::OVERLOAD).unwrap_or_default();
        for (bit, field) in [(1, FILE), (2, SNAME)] {
            if overloaded & bit != 0 {
                options.read(&fixed[field])?;
            }
        }
        options.remove(code::OVERLOAD);
        Message::read_fields(op, fixed, options).ok_or(SHORT)
    }

    /// Parses the fields in their order (section 2).
    fn read_fields(op: Op, fixed: &[u8], options: Options) -> Option<Message> {
        let mut fields = Reader::new(fixed);
        let [_, _, length, _] = *fields.take(4)? else { return None };
        Some(Message {
            op,
            xid: fields.u32()?,
            secs: fields.u16()?,
            broadcast: fields.u16()? & BROADCAST != 0,
            ciaddr: fields.ipv4()?,
            yiaddr: fields.ipv4()?,
            siaddr: fields.ipv4()?,
            giaddr: fields.ipv4()?,
            chaddr: MacAddr::new(fields.take(length.into())?),
            options,
        })
    }

    /// The payload of a datagram.
    pub fn encode(&self) -> Vec<u8> {
        let mut chaddr = self.chaddr.octets();
        if chaddr.len() > CHADDR {
            chaddr = &[]; // InfiniBand's does not fit, and none is needed (RFC 4390)
        }
        let mut bytes = Vec::with_capacity(2 * SHORTEST);
        bytes.extend([self.op as u8, ETHERNET, chaddr.len() as u8, 0]);
        bytes.extend(self.xid.to_be_bytes());
        bytes.extend(self.secs.to_be_bytes());
        bytes.extend(if self.broadcast { BROADCAST } else { 0 }.to_be_bytes());
        for address in [self.ciaddr, self.yiaddr, self.siaddr, self.giaddr] {
            bytes.extend(address.octets());
        }
        bytes.extend(chaddr);
        bytes.resize(FILE.end, 0);
        bytes.extend(COOKIE);
        self.options.write(&mut bytes);
        if bytes.len() < SHORTEST {
            bytes.resize(SHORTEST, code::PAD);
        }
        bytes
    }
}
