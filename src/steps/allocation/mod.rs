//! Allocates addresses from configured ranges to attachments: what an IPAM plugin with persistent
//! leases needs.
//!
//! [`ranges`] defines which addresses may be allocated, [`requested`] reads those that the runtime
//! or the user requests, [`search`] finds a free address, and a [`Store`] remembers its owner.
//! [`files`] is the store of `host-local`.

pub mod files;
pub mod owner;
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
    let mut errors = ErrorList::default();
    for ip in ips {
        errors.push(store.release(*ip));
    }
    errors.finish()
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
    let Need { sets, requested, owner } = *need;
    let mut requested = without_repeats(requested);
    let mut ips = vec![];
    for (number, set) in sets.iter().enumerate() {
        let wanted = requested
            .iter()
            .position(|ip| set.range_of(*ip).is_some())
            .map(|place| requested.remove(place));
        let reserved = match wanted {
            Some(ip) => reserve_requested(set, ip, owner, store),
            None => reserve_next(set, number, owner, store),
        };
        let (ip, range) = reserved
            .map_err(|e| e.context(format_args!("failed to allocate for range {number}")))?;
        store.release_on_failure(ip, rb);
        // Not undone: the round robin continues after an address even if it was held only for a
        // moment.
        store.set_last_reserved(number, ip)?;
        ips.push(IpConfig {
            interface: None,
            address: range.with_prefix(ip),
            gateway: Some(range.gateway),
        });
    }
    require_none_left(&requested)?;
    Ok(ips)
}

fn without_repeats(ips: &[IpAddr]) -> Vec<IpAddr> {
    let mut once = vec![];
    for ip in ips {
        if !once.contains(ip) {
            once.push(*ip);
        }
    }
    once
}

fn require_none_left(requested: &[IpAddr]) -> Result<()> {
    if requested.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = requested.iter().map(IpAddr::to_string).collect();
    Err(unavailable(format!("failed to allocate all requested IPs: {}", list.join(" ")))
        .with_details("each range set gives one address, and these are in none or were not the first in theirs"))
}

fn unavailable(msg: String) -> Error {
    Error::new(Code::ADDRESS_UNAVAILABLE, msg)
}

/// Reserves a requested address of the set. The reference does not check whether the attachment
/// already has an address of the set, and allocates a second one.
fn reserve_requested<'a>(
    set: &'a RangeSet,
    ip: IpAddr,
    owner: &Owner,
    store: &mut impl Store,
) -> Result<(IpAddr, &'a Range)> {
    let range = range_of(set, ip)?;
    if ip == range.gateway {
        return Err(unavailable(format!("requested ip {ip} is subnet's gateway")));
    }
    refuse_second(set, owner, store)?;
    if !store.reserve(ip, owner)? {
        return Err(unavailable(format!(
            "requested IP address {ip} is not available in range set {set}"
        )));
    }
    Ok((ip, range))
}

fn reserve_next<'a>(
    set: &'a RangeSet,
    number: usize,
    owner: &Owner,
    store: &mut impl Store,
) -> Result<(IpAddr, &'a Range)> {
    refuse_second(set, owner, store)?;
    let candidates = store.candidates(set, store.last_reserved(number));
    let free = first_free(candidates, &mut Reserving { owner, store })?;
    let ip = free.ok_or_else(|| exhausted(set))?;
    Ok((ip, range_of(set, ip)?))
}

struct Reserving<'a, S> {
    owner: &'a Owner,
    store: &'a mut S,
}

impl<S: Store> Pool for Reserving<'_, S> {
    fn attempt(&mut self, ip: IpAddr) -> Result<bool> {
        self.store.reserve(ip, self.owner)
    }

    fn taken(&self) -> Result<HashSet<IpAddr>> {
        self.store.taken()
    }
}

fn range_of(set: &RangeSet, ip: IpAddr) -> Result<&Range> {
    set.range_of(ip).ok_or_else(|| Error::new(Code::BUG, format!("{ip} is not in range set {set}")))
}

/// Refuses a second ADD of one attachment, which is an error by the specification.
fn refuse_second(set: &RangeSet, owner: &Owner, store: &impl Store) -> Result<()> {
    let mut held = store.held_by(owner)?.into_iter().chain(store.held_by(&owner.without_ifname())?);
    match held.find(|ip| set.range_of(*ip).is_some()) {
        None => Ok(()),
        Some(ip) => {
            let id = &owner.container_id;
            let msg =
                format!("{ip} has been allocated to {id}, duplicate allocation is not allowed");
            Err(Error::new(Code::CONFLICT, msg))
        }
    }
}

/// The error for a set without a free address.
pub fn exhausted(set: &RangeSet) -> Error {
    unavailable(format!("no IP addresses available in range set: {set}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
