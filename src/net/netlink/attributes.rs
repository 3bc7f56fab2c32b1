//! Writes netlink attributes: numbers in the machine's byte order or the network's, nests, C
//! structs.

use std::net::IpAddr;

use rtnetlink::packet_core::NLA_F_NESTED;

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
