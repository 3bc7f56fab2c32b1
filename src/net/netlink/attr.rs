//! Reads netlink attributes leniently: unknown ones are skipped, and a truncated one ends the list.
//! A newer kernel never causes an error.
//!
//! [`Attributes`] writes them: numbers in the machine's byte order or the network's, nests, C
//! structs.

use std::net::IpAddr;

use rtnetlink::packet_core::{NLA_F_NESTED, NLA_TYPE_MASK};

/// A list of attributes.
#[derive(Clone, Copy, Debug)]
pub struct Attrs<'a>(&'a [u8]);

impl<'a> Attrs<'a> {
    /// The attributes in these bytes.
    pub fn of(bytes: &'a [u8]) -> Attrs<'a> {
        Attrs(bytes)
    }

    /// The attributes that follow a message's own header of `length` bytes.
    pub fn after(payload: &'a [u8], length: usize) -> Attrs<'a> {
        Attrs(payload.get(length..).unwrap_or_default())
    }

    /// Every attribute, by type.
    pub fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        self.iter_marked().map(|(kind, _, value)| (kind, value))
    }

    /// Every attribute, with whether it is marked as containing others.
    fn iter_marked(self) -> impl Iterator<Item = (u16, bool, &'a [u8])> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let length = read_u16(rest, 0)? as usize;
            let kind = read_u16(rest, 2)?;
            let value = rest.get(4..length)?;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            Some((kind & NLA_TYPE_MASK, kind & NLA_F_NESTED != 0, value))
        })
    }

    /// The bytes of the first attribute of this type.
    pub fn bytes(self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find(|(found, _)| *found == kind).map(|(_, value)| value)
    }

    /// The attributes nested in the first one of this type.
    pub fn nested(self, kind: u16) -> Option<Attrs<'a>> {
        self.bytes(kind).map(Attrs)
    }

    /// The attributes nested in the first one of this type; empty if there is none.
    pub fn within(self, kind: u16) -> Attrs<'a> {
        Attrs(self.bytes(kind).unwrap_or_default())
    }

    /// Whether `other` has all of these attributes with equal values, or with values that `is_same`
    /// accepts. The content of those marked as nested is compared attribute by attribute.
    pub fn is_within(self, other: Attrs<'_>, is_same: fn(&[u8], &[u8]) -> bool) -> bool {
        self.iter_marked().all(|(kind, is_nested, value)| match (other.bytes(kind), is_nested) {
            (None, _) => false,
            (Some(found), true) => Attrs(value).is_within(Attrs(found), is_same),
            (Some(found), false) => found == value || is_same(value, found),
        })
    }

    /// A number in the machine's byte order.
    pub fn u32(self, kind: u16) -> Option<u32> {
        read_u32(self.bytes(kind)?, 0)
    }

    /// A long number in the machine's byte order.
    pub fn u64(self, kind: u16) -> Option<u64> {
        read_u64(self.bytes(kind)?, 0)
    }

    /// A number in the machine's byte order.
    pub fn u16(self, kind: u16) -> Option<u16> {
        read_u16(self.bytes(kind)?, 0)
    }

    /// One byte.
    pub fn u8(self, kind: u16) -> Option<u8> {
        self.bytes(kind)?.first().copied()
    }

    /// A number in network byte order, as in all of nf_tables.
    pub fn be32(self, kind: u16) -> Option<u32> {
        self.u32(kind).map(u32::from_be)
    }

    /// A long number in network byte order.
    pub fn be64(self, kind: u16) -> Option<u64> {
        self.u64(kind).map(u64::from_be)
    }

    /// Text, without the NUL at its end.
    pub fn text(self, kind: u16) -> Option<String> {
        self.bytes(kind).map(read_text)
    }

    /// Whether the first attribute of this type has this text.
    pub fn is_text(self, kind: u16, wanted: &str) -> bool {
        self.text(kind).is_some_and(|found| found == wanted)
    }

    /// The texts of all attributes of this type.
    pub fn texts(self, kind: u16) -> Vec<String> {
        self.iter().filter(|(found, _)| *found == kind).map(|(_, value)| read_text(value)).collect()
    }

    /// An address; its length decides the family.
    pub fn ip(self, kind: u16) -> Option<IpAddr> {
        read_ip(self.bytes(kind)?)
    }
}

/// The text in these bytes, up to the first NUL.
pub fn read_text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The address in these bytes, whose number decides the family.
pub fn read_ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The number at `offset`, if the bytes reach that far.
pub fn read_u16(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

/// The number at `offset`, if the bytes reach that far.
pub fn read_u32(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

/// The number at `offset`, if the bytes reach that far.
pub fn read_u64(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
}

/// The bytes of an address, as in attributes, packets and keys of sets.
pub fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Attributes under construction.
#[derive(Clone, Debug, Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// The bytes written so far.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// An attribute of raw bytes.
    pub fn raw(&mut self, kind: u16, value: &[u8]) -> &mut Attributes {
        self.0.extend(header(value.len() + 4, kind));
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// A number in the machine's byte order, as in all of rtnetlink.
    pub fn u32(&mut self, kind: u16, value: u32) -> &mut Attributes {
        self.raw(kind, &value.to_ne_bytes())
    }

    /// A long number in the machine's byte order.
    pub fn u64(&mut self, kind: u16, value: u64) -> &mut Attributes {
        self.raw(kind, &value.to_ne_bytes())
    }

    /// A number in network byte order, as in all of nf_tables.
    pub fn be32(&mut self, kind: u16, value: u32) -> &mut Attributes {
        self.raw(kind, &value.to_be_bytes())
    }

    /// A long number in network byte order.
    pub fn be64(&mut self, kind: u16, value: u64) -> &mut Attributes {
        self.raw(kind, &value.to_be_bytes())
    }

    /// A C struct of words in the machine's byte order.
    pub fn words(&mut self, kind: u16, words: &[u32]) -> &mut Attributes {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.raw(kind, &bytes)
    }

    /// Text, with the NUL at its end.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Attributes {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.raw(kind, &bytes)
    }

    /// An attribute that contains these attributes, which are serialized already.
    pub fn nested(&mut self, kind: u16, attributes: &[u8]) -> &mut Attributes {
        self.raw(kind | NLA_F_NESTED, attributes)
    }

    /// An attribute that contains the attributes that `fill` adds.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes)) -> &mut Attributes {
        let start = self.0.len();
        self.0.extend([0; 4]);
        fill(self);
        let header = header(self.0.len() - start, kind | NLA_F_NESTED);
        self.0[start..start + 4].copy_from_slice(&header);
        self
    }
}

/// The header of an attribute (struct nlattr).
fn header(length: usize, kind: u16) -> [u8; 4] {
    let [a, b] = (length as u16).to_ne_bytes();
    let [c, d] = kind.to_ne_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_walked_and_a_torn_one_ends_the_walk() {
        let bytes = [7, 0, 3, 0x80, b'a', b'b', 0, 0, 8, 0, 4, 0, 1, 0, 0, 0, 99, 0, 5, 0, 1];
        let attrs = Attrs::of(&bytes);
        assert_eq!(attrs.text(3).as_deref(), Some("ab"));
        assert_eq!(attrs.u32(4), Some(u32::from_ne_bytes([1, 0, 0, 0])));
        assert_eq!((attrs.bytes(5), attrs.iter().count()), (None, 2));
        assert_eq!(Attrs::of(&[0, 0, 0, 0]).iter().count(), 0);
    }
}
