//! A block: the addresses of one prefix, which a node borrows as a whole.
//!
//! It has 1, 8 or 64 addresses. Its text is the last part of its key in the cluster's store. The
//! address has a fixed width, so that the keys of all blocks inside a block are one range of keys.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use crate::family::Family;
pub use crate::family::{address, number, width};

/// The addresses of the largest block. The first claim in such a block divides it for ever: all blocks
/// in it have one size.
pub const CHUNK: u32 = 64;

/// Addresses that share their first `length` bits. Those of IPv4 come first in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    first: IpAddr,
    length: u8,
}

impl Block {
    /// The block of this length that contains the address; None if no block has this length.
    pub fn around(ip: IpAddr, length: u8) -> Option<Block> {
        let block = Block::at(Family::of(ip), number(ip), length);
        (block.length == length).then_some(block)
    }

    /// The block of the nearest possible length around an address, as a number.
    pub fn at(family: Family, number: u128, length: u8) -> Block {
        let length = length.clamp(shortest(family), width(family));
        let shift = width(family) - length;
        Block { first: address(family, number >> shift << shift), length }
    }

    /// The block of 64 addresses around it.
    pub fn chunk(self) -> Block {
        Block::at(self.family(), self.start(), 0)
    }

    /// The block of eight addresses around it, if it is not larger.
    pub fn eight(self) -> Block {
        Block::at(self.family(), self.start(), self.length.min(width(self.family()) - 3))
    }

    /// The family of its addresses.
    pub fn family(self) -> Family {
        Family::of(self.first)
    }

    /// How many bits its addresses share.
    pub fn length(self) -> u8 {
        self.length
    }

    /// The first address, as a number.
    pub fn start(self) -> u128 {
        number(self.first)
    }

    /// The last address, as a number.
    pub fn end(self) -> u128 {
        self.start() | u128::from(self.size() - 1)
    }

    /// The first address.
    pub fn first(self) -> IpAddr {
        self.first
    }

    /// The last address.
    pub fn last(self) -> IpAddr {
        address(self.family(), self.end())
    }

    /// How many addresses it has.
    pub fn size(self) -> u64 {
        1 << (width(self.family()) - self.length)
    }

    /// The prefix.
    pub fn prefix(self) -> IpNet {
        IpNet::new(self.first, self.length).unwrap_or_else(|_| self.first.into()) // the length is of the family
    }

    /// Whether the address is in the block.
    pub fn contains(self, ip: IpAddr) -> bool {
        (self.first..=self.last()).contains(&ip)
    }

    /// Whether all addresses of the other block are in this one.
    pub fn covers(self, other: Block) -> bool {
        self.contains(other.first) && self.contains(other.last())
    }

    /// Whether any address is in both blocks.
    pub fn overlaps(self, other: Block) -> bool {
        self.covers(other) || other.covers(self)
    }
}

/// The length of a block of 64 addresses.
pub fn shortest(family: Family) -> u8 {
    width(family) - CHUNK.trailing_zeros() as u8
}

/// `4-0a580100-26`, or `6-` and 32 digits and `-122`.
impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family() {
            Family::V4 => write!(f, "4-{:08x}-{:02}", self.start(), self.length),
            Family::V6 => write!(f, "6-{:032x}-{:03}", self.start(), self.length),
        }
    }
}

serde_by_text!(Block);

impl FromStr for Block {
    type Err = String;

    /// Reads the one text that the block is printed as, and no other.
    fn from_str(text: &str) -> Result<Block, String> {
        let parse = || {
            let mut parts = text.split('-');
            let family = match parts.next()? {
                "4" => Family::V4,
                "6" => Family::V6,
                _ => return None,
            };
            let network = u128::from_str_radix(parts.next()?, 16).ok()?;
            Some(Block::at(family, network, parts.next()?.parse().ok()?))
        };
        let block = parse().filter(|block| block.to_string() == text);
        block.ok_or_else(|| format!("{text:?} is not a block, expected one as in 4-0a580100-26"))
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
            "4-10a580100-26",
            "4-a580100-26",
            "4-0a580100-26-1",
            "4-0a580100-026",
            "5-0a580100-26",
            "6-0a580100-122",
            "4-0a580100-25",
            "6-fd000088000000000000000000010000-121",
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
        let (outer, inner) = (block("4-0a580140-26"), block("4-0a580148-29"));
        assert!(outer.covers(inner) && !inner.covers(outer));
        assert!(outer.overlaps(inner) && inner.overlaps(outer));
        assert!(!inner.overlaps(block("4-0a580150-29")));
        assert!(!inner.overlaps(Block::at(Family::V6, inner.start(), 125)), "another family");
        assert!(inner.contains("10.88.1.72".parse().unwrap()));
        assert!(!inner.contains("10.88.1.80".parse().unwrap()));
        assert!(!inner.contains("::a58:148".parse().unwrap()), "another family");
    }

    #[test]
    fn a_chunk_is_the_largest_block() {
        for (inside, chunk) in [
            ("4-0a580140-26", "4-0a580140-26"),
            ("4-0a580178-29", "4-0a580140-26"),
            ("4-0a58017f-32", "4-0a580140-26"),
            ("6-fd00008800000000000000000001007f-128", "6-fd000088000000000000000000010040-122"),
        ] {
            assert_eq!(block(inside).chunk(), block(chunk));
            assert_eq!(block(chunk).size(), u64::from(CHUNK));
        }
        let ip = "10.88.1.77".parse().unwrap();
        for (length, size) in [(25, None), (26, Some(64)), (29, Some(8)), (32, Some(1)), (33, None)]
        {
            assert_eq!(Block::around(ip, length).map(Block::size), size, "{length}");
        }
    }

    #[test]
    fn keys_of_blocks_inside_are_between_the_keys_of_its_ends() {
        let outer = block("4-0a580140-26");
        for inner in ["4-0a580140-26", "4-0a580178-29", "4-0a58017f-32"] {
            let first = format!("4-{:08x}", outer.start());
            let after = format!("4-{:08x}", outer.end() + 1);
            assert!(*first <= *inner && *inner < *after, "{inner}");
        }
    }
}
