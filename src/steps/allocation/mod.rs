//! Allocates addresses from configured ranges to attachments: what an IPAM plugin with persistent
//! leases needs.
//!
//! [`ranges`] defines which addresses may be allocated, [`requested`] reads those that the runtime
//! or the user requests, [`search`] finds a free address, and a [`Store`] remembers its owner.
//! [`files`] is the store of `host-local`.

pub mod advice;
pub mod files;
pub mod owner;
pub mod range_sets;
pub mod ranges;
pub mod requested;
pub mod search;

use std::collections::HashSet;
use std::net::IpAddr;

use self::owner::Owner;
use self::ranges::{Range, RangeSet};
use self::search::{Pool, first_free};
use crate::cni::result::IpConfig;
use crate::error::{Code, Error, ErrorList, Result};
use crate::rollback::Rollback;

/// The leases of one network.
pub trait Store {
    /// The addresses of a range set that the store may allocate, in the order of the round robin:
    /// all of them, unless the store excludes some.
    fn candidates<'a>(
        &self,
        set: &'a RangeSet,
        last: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> + use<'a, Self> {
        set.candidates(last)
    }

    /// The addresses that `owner` holds.
    fn held_by(&self, owner: &Owner) -> Result<Vec<IpAddr>>;

    /// Every address that is not free.
    fn taken(&self) -> Result<HashSet<IpAddr>>;

    /// Allocates the address to `owner` unless it is taken; returns whether it did.
    fn reserve(&mut self, ip: IpAddr, owner: &Owner) -> Result<bool>;

    /// Releases a reservation of this run if a later step fails.
    fn release_on_failure(&self, ip: IpAddr, rb: &mut Rollback<'_>);

    /// Releases an address.
    fn release(&mut self, ip: IpAddr) -> Result<()>;

    /// The address of the last reservation from a range set.
    fn last_reserved(&self, range_set: usize) -> Option<IpAddr>;

    /// Remembers where the next search of a range set begins.
    fn set_last_reserved(&mut self, range_set: usize, ip: IpAddr) -> Result<()>;
}

/// The addresses that an attachment holds. If it has none: those that its container holds in leases
/// without an interface name, as old plugins wrote them.
pub fn held_by_attachment(store: &impl Store, owner: &Owner) -> Result<Vec<IpAddr>> {
    let held = store.held_by(owner)?;
    if held.is_empty() { store.held_by(&owner.without_ifname()) } else { Ok(held) }
}

/// Releases addresses: tries all of them, and reports the failures at the end.
pub fn release_all(store: &mut impl Store, ips: &[IpAddr]) -> Result<()> {
    ErrorList::of(ips.iter().map(|ip| store.release(*ip)))
}

/// What an attachment needs.
pub struct Need<'a> {
    /// One address from each of these.
    pub sets: &'a [RangeSet],
    /// Addresses to take where a set contains any.
    pub requested: &'a [IpAddr],
    /// The attachment.
    pub owner: &'a Owner,
}

/// Reserves one address from each range set, a requested one where a set contains any. A reservation
/// is released if any later step fails.
pub fn allocate(
    need: &Need<'_>,
    store: &mut impl Store,
    rb: &mut Rollback<'_>,
) -> Result<Vec<IpConfig>> {
    let mut requested: Vec<IpAddr> = vec![];
    for ip in need.requested {
        if !requested.contains(ip) {
            requested.push(*ip);
        }
    }
    let mut ips = vec![];
    for (number, set) in need.sets.iter().enumerate() {
        let source = Source { set, number, owner: need.owner };
        let place = requested.iter().position(|ip| set.contains(*ip));
        let wanted = place.map(|place| requested.remove(place));
        let ip = source
            .reserve(wanted, store)
            .map_err(|e| e.context(format_args!("failed to allocate for range {number}")))?;
        store.release_on_failure(ip, rb);
        // Not undone: the round robin continues after an address even if it was held only for a
        // moment.
        store.set_last_reserved(number, ip)?;
        let range = range_of(set, ip)?;
        let (address, gateway) = (range.with_prefix(ip), Some(range.gateway));
        ips.push(IpConfig { interface: None, address, gateway });
    }
    if requested.is_empty() {
        return Ok(ips);
    }
    let list = joined(&requested, " ");
    Err(unavailable(format!("failed to allocate all requested IPs: {list}")).with_details(
        "each range set gives one address, and these are in none or were not the first in theirs",
    ))
}

/// Addresses as text.
pub fn joined(ips: &[IpAddr], separator: &str) -> String {
    let texts: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    texts.join(separator)
}

fn unavailable(msg: String) -> Error {
    Error::new(Code::ADDRESS_UNAVAILABLE, msg)
}

/// A range set that gives an attachment an address.
struct Source<'a> {
    set: &'a RangeSet,
    number: usize,
    owner: &'a Owner,
}

impl Source<'_> {
    /// Reserves the address `wanted`, or the next free one. The reference does not check for a wanted
    /// one whether the attachment already has an address of the set, and allocates a second one.
    fn reserve(&self, wanted: Option<IpAddr>, store: &mut impl Store) -> Result<IpAddr> {
        let (set, owner) = (self.set, self.owner);
        let Some(ip) = wanted else {
            self.refuse_second(store)?;
            let candidates = store.candidates(set, store.last_reserved(self.number));
            let free = first_free(candidates, &mut Reserving { source: self, store })?;
            return free.ok_or_else(|| unavailable(full_set(set)));
        };
        if ip == range_of(set, ip)?.gateway {
            return Err(unavailable(format!("requested ip {ip} is subnet's gateway")));
        }
        self.refuse_second(store)?;
        if store.reserve(ip, owner)? {
            return Ok(ip);
        }
        Err(unavailable(format!("requested IP address {ip} is not available in range set {set}")))
    }

    /// Refuses a second ADD of one attachment, which is an error by the specification. Addresses count
    /// that old plugins noted for its container.
    fn refuse_second(&self, store: &impl Store) -> Result<()> {
        let mut held = store.held_by(self.owner)?;
        held.extend(store.held_by(&self.owner.without_ifname())?);
        let Some(ip) = held.iter().find(|ip| self.set.contains(**ip)) else { return Ok(()) };
        let id = &self.owner.container_id;
        let msg = format!("{ip} has been allocated to {id}, duplicate allocation is not allowed");
        Err(Error::new(Code::CONFLICT, msg))
    }
}

struct Reserving<'a, S> {
    source: &'a Source<'a>,
    store: &'a mut S,
}

impl<S: Store> Pool for Reserving<'_, S> {
    fn attempt(&mut self, ip: IpAddr) -> Result<bool> {
        self.store.reserve(ip, self.source.owner)
    }

    fn taken(&self) -> Result<HashSet<IpAddr>> {
        self.store.taken()
    }
}

fn range_of(set: &RangeSet, ip: IpAddr) -> Result<&Range> {
    set.range_of(ip).ok_or_else(|| Error::new(Code::BUG, format!("{ip} is not in range set {set}")))
}

/// The reference's sentence for a set without a free address.
pub fn full_set(set: &RangeSet) -> String {
    format!("no IP addresses available in range set: {set}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
