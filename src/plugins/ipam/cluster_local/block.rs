//! A block: the addresses of one prefix, which a node borrows as a whole.
//!
//! Its text is the last part of its key in the cluster's store. The address has a fixed width, so
//! that the keys of all blocks inside a block are one range of keys.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::family::Family;

/// Addresses that share their first `length` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Block {
    /// Whether it is of IPv6: IPv4 comes first in the order.
    is_v6: bool,
    network: u128,
    length: u8,
}

impl Block {
    /// The block of this length that contains the address; None if the family has no such length.
    pub fn around(ip: IpAddr, length: u8) -> Option<Block> {
        let family = Family::of(ip);
        if length > width(family) { None } else { Some(Block::at(family, number(ip), length)) }
    }

    /// The block of a valid length around an address, as a number.
    pub fn at(family: Family, number: u128, length: u8) -> Block {
        let length = length.min(width(family));
        let network = number & !host_bits(width(family) - length);
        Block { is_v6: family == Family::V6, network, length }
    }

    /// The family of its addresses.
    pub fn family(self) -> Family {
        if self.is_v6 { Family::V6 } else { Family::V4 }
    }

    /// How many bits its addresses share.
    pub fn length(self) -> u8 {
        self.length
    }

    /// The first address, as a number.
    pub fn start(self) -> u128 {
        self.network
    }

    /// The last address, as a number.
    pub fn end(self) -> u128 {
        self.network | host_bits(width(self.family()) - self.length)
    }

    /// The first address.
    pub fn first(self) -> IpAddr {
        address(self.family(), self.start())
    }

    /// The last address.
    pub fn last(self) -> IpAddr {
        address(self.family(), self.end())
    }

    /// How many addresses it has; the largest number for more.
    pub fn size(self) -> u64 {
        let after_first = u64::try_from(self.end() - self.start());
        after_first.map_or(u64::MAX, |count| count.saturating_add(1))
    }

    /// The prefix.
    pub fn prefix(self) -> IpNet {
        IpNet::new(self.first(), self.length).unwrap_or_else(|_| self.first().into()) // the length is of the family
    }

    /// Whether the address is in the block.
    pub fn contains(self, ip: IpAddr) -> bool {
        Family::of(ip) == self.family() && (self.start()..=self.end()).contains(&number(ip))
    }

    /// Whether all addresses of the other block are in this one.
    pub fn covers(self, other: Block) -> bool {
        self.is_v6 == other.is_v6 && self.start() <= other.start() && other.end() <= self.end()
    }

    /// Whether any address is in both blocks.
    pub fn overlaps(self, other: Block) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// The two blocks that it consists of; None of a single address.
    pub fn halves(self) -> Option<[Block; 2]> {
        let length = self.length + 1;
        let halves = || [self.start(), self.end()].map(|at| Block::at(self.family(), at, length));
        (length <= width(self.family())).then(halves)
    }

    /// The block of twice the size that it is a half of; None of the largest block that there is.
    pub fn parent(self) -> Option<Block> {
        let length = self.length.checked_sub(1).filter(|length| *length >= shortest(self.family()));
        length.map(|length| Block::at(self.family(), self.network, length))
    }

    /// Every larger block that contains it, the smallest first.
    pub fn ancestors(self) -> impl Iterator<Item = Block> {
        std::iter::successors(self.parent(), |block| block.parent())
    }
}

/// The bits of an address.
pub fn width(family: Family) -> u8 {
    match family {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}

/// The length of the largest block. A claim compares each ancestor, and etcd's default for a
/// transaction is at most 128 comparisons.
pub fn shortest(family: Family) -> u8 {
    match family {
        Family::V4 => 8,
        Family::V6 => 64,
    }
}

/// A number whose last `count` bits are ones.
fn host_bits(count: u8) -> u128 {
    match count {
        0 => 0,
        _ => u128::MAX >> (128 - u32::from(count)),
    }
}

/// An address as a number.
pub fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// The address of a number that came from one of this family.
pub fn address(family: Family, number: u128) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from(number as u32).into(),
        Family::V6 => Ipv6Addr::from(number).into(),
    }
}

/// `4-0a580100-26`, or `6-` and 32 digits and `-122`.
impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family() {
            Family::V4 => write!(f, "4-{:08x}-{:02}", self.network, self.length),
            Family::V6 => write!(f, "6-{:032x}-{:03}", self.network, self.length),
        }
    }
}

/// Why a text is no block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoBlock(String);

impl fmt::Display for NoBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a block, expected one as in 4-0a580100-26", self.0)
    }
}

impl FromStr for Block {
    type Err = NoBlock;

    /// Reads the one text that the block is printed as, and no other.
    fn from_str(text: &str) -> Result<Block, NoBlock> {
        let parsed = parse(text).filter(|block| block.to_string() == text);
        parsed.ok_or_else(|| NoBlock(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Block> {
    let mut parts = text.split('-');
    let family = match parts.next()? {
        "4" => Family::V4,
        "6" => Family::V6,
        _ => return None,
    };
    let network = u128::from_str_radix(parts.next()?, 16).ok()?;
    let length = parts.next()?.parse().ok()?;
    let is_possible = length >= shortest(family) && length <= width(family);
    is_possible.then(|| Block::at(family, network, length))
}

impl TryFrom<String> for Block {
    type Error = NoBlock;

    fn try_from(text: String) -> Result<Block, NoBlock> {
        text.parse()
    }
}

impl From<Block> for String {
    fn from(block: Block) -> String {
        block.to_string()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn block(text: &str) -> Block {
        text.parse().unwrap()
    }

    #[test]
    fn a_block_is_read_from_the_text_that_it_is_printed_as() {
        let around = Block::around("10.88.1.77".parse().unwrap(), 26).unwrap();
        assert_eq!(around.to_string(), "4-0a580140-26");
        assert_eq!(block("4-0a580140-26"), around);
        assert_eq!(
            (around.first(), around.last()),
            ("10.88.1.64".parse().unwrap(), "10.88.1.127".parse().unwrap())
        );
        assert_eq!((around.size(), around.prefix().to_string()), (64, "10.88.1.64/26".to_owned()));
        let v6 = Block::around("fd00:88::1:5".parse().unwrap(), 122).unwrap();
        assert_eq!(v6.to_string(), "6-fd000088000000000000000000010000-122");
        assert_eq!(v6.to_string().parse(), Ok(v6));
        assert_eq!(block("6-fd000088000000000000000000000000-064").size(), u64::MAX);
    }

    #[test]
    fn other_texts_are_no_blocks() {
        for text in [
            "",
            "4",
            "4-0a580100",
            "4-0a580100-33",
            "4-0a580101-26",
            "4-0A580100-26",
            "4-a580100-26",
            "4-0a580100-26-1",
            "4-0a580100-026",
            "5-0a580100-26",
            "6-0a580100-122",
            "4-00000000-00",
            "4-+a580100-26",
        ] {
            let refused = text.parse::<Block>().unwrap_err().to_string();
            assert_eq!(
                refused,
                format!("{text:?} is not a block, expected one as in 4-0a580100-26")
            );
        }
    }

    #[test]
    fn blocks_inside_each_other_overlap_and_neighbours_do_not() {
        let (outer, inner) = (block("4-0a580100-24"), block("4-0a580140-26"));
        assert!(outer.covers(inner) && !inner.covers(outer));
        assert!(outer.overlaps(inner) && inner.overlaps(outer));
        assert!(!inner.overlaps(block("4-0a580180-26")));
        assert!(!inner.overlaps(Block::at(Family::V6, inner.start(), 122)), "another family");
        assert!(inner.contains("10.88.1.64".parse().unwrap()));
        assert!(!inner.contains("10.88.1.128".parse().unwrap()));
        assert!(!inner.contains("::a58:140".parse().unwrap()), "another family");
    }

    #[test]
    fn halves_are_the_whole_and_ancestors_contain_it() {
        let whole = block("4-0a580140-26");
        assert_eq!(whole.halves(), Some([block("4-0a580140-27"), block("4-0a580160-27")]));
        assert_eq!(block("4-0a580140-32").halves(), None);
        let ancestors: Vec<Block> = whole.ancestors().collect();
        assert_eq!(ancestors.first(), Some(&block("4-0a580100-25")));
        assert_eq!(ancestors.last(), Some(&block("4-0a000000-08")));
        assert!(ancestors.iter().all(|ancestor| ancestor.covers(whole)));
        let single = Block::around("fd00::1".parse().unwrap(), 128).unwrap();
        assert_eq!(single.ancestors().count(), 64, "what etcd's limit of 128 has room for");
    }

    #[test]
    fn keys_of_blocks_inside_are_between_the_keys_of_its_ends() {
        let outer = block("4-0a580100-24");
        for inner in ["4-0a580100-26", "4-0a5801c0-26", "4-0a5801ff-32"] {
            let first = format!("4-{:08x}", outer.start());
            let after = format!("4-{:08x}", outer.end() + 1);
            assert!(*first <= *inner && *inner < *after, "{inner}");
        }
    }
}
