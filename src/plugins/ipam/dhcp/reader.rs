//! The octets of a packet, read from front to back; numbers are in network byte order.

use std::net::{Ipv4Addr, Ipv6Addr};

/// What has not been read yet. What is cut off is None.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Nothing of it has been read.
    pub fn new(octets: &'a [u8]) -> Reader<'a> {
        Reader(octets)
    }

    /// So many octets.
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

    /// An octet.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    /// A number of two octets.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// A number of four octets.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// An address of IPv4.
    pub fn ipv4(&mut self) -> Option<Ipv4Addr> {
        self.array::<4>().map(Ipv4Addr::from)
    }

    /// An address of IPv6.
    pub fn ipv6(&mut self) -> Option<Ipv6Addr> {
        self.array::<16>().map(Ipv6Addr::from)
    }

    /// All that has not been read.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Whether all has been read.
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
