//! What an ADD needs, and what of it the network's own blocks do not have.

use std::collections::HashSet;
use std::net::IpAddr;

use super::claims::now;
use super::conf::Conf;
use super::held::{Blocks, Held};
use super::node;
use super::pool::{Pool, Span};
use super::room::{candidates, within};
use super::sticky::NOTED;
use crate::steps::allocation::Owner;
use crate::steps::allocation::files::Place;
use crate::steps::allocation::ranges::RangeSet;

/// What an ADD allocates, for whom, and where.
pub struct Wish<'a> {
    /// The network's place.
    pub place: &'a Place,
    /// Its configuration.
    pub conf: &'a Conf,
    /// The attachment.
    pub owner: &'a Owner,
    /// Its name for each set, if it keeps its addresses.
    pub names: Vec<String>,
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
            // In a cluster it is the daemon that notes the use.
            let is_noted = |held: &Held| held.since + NOTED > now() || node::is_of_cluster();
            let is_noted = held_for(own, name, set).is_some_and(is_noted);
            return (!is_noted).then(|| Lack::Name(name.clone()));
        }
        let pool = self.conf.terms.pools.get(number)?;
        (!has_free(own, pool, taken)).then_some(Lack::Any)
    }
}

/// The block of a name in the set.
pub fn held_for<'b>(own: &'b Blocks, name: &str, set: &RangeSet) -> Option<&'b Held> {
    let is_of_name = |held: &&Held| held.sticky.as_deref() == Some(name);
    own.active().filter(is_of_name).find(|held| set.contains(held.block.first()))
}

/// The addresses of these spans in the blocks for any attachment.
pub fn spans<'s>(own: &Blocks, of: impl Iterator<Item = &'s Span>) -> Vec<Span> {
    let free: Vec<&Held> = own.active().filter(|held| held.sticky.is_none()).collect();
    of.flat_map(|span| free.iter().filter_map(|held| within(*span, held.block))).collect()
}

/// Whether an address of the pool is free.
pub fn has_free(own: &Blocks, pool: &Pool, taken: &HashSet<IpAddr>) -> bool {
    candidates(spans(own, pool.spans().iter()), None).any(|ip| !taken.contains(&ip))
}
