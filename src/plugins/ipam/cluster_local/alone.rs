//! A cluster of one: the plugin claims blocks itself.

use std::collections::HashSet;
use std::net::IpAddr;

use super::block::Block;
use super::claims::{Claims, add, claimed, now};
use super::conf::Terms;
use super::held::{Blocks, Held};
use super::need::{Lack, Wish, held_for};
use super::pool::Pool;
use super::room::{Leased, unclaimed, unclaimed_around};
use crate::error::{Code, Error, Result};
use crate::steps::allocation::ranges::RangeSet;

/// The most blocks that are claimed at once: a network claims as many as it has.
const MOST_AT_ONCE: u64 = 64;

/// One change of a network's claims, under all locks.
pub struct Turn<'a> {
    /// The claims of the realm's other networks.
    pub claims: Claims,
    /// The network's blocks.
    pub own: Blocks,
    /// Its addresses with leases.
    pub taken: HashSet<IpAddr>,
    /// What an ADD needs.
    pub wish: &'a Wish<'a>,
}

/// The blocks of a network, as its configuration is now. A network with leases stays in its realm.
pub fn adopted(found: Option<Blocks>, terms: &Terms, taken: &HashSet<IpAddr>) -> Result<Blocks> {
    let Some(realm) = terms.realm.clone() else {
        return Err(Error::new(Code::BUG, "a configuration that was not validated"));
    };
    let new = Blocks {
        names: terms.names.clone(),
        ..Blocks::new(realm, terms.pools.clone(), terms.spare)
    };
    match found {
        None => Ok(new),
        Some(found) if found.realm == new.realm => {
            let blocks = found.blocks.into_iter();
            let blocks = blocks.filter(|held| is_useful(held, terms, taken)).collect();
            Ok(Blocks { blocks, ..new })
        }
        Some(found) if !taken.is_empty() => Err(has_moved(&found, taken.len())),
        Some(_) => Ok(new),
    }
}

/// Whether a block has leases, or addresses that the configuration allocates.
fn is_useful(held: &Held, terms: &Terms, taken: &HashSet<IpAddr>) -> bool {
    let pools = if held.sticky.is_some() { &terms.names } else { &terms.pools };
    let is_leased = taken.iter().any(|ip| held.block.contains(*ip));
    is_leased || pools.iter().any(|pool| pool.meets(held.block))
}

fn has_moved(found: &Blocks, count: usize) -> Error {
    let problem =
        format_args!("{count} leases of the network are in realm {:?}", found.realm.as_str());
    Error::config("ipam.realm", problem)
        .expecting("the same realm as long as there are leases")
        .with_details("detach the network's containers first, or give the network another name")
}

impl Turn<'_> {
    /// Claims what the ADD needs and the network does not have.
    pub fn provide(&mut self) -> Result<()> {
        for (number, set) in self.wish.sets() {
            match self.wish.lack(number, &self.own, &self.taken) {
                None => (),
                Some(Lack::Any) => self.provide_any(number)?,
                Some(Lack::Address(ip)) => self.provide_address(ip)?,
                Some(Lack::Name(name)) => self.provide_name(number, set, &name)?,
            }
        }
        self.own.forget(&self.taken, &self.wish.names);
        Ok(())
    }

    /// Claims the blocks of all these addresses; fails if it cannot have one.
    pub fn provide_all(&mut self, ips: &[IpAddr]) -> Result<()> {
        for ip in ips {
            if !self.own.has(*ip) {
                self.provide_address(*ip)?;
            }
            if !self.own.has(*ip) {
                return Err(not_to_be_had(*ip));
            }
        }
        Ok(())
    }

    fn all(&self) -> Vec<Block> {
        self.claims.with(&self.own)
    }

    fn provide_any(&mut self, number: usize) -> Result<()> {
        let Some(pool) = self.wish.conf.terms.pools.get(number) else { return Ok(()) };
        if !self.claim(pool) && self.claims.squeeze(pool)? {
            self.claim(pool);
        }
        Ok(())
    }

    /// Claims as many blocks of the pool as the network has; returns whether it claimed any.
    fn claim(&mut self, pool: &Pool) -> bool {
        let own = self.own.active().filter(|held| held.sticky.is_none());
        let held: u64 = own.map(|held| pool.allocatable(held.block)).fold(0, u64::saturating_add);
        let size = pool.block(0).map_or(1, Block::size);
        let mut all = self.all();
        let mut new = vec![];
        for _ in 0..(held / size).clamp(1, MOST_AT_ONCE) {
            let Some(block) = unclaimed(pool, &all) else { break };
            all.push(block);
            new.push(block);
        }
        let is_any = !new.is_empty();
        add(&mut self.own, new);
        is_any
    }

    /// Claims the block around a requested address, if no other network has the address.
    fn provide_address(&mut self, ip: IpAddr) -> Result<()> {
        let Some(pool) = self.wish.pool_of(ip) else { return Ok(()) };
        let mut found = unclaimed_around(pool, ip, &self.all());
        if found.is_none() && self.claims.squeeze_out(ip)? {
            found = unclaimed_around(pool, ip, &self.all());
        }
        add(&mut self.own, found.into_iter().collect());
        Ok(())
    }

    /// Notes the use of a name; gives it an address first if it has none.
    fn provide_name(&mut self, number: usize, set: &RangeSet, name: &str) -> Result<()> {
        if let Some(block) = held_for(&self.own, name, set).map(|held| held.block) {
            let held = self.own.blocks.iter_mut().filter(|held| held.block == block);
            held.for_each(|held| held.since = now());
            return Ok(());
        }
        let Some(pool) = self.wish.conf.terms.names.get(number) else { return Ok(()) };
        let block = self.free_for_name(pool)?.ok_or_else(|| no_address_for(name))?;
        self.own.blocks.retain(|held| held.block != block);
        self.own.blocks.push(Held { sticky: Some(name.to_owned()), ..claimed(block) });
        Ok(())
    }

    /// An address of no name; else the one whose name was used longest ago and has no attachment.
    fn free_for_name(&mut self, pool: &Pool) -> Result<Option<Block>> {
        let mut found = unclaimed(pool, &self.all());
        if found.is_none() && self.claims.squeeze(pool)? {
            found = unclaimed(pool, &self.all());
        }
        Ok(found.or_else(|| self.forgotten(pool)))
    }

    fn forgotten(&self, pool: &Pool) -> Option<Block> {
        let leased = Leased::new(self.taken.iter().copied());
        let names = self.own.active().filter(|held| held.sticky.is_some());
        let idle = names.filter(|held| pool.meets(held.block) && !leased.any_in(held.block));
        idle.min_by_key(|held| held.since).map(|held| held.block)
    }
}

fn not_to_be_had(ip: IpAddr) -> Error {
    let msg = format!("{ip} is excluded, or held by another network of the realm");
    Error::new(Code::CONFLICT, msg)
        .with_details("`cni-multi ipam ls` lists the holders of addresses")
}

fn no_address_for(name: &str) -> Error {
    let msg = format!("no address is free for {name:?}");
    Error::new(Code::ADDRESS_UNAVAILABLE, msg).with_details(
        "every address that is kept for names is held by an attachment: make the range larger",
    )
}
