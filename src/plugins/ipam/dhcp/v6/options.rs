//! DHCPv6 options (RFC 8415, section 21): a code and a length of 16 bits each, then the value.

use crate::plugins::ipam::dhcp::reader::{Reader, search};

/// Client Identifier: a DUID.
pub const CLIENT_ID: u16 = 1;
/// Server Identifier: a DUID.
pub const SERVER_ID: u16 = 2;
/// Identity Association for Non-temporary Addresses.
pub const IA_NA: u16 = 3;
/// An address inside an identity association.
pub const IA_ADDRESS: u16 = 5;
/// Option Request: the codes of the options that the client requests.
pub const OPTION_REQUEST: u16 = 6;
/// The preference of a server, 0 to 255.
pub const PREFERENCE: u16 = 7;
/// Hundredths of a second since the exchange began.
pub const ELAPSED_TIME: u16 = 8;
/// A status code and a message.
pub const STATUS_CODE: u16 = 13;
/// The addresses of name servers (RFC 3646).
pub const DNS_SERVERS: u16 = 23;
/// Domains to search (RFC 3646).
pub const DOMAIN_LIST: u16 = 24;
/// The longest wait between two Solicit messages, in seconds.
pub const SOL_MAX_RT: u16 = 82;

/// A list of options in the order of the packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(u16, Vec<u8>)>);

impl Options {
    /// Parses options up to the end of the bytes; `None` if one is truncated.
    pub fn decode(bytes: &[u8]) -> Option<Options> {
        let mut bytes = Reader::new(bytes);
        let mut options = vec![];
        while !bytes.is_empty() {
            let code = bytes.u16()?;
            let length = bytes.u16()?;
            options.push((code, bytes.take(length.into())?.to_vec()));
        }
        Some(Options(options))
    }

    /// Appends the options to `packet`.
    pub fn encode(&self, packet: &mut Vec<u8>) {
        for (code, value) in &self.0 {
            packet.extend(code.to_be_bytes());
            packet.extend((value.len() as u16).to_be_bytes());
            packet.extend(value);
        }
    }

    /// Adds an option. Its value is part of a UDP packet, so its length fits in 16 bits.
    pub fn push(&mut self, code: u16, value: Vec<u8>) {
        self.0.push((code, value));
    }

    /// The value of the first option with this code.
    pub fn get(&self, code: u16) -> Option<&[u8]> {
        self.all(code).next()
    }

    /// The values of all options with this code.
    pub fn all(&self, code: u16) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |(found, _)| *found == code).map(|(_, value)| value.as_slice())
    }
}

/// Consecutive addresses as text; an incomplete one at the end is ignored.
pub fn read_addresses(bytes: &[u8]) -> Vec<String> {
    let mut bytes = Reader::new(bytes);
    std::iter::from_fn(|| bytes.ipv6()).map(|address| address.to_string()).collect()
}

/// A list of search domains, empty if one is invalid. Ignores the padding of RFC 8106.
pub fn read_domains(bytes: &[u8]) -> Vec<String> {
    search(bytes).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn options_come_back_in_their_order() {
        let bytes = [0, 1, 0, 2, 7, 8, 0, 14, 0, 0, 0, 1, 0, 1, 9];
        let options = Options::decode(&bytes).unwrap();
        assert_eq!(options.get(CLIENT_ID), Some(&[7, 8][..]));
        assert_eq!(options.get(14), Some(&[][..]), "an empty one is there");
        assert_eq!(options.all(CLIENT_ID).count(), 2);
        assert_eq!(options.get(SERVER_ID), None);
        let mut again = vec![];
        options.encode(&mut again);
        assert_eq!(again, bytes);
    }

    #[test]
    fn an_option_that_is_cut_off_is_none() {
        for bytes in [&[0][..], &[0, 1], &[0, 1, 0], &[0, 1, 0, 1], &[0, 1, 0, 0, 9]] {
            assert_eq!(Options::decode(bytes), None, "{bytes:?}");
        }
        assert_eq!(Options::decode(&[]), Some(Options::default()));
    }

    #[test]
    fn domains_are_read_and_padding_is_none() {
        assert_eq!(read_domains(b"\x07example\x03org\0\x03lan\0\0\0\0"), ["example.org", "lan"]);
        assert_eq!(read_domains(b"\x0ba\nnameserver\0\x03lan\0"), [""; 0]);
        assert_eq!(read_domains(b"\x03lan\0\x03la"), [""; 0], "cut off");
    }
}
