//! Which blocks are free to claim, and which part of a block is free to give up. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::block::{Block, address, width};
use super::pool::{Pool, Span};
use crate::family::Family;

/// The next block of a pool that meets none of the claimed ones: a whole one if there is any, else
/// the largest part of one.
pub fn unclaimed(pool: &Pool, claimed: &[Block]) -> Option<Block> {
    let claimed = in_order(claimed);
    let whole = pool.spans().iter().find_map(|span| whole_in(pool, *span, &claimed));
    whole.or_else(|| largest_part(pool, &claimed))
}

/// The block of a pool around an address: the largest that meets none of the claimed ones, and is
/// not larger than the pool's blocks.
pub fn unclaimed_around(pool: &Pool, ip: IpAddr, claimed: &[Block]) -> Option<Block> {
    free_around(pool, ip, &|block| !claimed.iter().any(|other| other.overlaps(block)))
}

/// The block of a pool around an address: the largest that is free by this measure.
fn free_around(pool: &Pool, ip: IpAddr, free: &dyn Fn(Block) -> bool) -> Option<Block> {
    let mut next = pool.block_of(ip);
    while let Some(block) = next {
        if free(block) {
            return Some(block);
        }
        next = half_around(block, ip);
    }
    None
}

/// Blocks of which none lies in another. A search takes the logarithm of their number: an import has as
/// many leases as a cluster has blocks.
#[derive(Clone, Debug, Default)]
pub struct Disjoint(BTreeSet<Block>);

impl Disjoint {
    /// The addresses of these blocks.
    pub fn new(blocks: impl IntoIterator<Item = Block>) -> Disjoint {
        let blocks: Vec<Block> = blocks.into_iter().collect();
        Disjoint(in_order(&blocks).into_iter().collect())
    }

    /// Whether one of them contains the address.
    pub fn has(&self, ip: IpAddr) -> bool {
        Block::around(ip, width(Family::of(ip))).is_some_and(|single| self.meets(single))
    }

    fn meets(&self, block: Block) -> bool {
        let end = Block::at(block.family(), block.end(), u8::MAX);
        self.0.range(..=end).next_back().is_some_and(|other| other.overlaps(block))
    }

    /// Adds the block that [`unclaimed_around`] finds beside these.
    #[cfg(any(feature = "cluster", test))]
    pub fn claim_around(&mut self, pool: &Pool, ip: IpAddr) -> Option<Block> {
        let found = free_around(pool, ip, &|block| !self.meets(block))?;
        self.0.insert(found);
        Some(found)
    }
}

/// The claimed blocks by address, and none that lies in another.
fn in_order(claimed: &[Block]) -> Vec<Block> {
    let mut claimed = claimed.to_vec();
    claimed.sort_unstable();
    claimed.dedup_by(|next, before| before.covers(*next));
    claimed
}

/// The first whole block that meets the span. Each step passes a claimed block, so there are at
/// most as many as those.
fn whole_in(pool: &Pool, span: Span, claimed: &[Block]) -> Option<Block> {
    let mut at = span.start();
    while at <= span.end() {
        let block = Block::at(pool.family(), at, pool.length());
        match last_overlapping(claimed, block) {
            None => return Some(block),
            Some(other) => at = block.end().max(other.end()).checked_add(1)?,
        }
    }
    None
}

/// The last of the claimed blocks, which are in order, that meets the block.
fn last_overlapping(claimed: &[Block], block: Block) -> Option<Block> {
    let end = Block::at(block.family(), block.end(), u8::MAX);
    let after = claimed.partition_point(|other| *other <= end);
    claimed[..after].last().copied().filter(|other| other.overlaps(block))
}

/// The largest unclaimed part of the blocks that are claimed in part.
fn largest_part(pool: &Pool, claimed: &[Block]) -> Option<Block> {
    let mut largest = None;
    let smaller = claimed.iter().filter(|block| block.length() > pool.length());
    for block in smaller.filter(|block| block.family() == pool.family()) {
        let whole = Block::at(block.family(), block.start(), pool.length());
        let free = |part: Block| last_overlapping(claimed, part).is_none();
        consider(&mut largest, part_of(whole, pool, &free));
    }
    largest
}

/// Keeps the larger one of two blocks, and the earlier one of equals.
fn consider(largest: &mut Option<Block>, found: Option<Block>) {
    let is_larger = |found: &Block| largest.is_none_or(|best| found.length() < best.length());
    if let Some(found) = found.filter(is_larger) {
        *largest = Some(found);
    }
}

/// The largest part of a block that meets the pool and is free by this measure.
fn part_of(block: Block, pool: &Pool, free: &dyn Fn(Block) -> bool) -> Option<Block> {
    if !pool.meets(block) {
        return None;
    }
    if free(block) {
        return Some(block);
    }
    let mut largest = None;
    for half in block.halves().into_iter().flatten() {
        consider(&mut largest, part_of(half, pool, free));
    }
    largest
}

fn half_around(block: Block, ip: IpAddr) -> Option<Block> {
    block.halves().into_iter().flatten().find(|half| half.contains(ip))
}

/// The largest part of a held block that meets the pool and has no lease.
pub fn unused(held: Block, pool: &Pool, leased: &Leased) -> Option<Block> {
    part_of(held, pool, &|part| !leased.any_in(part))
}

/// Addresses with leases, in order.
pub struct Leased(Vec<IpAddr>);

impl Leased {
    /// These addresses.
    pub fn new(ips: impl IntoIterator<Item = IpAddr>) -> Leased {
        let mut ips: Vec<IpAddr> = ips.into_iter().collect();
        ips.sort_unstable();
        Leased(ips)
    }

    /// Whether any of them is in the block.
    pub fn any_in(&self, block: Block) -> bool {
        let next = self.0.partition_point(|ip| *ip < block.first());
        self.0.get(next).is_some_and(|ip| block.contains(*ip))
    }
}

/// What stays of a block without a part of it, which it covers.
pub fn rest(block: Block, part: Block) -> Vec<Block> {
    let mut rest = vec![];
    let mut whole = block;
    while whole != part {
        let Some([first, second]) = whole.halves() else { break };
        let (inside, outside) = if first.covers(part) { (first, second) } else { (second, first) };
        rest.push(outside);
        whole = inside;
    }
    rest
}

/// The blocks with each pair of halves as one, so that a file of them stays short.
pub fn merged(mut blocks: Vec<Block>) -> Vec<Block> {
    loop {
        let pair = blocks.iter().find_map(|block| whole_of(*block, &blocks));
        let Some(whole) = pair else { return blocks };
        blocks.retain(|block| !whole.covers(*block));
        blocks.push(whole);
    }
}

/// The block of which this one and another one of the list are the halves.
fn whole_of(block: Block, blocks: &[Block]) -> Option<Block> {
    let whole = block.parent()?;
    let halves = whole.halves()?;
    halves.iter().all(|half| blocks.contains(half)).then_some(whole)
}

/// The addresses of a pool in these blocks, in the order of a round robin that continues after
/// `last`.
pub fn candidates(mut spans: Vec<Span>, last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
    spans.sort_unstable();
    let turned = match last {
        Some(last) => turned(&spans, last),
        None => spans,
    };
    turned.into_iter().flat_map(|span| {
        (span.start()..=span.end()).map(move |number| address(span.family(), number))
    })
}

/// The spans from the address after `last` on, and then those up to `last`.
fn turned(spans: &[Span], last: IpAddr) -> Vec<Span> {
    let (mut after, mut before) = (vec![], vec![]);
    for span in spans {
        let [low, high] = split_after(*span, last);
        before.extend(low);
        after.extend(high);
    }
    after.extend(before);
    after
}

/// The part of a span up to an address, and the part after it.
fn split_after(span: Span, ip: IpAddr) -> [Option<Span>; 2] {
    let number = super::block::number(ip);
    let part = |first: u128, end: u128| {
        let ends = (address(span.family(), first), address(span.family(), end));
        if first <= end { Span::new(ends.0, ends.1) } else { None }
    };
    if number < span.start() {
        return [None, Some(span)];
    }
    if number >= span.end() {
        return [Some(span), None];
    }
    [part(span.start(), number), part(number + 1, span.end())]
}

/// The part of a span that is in a block.
pub fn within(span: Span, block: Block) -> Option<Span> {
    if span.family() != block.family() {
        return None;
    }
    let first = span.start().max(block.start());
    let last = span.end().min(block.end());
    let ends = || Span::new(address(span.family(), first), address(span.family(), last));
    if first <= last { ends() } else { None }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
