//! GC gives back blocks without leases, except for the spare ones.

use std::collections::HashSet;
use std::net::IpAddr;

use super::block::Block;
use super::claims::{add, claimed};
use super::held::{Blocks, State};
use super::pool::Pool;
use super::room::{Leased, rest, unused};
use crate::error::Result;
use crate::steps::allocation::files::Place;

/// Gives back what the network does not need. For a machine without a cluster: a daemon would
/// otherwise have to know of it.
pub fn prune(place: &Place) -> Result<()> {
    if !super::held::path(place.dir()).exists() {
        return Ok(());
    }
    let _lock = place.lock()?;
    let Some(mut blocks) = Blocks::read(place.dir())? else { return Ok(()) };
    let before = blocks.clone();
    give_back(&mut blocks, &place.taken()?);
    if blocks == before { Ok(()) } else { blocks.write(place.dir()) }
}

fn give_back(blocks: &mut Blocks, taken: &HashSet<IpAddr>) {
    blocks.forget(taken, &[]);
    let leased = Leased::new(taken.iter().copied());
    for pool in blocks.pools.clone() {
        let mut spare = vec![];
        while let Some((block, part)) = whole_unused(blocks, &pool, &leased) {
            blocks.blocks.retain(|held| held.block != block);
            blocks.blocks.extend(rest(block, part).into_iter().map(claimed));
            spare.extend(first_blocks(part, &pool, blocks.spare as usize - spare.len()));
        }
        add(blocks, spare);
    }
}

/// A block, and a part of it that is at least one whole block of the pool and has no lease.
fn whole_unused(blocks: &Blocks, pool: &Pool, leased: &Leased) -> Option<(Block, Block)> {
    let free =
        blocks.blocks.iter().filter(|held| held.sticky.is_none() && held.state == State::Active);
    let mut parts = free.filter_map(|held| Some((held.block, unused(held.block, pool, leased)?)));
    parts.find(|(_, part)| part.length() <= pool.length())
}

/// The first blocks of the pool in a part, at most so many.
fn first_blocks(part: Block, pool: &Pool, count: usize) -> Vec<Block> {
    let first = Block::at(part.family(), part.start(), pool.length());
    let next = |block: &Block| {
        let start = block.end().checked_add(1)?;
        Some(Block::at(part.family(), start, pool.length()))
    };
    let all = std::iter::successors(Some(first), next).take_while(|block| part.covers(*block));
    all.filter(|block| pool.meets(*block)).take(count).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::plugins::ipam::cluster_local::pool::{BlockSize, Span};
    use crate::steps::allocation::ranges::{RangeConf, RangeSet};

    #[test]
    fn spare_blocks_and_those_with_leases_stay() {
        let subnet = Some("10.1.0.0/24".parse().unwrap());
        let conf = RangeConf { subnet, ..RangeConf::default() };
        let set = RangeSet::new(&[conf], "ranges[0]").unwrap();
        let pool = Pool::new(&set, &[] as &[Span], BlockSize::Auto).unwrap();
        for (spare, leases, left) in [
            (1, &["10.1.0.9"][..], "10.1.0.8/30 10.1.0.128/30"),
            (0, &["10.1.0.9", "10.1.0.13"], "10.1.0.8/29"),
            (2, &[], "10.1.0.0/29"),
            (0, &[], ""),
        ] {
            let mut blocks = Blocks::new("default".parse().unwrap(), vec![pool.clone()], spare);
            add(&mut blocks, vec![Block::around("10.1.0.0".parse().unwrap(), 24).unwrap()]);
            give_back(&mut blocks, &leases.iter().map(|ip| ip.parse().unwrap()).collect());
            let mut kept: Vec<Block> = blocks.blocks.iter().map(|held| held.block).collect();
            kept.sort_unstable();
            let kept: Vec<String> = kept.iter().map(|block| block.prefix().to_string()).collect();
            assert_eq!(kept.join(" "), left, "{leases:?}");
        }
    }
}
