//! Reads packets from front to back: octets, numbers in network byte order, addresses, and domain
//! names as text (RFC 2132) or as in DNS messages (RFC 1035, section 4.1.4).

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

/// The longest DNS name.
const LONGEST_NAME: usize = 253;

/// The domain, if it is a valid name: it goes to resolv.conf, where a line break would begin
/// another setting.
pub fn domain(value: &[u8]) -> Option<String> {
    let text = str::from_utf8(value).ok()?.trim_end_matches('\0').trim_end_matches('.');
    let is_name = text.len() <= LONGEST_NAME && text.split('.').all(is_label);
    is_name.then(|| text.to_owned())
}

fn is_label(text: &str) -> bool {
    let is_of_label = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !text.is_empty() && text.bytes().all(is_of_label)
}

/// The search list of RFC 3397: names as in DNS messages, one after the other. `None` if any of
/// them is invalid.
pub fn search(value: &[u8]) -> Option<Vec<String>> {
    let mut at = 0;
    let mut names = vec![];
    while at < value.len() {
        let (name, next) = name(value, at)?;
        names.extend(domain(name.as_bytes()));
        at = next;
    }
    Some(names)
}

/// The name at `at`, and the offset of the next one.
fn name(value: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut next = None;
    let mut before = at;
    loop {
        match *value.get(at)? {
            0 => return Some((name, next.unwrap_or(at + 1))),
            length @ 1..64 => {
                let end = at + usize::from(length);
                let label = str::from_utf8(value.get(at + 1..=end)?).ok()?;
                if !is_label(label) || name.len() + label.len() >= LONGEST_NAME {
                    return None;
                }
                name.push_str(if name.is_empty() { "" } else { "." });
                name.push_str(label);
                at = end + 1;
            }
            64..192 => return None,
            192.. => {
                // A pointer must lead to an earlier offset than the last, so that the loop ends.
                let pointer = value.get(at..)?.first_chunk()?;
                next.get_or_insert(at + 2);
                at = usize::from(u16::from_be_bytes(*pointer) & 0x3fff);
                if at >= before {
                    return None;
                }
                before = at;
            }
        }
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
