//! The options of a message (RFC 2132): their codes, values and encoding.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::hex;
use crate::plugins::ipam::dhcp::reader::Reader;

/// The codes that this program reads or writes.
pub mod code {
    /// Fills a gap; it has no length.
    pub const PAD: u8 = 0;
    /// The mask of the subnet.
    pub const SUBNET_MASK: u8 = 1;
    /// Routers of the subnet, the preferred one first.
    pub const ROUTERS: u8 = 3;
    /// Name servers, the preferred one first.
    pub const NAME_SERVERS: u8 = 6;
    /// The client's name.
    pub const HOST_NAME: u8 = 12;
    /// The client's domain.
    pub const DOMAIN: u8 = 15;
    /// The MTU of the link.
    pub const MTU: u8 = 26;
    /// Pairs of a classful destination and a router.
    pub const STATIC_ROUTES: u8 = 33;
    /// The address that the client requests.
    pub const REQUESTED_ADDRESS: u8 = 50;
    /// The duration of the lease in seconds.
    pub const LEASE_TIME: u8 = 51;
    /// Which other fields of the message contain options.
    pub const OVERLOAD: u8 = 52;
    /// The type of the message.
    pub const MESSAGE_TYPE: u8 = 53;
    /// The server that sends the message, or that it is meant for.
    pub const SERVER_ID: u8 = 54;
    /// The codes of the options that the client requests.
    pub const PARAMETER_REQUEST: u8 = 55;
    /// Why a server refuses, or a client declines.
    pub const MESSAGE: u8 = 56;
    /// The longest message that the client accepts.
    pub const MAX_MESSAGE_SIZE: u8 = 57;
    /// T1: seconds until the lease is renewed.
    pub const RENEWAL_TIME: u8 = 58;
    /// T2: seconds until the client asks any server.
    pub const REBINDING_TIME: u8 = 59;
    /// The vendor and kind of client.
    pub const VENDOR_CLASS: u8 = 60;
    /// The identity of the client.
    pub const CLIENT_ID: u8 = 61;
    /// The user class of the client (RFC 3004).
    pub const USER_CLASS: u8 = 77;
    /// Domains to search (RFC 3397).
    pub const DOMAIN_SEARCH: u8 = 119;
    /// Destinations with their prefix lengths and routers (RFC 3442).
    pub const CLASSLESS_ROUTES: u8 = 121;
    /// The same, from servers for Microsoft's clients, which used this code before 121 was
    /// assigned.
    pub const CLASSLESS_ROUTES_OF_MICROSOFT: u8 = 249;
    /// The end of the options; it has no length.
    pub const END: u8 = 255;
}

/// The longest value that one length octet allows. Longer values are split into several pieces (RFC
/// 3396).
const PIECE: usize = 255;

/// Options, each code once, sorted by code. Serialised as their octets in hex.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(BTreeMap<u8, Vec<u8>>);

impl Options {
    /// The value of an option.
    pub fn get(&self, code: u8) -> Option<&[u8]> {
        self.0.get(&code).map(Vec::as_slice)
    }

    /// Sets an option, replacing one of the same code. PAD and END are not options and are ignored.
    pub fn set(&mut self, code: u8, value: &[u8]) {
        if !matches!(code, code::PAD | code::END) {
            self.0.insert(code, value.to_vec());
        }
    }

    /// Removes an option.
    pub fn remove(&mut self, code: u8) {
        self.0.remove(&code);
    }

    /// All options, sorted by code.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.0.iter().map(|(code, value)| (*code, value.as_slice()))
    }

    /// The value of an option that is one octet.
    pub fn octet(&self, code: u8) -> Option<u8> {
        self.get(code)?.try_into().ok().map(u8::from_be_bytes)
    }

    /// The value of an option that is two octets.
    pub fn short(&self, code: u8) -> Option<u16> {
        self.get(code)?.try_into().ok().map(u16::from_be_bytes)
    }

    /// The value of an option that is four octets.
    pub fn long(&self, code: u8) -> Option<u32> {
        self.get(code)?.try_into().ok().map(u32::from_be_bytes)
    }

    /// The value of an option that is an address.
    pub fn address(&self, code: u8) -> Option<Ipv4Addr> {
        self.long(code).map(Ipv4Addr::from_bits)
    }

    /// The addresses that an option lists; an incomplete one at the end is ignored.
    pub fn addresses(&self, code: u8) -> impl Iterator<Item = Ipv4Addr> {
        let (whole, _) = self.get(code).unwrap_or_default().as_chunks::<4>();
        whole.iter().map(|octets| Ipv4Addr::from(*octets))
    }

    /// Adds the options of a field, which must have an END. The value of a repeated option is
    /// appended (RFC 3396).
    pub(super) fn read(&mut self, field: &[u8]) -> Result<(), &'static str> {
        let mut field = Reader::new(field);
        loop {
            let code = match field.u8().ok_or("its options have no end")? {
                code::END => return Ok(()),
                code::PAD => continue,
                code => code,
            };
            let length = field.u8().map(usize::from);
            let value = length.and_then(|length| field.take(length));
            let value = value.ok_or("an option is cut off")?;
            self.0.entry(code).or_default().extend(value);
        }
    }

    /// Writes the options and an END; a long value in several pieces.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for (code, value) in &self.0 {
            if value.is_empty() {
                out.extend([*code, 0]);
            }
            for piece in value.chunks(PIECE) {
                out.extend([*code, piece.len() as u8]);
                out.extend(piece);
            }
        }
        out.push(code::END);
    }
}

impl Serialize for Options {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut octets = vec![];
        self.write(&mut octets);
        hex::serialize(&octets, serializer)
    }
}

impl<'de> Deserialize<'de> for Options {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Options, D::Error> {
        let mut options = Options::default();
        options.read(&hex::deserialize(deserializer)?).map_err(D::Error::custom)?;
        Ok(options)
    }
}
