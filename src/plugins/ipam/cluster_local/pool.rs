//! A pool: the addresses of one range set that may be allocated, and the blocks that they lie in.
//!
//! Gateways and exclusions are left out, so a block without any allocatable address is no block of
//! the pool.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::block::{Block, shortest};
use crate::family::{Family, address, number, width};
use crate::steps::allocation::ranges::{Range, RangeSet};

/// With automatic size, the most addresses of a set whose blocks have one: each free address can then
/// be borrowed.
const MOST_OF_ONE: u128 = 1 << 12;
/// With automatic size, the most addresses of a set whose blocks have eight, which are a /14.
const MOST_OF_EIGHT: u128 = 1 << 18;

/// `blockSize` of a configuration: how many addresses a block has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockSize {
    /// The more addresses the set has, the more a block has.
    #[default]
    Auto,
    /// 1.
    One,
    /// 8.
    Eight,
    /// 64.
    Chunk,
}

impl BlockSize {
    /// The prefix length of the blocks of a set with so many addresses.
    fn length(self, family: Family, addresses: u128) -> u8 {
        let bits = match self {
            BlockSize::One => 0,
            BlockSize::Eight => 3,
            BlockSize::Auto if family == Family::V4 && addresses <= MOST_OF_ONE => 0,
            BlockSize::Auto if family == Family::V4 && addresses <= MOST_OF_EIGHT => 3,
            BlockSize::Auto | BlockSize::Chunk => width(family) - shortest(family),
        };
        width(family) - bits
    }
}

/// Addresses from `first` to `last`, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    first: IpAddr,
    last: IpAddr,
}

impl Span {
    /// A span; None if the addresses are of two families or in the wrong order.
    pub fn new(first: IpAddr, last: IpAddr) -> Option<Span> {
        let is_one = Family::of(first) == Family::of(last) && first <= last;
        is_one.then_some(Span { first, last })
    }

    /// The addresses of a prefix.
    pub fn of_prefix(prefix: IpNet) -> Span {
        Span { first: prefix.network(), last: prefix.broadcast() }
    }

    /// The family.
    pub fn family(self) -> Family {
        Family::of(self.first)
    }

    /// The first address, as a number.
    pub fn start(self) -> u128 {
        number(self.first)
    }

    /// The last address, as a number.
    pub fn end(self) -> u128 {
        number(self.last)
    }

    /// The first address.
    pub fn first(self) -> IpAddr {
        self.first
    }

    /// The last address.
    pub fn last(self) -> IpAddr {
        self.last
    }

    /// The span without its first and its last address; None if nothing is left.
    pub fn without_ends(self) -> Option<Span> {
        self.clipped(self.start().checked_add(1)?, self.end().checked_sub(1)?)
    }

    /// Whether the address is in the span.
    pub fn contains(self, ip: IpAddr) -> bool {
        (self.first..=self.last).contains(&ip)
    }

    /// How many addresses it has; the largest number for more.
    pub fn size(self) -> u128 {
        (self.end() - self.start()).saturating_add(1)
    }

    /// The part of the span from one number to another.
    pub fn clipped(self, first: u128, last: u128) -> Option<Span> {
        let [first, last] = [self.start().max(first), self.end().min(last)];
        let at = |number| address(self.family(), number);
        (first <= last).then(|| Span { first: at(first), last: at(last) })
    }

    /// The part of the span that is in a block.
    pub fn within(self, block: Block) -> Option<Span> {
        let is_of_family = self.family() == block.family();
        is_of_family.then(|| self.clipped(block.start(), block.end())).flatten()
    }

    /// Whether any address is in both.
    pub fn meets(self, block: Block) -> bool {
        self.within(block).is_some()
    }

    /// What is left of the span without another.
    fn without(self, other: Span) -> impl Iterator<Item = Span> {
        let before = || self.clipped(0, other.start().checked_sub(1)?);
        let after = || self.clipped(other.end().checked_add(1)?, u128::MAX);
        let parts = match self.family() == other.family() {
            true => [before(), after()],
            false => [Some(self), None],
        };
        parts.into_iter().flatten()
    }
}

/// `10.88.1.0-10.88.255.254`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

serde_by_text!(Span);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let ends = text.split_once('-');
        let ends = ends.and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        ends.and_then(|(first, last)| Span::new(first, last)).ok_or_else(|| {
            format!("{text:?} is no range of addresses, expected one as in 10.1.0.1-10.1.0.9")
        })
    }
}

/// The allocatable addresses of one range set, and the length of its blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Document")]
pub struct Pool {
    /// The prefix length of blocks.
    length: u8,
    /// At least one, of one family, in ascending order, without any address twice.
    spans: Vec<Span>,
}

/// A pool as files contain it.
#[derive(Deserialize)]
struct Document {
    length: u8,
    spans: Vec<Span>,
}

impl TryFrom<Document> for Pool {
    type Error = &'static str;

    fn try_from(document: Document) -> Result<Pool, &'static str> {
        let Document { length, spans } = document;
        let family = spans.first().ok_or("a pool without addresses")?.family();
        let is_ordered = spans.windows(2).all(|pair| pair[0].end() < pair[1].start());
        if !is_ordered || spans.iter().any(|span| span.family() != family) {
            return Err("the spans of a pool are not in order");
        }
        if !(shortest(family)..=width(family)).contains(&length) {
            return Err("the length of a pool's blocks is out of range");
        }
        Ok(Pool::of(spans, length))
    }
}

impl Pool {
    /// The pool of a range set; None if it has no allocatable address.
    pub fn new(set: &RangeSet, excluded: &[Span], size: BlockSize) -> Option<Pool> {
        let family = set.family()?;
        let span_of = |range: &Range| Span::new(range.start, range.end);
        let mut spans: Vec<Span> = set.ranges().iter().filter_map(span_of).collect();
        // What is excluded does not matter: a chunk that was divided into one size keeps it.
        let addresses = spans.iter().fold(0u128, |sum, span| sum.saturating_add(span.size()));
        let length = size.length(family, addresses);
        let gateways = set.ranges().iter().map(|range| Span::of_prefix(range.gateway.into()));
        for gone in gateways.chain(excluded.iter().copied()) {
            spans = spans.into_iter().flat_map(|span| span.without(gone)).collect();
        }
        spans.sort_unstable();
        (!spans.is_empty()).then(|| Pool::of(spans, length))
    }

    /// The pool of spans in ascending order, at least one and of one family, with blocks of a length.
    pub fn of(spans: Vec<Span>, length: u8) -> Pool {
        Pool { length, spans }
    }

    /// The family of its addresses.
    pub fn family(&self) -> Family {
        self.spans.first().map_or(Family::V4, |span| span.family()) // there is always one
    }

    /// The prefix length of its blocks.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// The allocatable addresses.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Whether the address may be allocated.
    pub fn allocates(&self, ip: IpAddr) -> bool {
        self.spans.iter().any(|span| span.contains(ip))
    }

    /// How many addresses of a block may be allocated.
    pub fn allocatable(&self, block: Block) -> u64 {
        let parts = self.spans.iter().filter_map(|span| span.within(block));
        parts.map(|part| part.size() as u64).sum()
    }

    /// Whether any address of the block may be allocated.
    pub fn meets(&self, block: Block) -> bool {
        self.spans.iter().any(|span| span.meets(block))
    }

    /// Whether any address is in both.
    pub fn overlaps(&self, other: &Pool) -> bool {
        let meets = |one: &Span, of: &Span| one.first <= of.last && of.first <= one.last;
        self.spans.iter().any(|span| other.spans.iter().any(|of| meets(span, of)))
    }

    /// How many blocks there are; the largest number for more.
    pub fn count(&self) -> u128 {
        let counts = self.numbers().map(|(first, last)| (last - first).saturating_add(1));
        counts.fold(0, u128::saturating_add)
    }

    /// The block at this place of the order of addresses, counted from 0.
    pub fn block(&self, place: u128) -> Option<Block> {
        let mut left = place;
        for (first, last) in self.numbers() {
            if left <= last - first {
                let start = (first + left) << self.shift();
                return Some(Block::at(self.family(), start, self.length));
            }
            left -= last - first + 1;
        }
        None
    }

    /// The numbers of candidate blocks, from a first to a last, each once: a block's number is the part of
    /// its address that the block shares.
    fn numbers(&self) -> impl Iterator<Item = (u128, u128)> {
        let (shift, mut next) = (self.shift(), 0);
        self.spans.iter().filter_map(move |span| {
            let (first, last) = (next.max(span.start() >> shift), span.end() >> shift);
            next = last.saturating_add(1);
            (first <= last).then_some((first, last))
        })
    }

    /// How many bits of an address differ within a block: at most six.
    fn shift(&self) -> u8 {
        width(self.family()) - self.length
    }

    /// The block of the pool's own length that contains the address, if any of it is allocatable.
    pub fn block_of(&self, ip: IpAddr) -> Option<Block> {
        let block = Block::around(ip, self.length).filter(|block| block.family() == self.family());
        block.filter(|block| self.meets(*block))
    }
}

/// The addresses of these spans, in the order of a round robin that continues after `last`.
pub fn candidates(spans: &[Span], last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> + use<> {
    let next = last.and_then(|last| number(last).checked_add(1)).unwrap_or(0);
    let after = spans.iter().filter_map(|span| span.clipped(next, u128::MAX));
    let end = next.checked_sub(1);
    let before = spans.iter().filter_map(|span| span.clipped(0, end?));
    let turned: Vec<Span> = after.chain(before).collect();
    let addresses =
        |span: Span| (span.start()..=span.end()).map(move |number| address(span.family(), number));
    turned.into_iter().flat_map(addresses)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::steps::allocation::ranges::RangeConf;

    fn set(subnets: &[&str]) -> RangeSet {
        let conf =
            |subnet: &&str| RangeConf { subnet: subnet.parse().ok(), ..RangeConf::default() };
        let confs: Vec<RangeConf> = subnets.iter().map(conf).collect();
        RangeSet::new(&confs, "ipam.ranges[0]").unwrap()
    }

    fn pool(subnets: &[&str], excluded: &[&str]) -> Pool {
        let excluded: Vec<Span> =
            excluded.iter().map(|text| Span::of_prefix(text.parse().unwrap())).collect();
        Pool::new(&set(subnets), &excluded, BlockSize::Auto).unwrap()
    }

    #[test]
    fn the_size_of_blocks_is_chosen_or_follows_the_size_of_the_set() {
        for (subnets, size, length) in [
            (&["10.88.0.0/28"][..], BlockSize::Auto, 32),
            (&["10.88.0.0/20"], BlockSize::Auto, 32),
            (&["10.88.0.0/21", "10.89.0.0/21"], BlockSize::Auto, 32),
            (&["10.88.0.0/20", "10.89.0.0/28"], BlockSize::Auto, 29),
            (&["10.88.0.0/16"], BlockSize::Auto, 29),
            (&["10.88.0.0/14"], BlockSize::Auto, 29),
            (&["10.80.0.0/13"], BlockSize::Auto, 26),
            (&["fd00:88::/120"], BlockSize::Auto, 122),
            (&["fd00:88::/64"], BlockSize::Auto, 122),
            (&["10.0.0.0/8"], BlockSize::One, 32),
            (&["10.88.0.0/28"], BlockSize::Eight, 29),
            (&["10.88.0.0/28"], BlockSize::Chunk, 26),
            (&["fd00:88::/64"], BlockSize::One, 128),
            (&["fd00:88::/64"], BlockSize::Eight, 125),
        ] {
            let pool = Pool::new(&set(subnets), &[], size).unwrap();
            assert_eq!(pool.length(), length, "{subnets:?} {size:?}");
        }
        let most = Span::of_prefix("10.88.128.0/17".parse().unwrap());
        let excluded = Pool::new(&set(&["10.88.0.0/16"]), &[most], BlockSize::Auto).unwrap();
        assert_eq!(excluded.length(), 29, "an exclusion changes no size");
    }

    #[test]
    fn gateways_and_exclusions_are_not_allocated() {
        let pool = pool(&["10.88.0.0/24"], &["10.88.0.8/29", "10.88.0.252/30"]);
        let spans: Vec<String> = pool.spans().iter().map(Span::to_string).collect();
        assert_eq!(spans, ["10.88.0.2-10.88.0.7", "10.88.0.16-10.88.0.251"]);
        for (ip, may) in
            [("10.88.0.1", false), ("10.88.0.7", true), ("10.88.0.9", false), ("10.88.0.16", true)]
        {
            assert_eq!(pool.allocates(ip.parse().unwrap()), may, "{ip}");
        }
    }

    #[test]
    fn blocks_without_an_allocatable_address_are_none() {
        let excluded = Span::of_prefix("10.88.0.8/29".parse().unwrap());
        let pool = Pool::new(&set(&["10.88.0.0/24"]), &[excluded], BlockSize::Eight).unwrap();
        let blocks: Vec<Block> =
            (0..pool.count()).map(|place| pool.block(place).unwrap()).collect();
        assert_eq!(blocks.len(), 31, "of 32, one is excluded");
        assert_eq!(pool.block(pool.count()), None);
        assert!(blocks.iter().all(|block| pool.meets(*block) && block.length() == 29));
        assert!(blocks.windows(2).all(|pair| pair[0] < pair[1]), "each once, in order");
        assert_eq!(blocks[0].first(), "10.88.0.0".parse::<IpAddr>().unwrap());
        assert_eq!((pool.allocatable(blocks[0]), pool.allocatable(blocks[1])), (6, 8));
        assert_eq!(blocks[1].first(), "10.88.0.16".parse::<IpAddr>().unwrap());
        assert_eq!(pool.block_of("10.88.0.9".parse().unwrap()), None);
        assert_eq!(pool.block_of("10.88.0.17".parse().unwrap()), Some(blocks[1]));
        assert_eq!(pool.block_of("fd00::1".parse().unwrap()), None);
    }

    #[test]
    fn the_round_robin_continues_after_the_last_address() {
        let spans = ["10.1.0.2-10.1.0.4", "10.1.0.8-10.1.0.9"].map(|text| text.parse().unwrap());
        for (last, order) in [
            (None, [2, 3, 4, 8, 9]),
            (Some("10.1.0.2"), [3, 4, 8, 9, 2]),
            (Some("10.1.0.4"), [8, 9, 2, 3, 4]),
            (Some("10.1.0.6"), [8, 9, 2, 3, 4]),
            (Some("10.1.0.9"), [2, 3, 4, 8, 9]),
        ] {
            let last = last.map(|last: &str| last.parse().unwrap());
            let found: Vec<String> = candidates(&spans, last).map(|ip| ip.to_string()).collect();
            assert_eq!(found, order.map(|number| format!("10.1.0.{number}")), "{last:?}");
        }
    }

    #[test]
    fn parts_of_a_span() {
        let span: Span = "10.88.0.2-10.88.0.20".parse().unwrap();
        let block = |text: &str| span.within(text.parse().unwrap()).map(|part| part.to_string());
        for (text, part) in [
            ("4-0a580000-29", Some("10.88.0.2-10.88.0.7")),
            ("4-0a580010-29", Some("10.88.0.16-10.88.0.20")),
            ("4-0a580000-26", Some("10.88.0.2-10.88.0.20")),
            ("4-0a580018-29", None),
            ("6-0000000000000000000000000a580000-122", None),
        ] {
            assert_eq!(block(text).as_deref(), part, "{text}");
        }
        for (gone, left) in [
            ("10.88.0.0-10.88.0.1", "10.88.0.2-10.88.0.20"),
            ("10.88.0.0-10.88.0.5", "10.88.0.6-10.88.0.20"),
            ("10.88.0.4-10.88.0.4", "10.88.0.2-10.88.0.3 10.88.0.5-10.88.0.20"),
            ("10.88.0.20-10.88.0.30", "10.88.0.2-10.88.0.19"),
            ("0.0.0.0-255.255.255.255", ""),
            ("::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "10.88.0.2-10.88.0.20"),
        ] {
            let parts: Vec<String> =
                span.without(gone.parse().unwrap()).map(|part| part.to_string()).collect();
            assert_eq!(parts.join(" "), left, "{gone}");
        }
    }

    #[test]
    fn a_pool_of_which_all_is_excluded_is_none() {
        let all = Span::of_prefix("10.88.0.0/16".parse().unwrap());
        assert_eq!(Pool::new(&set(&["10.88.0.0/24"]), &[all], BlockSize::Auto), None);
    }

    #[test]
    fn the_blocks_of_an_ipv6_subnet_are_counted_not_listed() {
        let pool = pool(&["fd00:88::/64"], &[]);
        assert_eq!(pool.count(), 1 << 58);
        let last = pool.block(pool.count() - 1).unwrap();
        assert_eq!(last.last(), "fd00:88::ffff:ffff:ffff:ffff".parse::<IpAddr>().unwrap());
        assert_eq!(pool.allocatable(last), 64);
    }

    #[test]
    fn a_pool_comes_back_from_a_file_and_a_wrong_one_does_not() {
        let pool = pool(&["10.88.0.0/24"], &["10.88.0.8/29"]);
        let text = serde_json::to_string(&pool).unwrap();
        assert_eq!(
            text,
            r#"{"length":32,"spans":["10.88.0.2-10.88.0.7","10.88.0.16-10.88.0.254"]}"#
        );
        assert_eq!(serde_json::from_str::<Pool>(&text).unwrap(), pool);
        for (text, reason) in [
            (r#"{"length":25,"spans":["10.0.0.1-10.0.0.2"]}"#, "the length of a pool's blocks"),
            (r#"{"length":29,"spans":[]}"#, "a pool without addresses"),
            (r#"{"length":33,"spans":["10.0.0.1-10.0.0.2"]}"#, "the length of a pool's blocks"),
            (r#"{"length":29,"spans":["10.0.0.5-10.0.0.6","10.0.0.1-10.0.0.2"]}"#, "not in order"),
            (r#"{"length":29,"spans":["10.0.0.5-10.0.0.1"]}"#, "is no range of addresses"),
            (r#"{"length":29,"spans":["10.0.0.5-fd00::1"]}"#, "is no range of addresses"),
        ] {
            let refused = serde_json::from_str::<Pool>(text).unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
    }
}
