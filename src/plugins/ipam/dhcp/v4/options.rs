//! The options of a message (RFC 2132): their codes, values and encoding.

use std::fmt;
use std::net::Ipv4Addr;

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

/// Why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Options, each code once, sorted by code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(u8, Vec<u8>)>);

impl Options {
    /// The value of an option.
    pub fn get(&self, code: u8) -> Option<&[u8]> {
        let at = self.0.binary_search_by_key(&code, |(code, _)| *code).ok()?;
        Some(&self.0[at].1)
    }

    /// Sets an option, replacing one of the same code. PAD and END are not options and are ignored.
    pub fn set(&mut self, code: u8, value: &[u8]) {
        if let Some(place) = self.place(code) {
            place.clear();
            place.extend(value);
        }
    }

    /// Removes an option.
    pub fn remove(&mut self, code: u8) {
        self.0.retain(|(other, _)| *other != code);
    }

    /// All options, sorted by code.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.0.iter().map(|(code, value)| (*code, value.as_slice()))
    }

    /// The value of an option that is one octet.
    pub fn octet(&self, code: u8) -> Option<u8> {
        let [octet] = *self.get(code)? else { return None };
        Some(octet)
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
    pub(super) fn read(&mut self, field: &[u8]) -> Result<(), Malformed> {
        let mut field = Reader::new(field);
        while let Some(code) = next_code(&mut field)? {
            let value = read_value(&mut field).ok_or(Malformed("an option is cut off"))?;
            self.append(code, value);
        }
        Ok(())
    }

    fn append(&mut self, code: u8, value: &[u8]) {
        if let Some(place) = self.place(code) {
            place.extend(value);
        }
    }

    /// The options and an END.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![];
        self.write(&mut bytes);
        bytes
    }

    /// Writes the options and an END.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for (code, value) in &self.0 {
            write_option(*code, value, out);
        }
        out.push(code::END);
    }

    /// The value of an option, inserted empty if missing; `None` for PAD and END.
    fn place(&mut self, code: u8) -> Option<&mut Vec<u8>> {
        if matches!(code, code::PAD | code::END) {
            return None;
        }
        let at = self.0.binary_search_by_key(&code, |(code, _)| *code).unwrap_or_else(|at| {
            self.0.insert(at, (code, vec![]));
            at
        });
        Some(&mut self.0[at].1)
    }
}

/// Takes an option's length and value.
fn read_value<'a>(field: &mut Reader<'a>) -> Option<&'a [u8]> {
    let length = field.u8()?;
    field.take(length.into())
}

/// Writes an option, in several pieces if its value is long.
fn write_option(code: u8, value: &[u8], out: &mut Vec<u8>) {
    let mut rest = value;
    loop {
        let (piece, more) = rest.split_at(rest.len().min(PIECE));
        out.extend([code, piece.len() as u8]);
        out.extend(piece);
        rest = more;
        if rest.is_empty() {
            return;
        }
    }
}

/// The code of the next option; `None` is the END.
fn next_code(field: &mut Reader<'_>) -> Result<Option<u8>, Malformed> {
    loop {
        match field.u8().ok_or(Malformed("its options have no end"))? {
            code::END => return Ok(None),
            code::PAD => (),
            code => return Ok(Some(code)),
        }
    }
}
