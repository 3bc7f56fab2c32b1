//! A reader for the octets of a packet, from front to back; numbers are in network byte order.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The unread octets. A read past the end returns `None`.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Starts at the first octet.
    pub fn new(octets: &'a [u8]) -> Reader<'a> {
        Reader(octets)
    }

    /// Takes `count` octets.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    /// Takes one octet.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    /// Takes a 16-bit number.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// Takes a 32-bit number.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Takes an IPv4 address.
    pub fn ipv4(&mut self) -> Option<Ipv4Addr> {
        self.array::<4>().map(Ipv4Addr::from)
    }

    /// Takes an IPv6 address.
    pub fn ipv6(&mut self) -> Option<Ipv6Addr> {
        self.array::<16>().map(Ipv6Addr::from)
    }

    /// Takes all unread octets.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Whether everything has been read.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_are_read_in_order_and_what_is_cut_off_stays() {
        let mut reader = Reader::new(&[1, 2, 3, 4, 5, 6, 7, 10, 0, 0, 1, 9, 8]);
        assert_eq!(
            (reader.u8(), reader.u16(), reader.u32()),
            (Some(1), Some(0x203), Some(0x0405_0607))
        );
        assert_eq!(reader.ipv4(), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!((reader.u32(), reader.ipv6(), reader.take(3)), (None, None, None));
        assert_eq!((reader.rest(), reader.is_empty()), (&[9, 8][..], false));
        assert_eq!(
            (reader.take(2), reader.is_empty(), reader.u8()),
            (Some(&[9, 8][..]), true, None)
        );
    }
}
