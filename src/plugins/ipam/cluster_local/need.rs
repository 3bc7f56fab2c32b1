//! What an ADD needs, and what of it the network's own blocks do not have.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

use super::conf::Conf;
use super::held::{Blocks, Held};
use super::pool::{Pool, Span, candidates};
use crate::cni::attachment::NetworkName;
use crate::deadline::Deadline;
use crate::steps::allocation::Owner;
use crate::steps::allocation::files::Place;
use crate::steps::allocation::ranges::RangeSet;

/// What an ADD allocates, for whom, and where.
pub struct Wish<'a> {
    /// The parent of the networks' directories.
    pub data_dir: &'a Path,
    /// The network's place.
    pub place: &'a Place,
    /// The network.
    pub network: &'a NetworkName,
    /// Its configuration.
    pub conf: &'a Conf,
    /// The attachment.
    pub owner: &'a Owner,
    /// Its name for each set, if it keeps its addresses.
    pub names: Vec<String>,
    /// The operation's deadline.
    pub deadline: Deadline,
}

/// What is lacking for a range set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// A free address.
    Any,
    /// This address.
    Address(IpAddr),
    /// The address of this name.
    Name(String),
}

impl Wish<'_> {
    /// The range sets, with their numbers.
    pub fn sets(&self) -> impl Iterator<Item = (usize, &RangeSet)> {
        self.conf.sets.iter().enumerate()
    }

    /// The address of the set that the runtime or the user requests.
    pub fn requested(&self, set: &RangeSet) -> Option<IpAddr> {
        self.conf.requested.iter().copied().find(|ip| set.contains(*ip))
    }

    /// The name, if it has the address of the set with this number.
    pub fn name_in(&self, number: usize) -> Option<&str> {
        let set = self.conf.sets.get(number)?;
        self.names.get(number).map(String::as_str).filter(|_| self.requested(set).is_none())
    }

    /// The pool whose addresses are for names, or for any attachment, that has the address.
    pub fn pool_of(&self, ip: IpAddr) -> Option<&Pool> {
        let terms = &self.conf.terms;
        terms.pools.iter().chain(&terms.names).find(|pool| pool.allocates(ip))
    }

    /// What the blocks lack for the set with this number.
    pub fn lack(&self, number: usize, own: &Blocks, taken: &HashSet<IpAddr>) -> Option<Lack> {
        let set = self.conf.sets.get(number)?;
        if let Some(ip) = self.requested(set) {
            let may_have = self.pool_of(ip).is_some() && !own.has(ip);
            return may_have.then_some(Lack::Address(ip));
        }
        if let Some(name) = self.names.get(number) {
            let is_lacking = held_for(own, name, set).is_none();
            return is_lacking.then(|| Lack::Name(name.clone()));
        }
        let pool = self.conf.terms.pools.get(number)?;
        free(own, pool.spans(), taken, None).is_empty().then_some(Lack::Any)
    }
}

/// The block of a name in the set.
pub fn held_for<'b>(own: &'b Blocks, name: &str, set: &RangeSet) -> Option<&'b Held> {
    let is_of_name = |held: &&Held| held.name.as_deref() == Some(name);
    own.usable().filter(is_of_name).find(|held| set.contains(held.block.first()))
}

/// The free addresses of these spans that any attachment may get: those of the block with the most
/// leases first, so that other blocks become free; of equal ones in the order of a round robin that
/// continues after `last`.
pub fn free(
    own: &Blocks,
    spans: &[Span],
    taken: &HashSet<IpAddr>,
    last: Option<IpAddr>,
) -> Vec<IpAddr> {
    let mut blocks: Vec<(Reverse<u128>, bool, Vec<IpAddr>)> = vec![];
    for held in own.usable().filter(|held| held.name.is_none()) {
        let parts: Vec<Span> = spans.iter().filter_map(|span| span.within(held.block)).collect();
        let all: u128 = parts.iter().map(|part| part.size()).sum();
        let free: Vec<IpAddr> = candidates(&parts, last).filter(|ip| !taken.contains(ip)).collect();
        if let Some(first) = free.first() {
            let is_before = last.is_some_and(|last| *first <= last);
            blocks.push((Reverse(all - free.len() as u128), is_before, free));
        }
    }
    blocks.sort_unstable();
    blocks.into_iter().flat_map(|(_, _, free)| free).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::held::State;
    use super::super::store::Token;
    use super::*;

    fn held(block: &str, change: fn(&mut Held)) -> Held {
        let block = block.parse().unwrap();
        let (token, state) = (Token(1), State::Active);
        let mut held = Held { block, token, state, since: 0, contested: false, name: None };
        change(&mut held);
        held
    }

    fn order(blocks: Vec<Held>, spans: &[&str], taken: &[u8], last: Option<u8>) -> Vec<u8> {
        let ip = |last: u8| IpAddr::from([10, 1, 0, last]);
        let own = Blocks { blocks, ..Blocks::new("default".parse().unwrap(), vec![], 1) };
        let spans: Vec<Span> = spans.iter().map(|span| span.parse().unwrap()).collect();
        let taken = taken.iter().map(|last| ip(*last)).collect();
        let last_octet = |ip| match ip {
            IpAddr::V4(ip) => u32::from(ip) as u8,
            IpAddr::V6(_) => 0,
        };
        free(&own, &spans, &taken, last.map(ip)).into_iter().map(last_octet).collect()
    }

    #[test]
    fn the_fullest_block_comes_first_and_then_the_round_robin() {
        // 10.1.0.0/29, /29 and /29, without the first two and the last addresses.
        let blocks = ["4-0a010000-29", "4-0a010008-29", "4-0a010010-29"];
        let spans = ["10.1.0.5-10.1.0.10", "10.1.0.18-10.1.0.19"];
        for (taken, last, expected) in [
            (&[][..], None, &[5, 6, 7, 8, 9, 10, 18, 19][..]),
            (&[9], None, &[8, 10, 5, 6, 7, 18, 19]),
            (&[9, 18], None, &[8, 10, 19, 5, 6, 7]),
            (&[5, 7, 9], Some(18), &[6, 8, 10, 19, 18]),
            (&[], Some(6), &[7, 5, 6, 8, 9, 10, 18, 19]),
            (&[], Some(9), &[10, 8, 9, 18, 19, 5, 6, 7]),
            (&[], Some(19), &[5, 6, 7, 8, 9, 10, 18, 19]),
            (&[5, 6, 7, 8, 9, 10], Some(10), &[18, 19]),
        ] {
            let blocks = blocks.map(|block| held(block, |_| ())).to_vec();
            assert_eq!(order(blocks, &spans, taken, last), expected, "{taken:?} {last:?}");
        }
    }

    #[test]
    fn single_addresses_take_turns() {
        let blocks = || ["4-0a010004-32", "4-0a010002-32", "4-0a010003-32"];
        for (last, expected) in [(None, [2, 3, 4]), (Some(2), [3, 4, 2]), (Some(4), [2, 3, 4])] {
            let blocks = blocks().map(|block| held(block, |_| ())).to_vec();
            assert_eq!(order(blocks, &["10.1.0.2-10.1.0.9"], &[], last), expected, "{last:?}");
        }
    }

    #[test]
    fn blocks_that_may_be_another_nodes_give_no_address() {
        let blocks = vec![
            held("4-0a010002-32", |held| held.state = State::Settling),
            held("4-0a010003-32", |held| held.state = State::Lost),
            held("4-0a010004-32", |held| held.contested = true),
            held("4-0a010005-32", |held| held.name = Some("a".to_owned())),
            held("4-0a010006-32", |_| ()),
        ];
        assert_eq!(order(blocks, &["10.1.0.2-10.1.0.9"], &[], None), [6]);
    }
}
