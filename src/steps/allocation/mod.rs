//! Which address an attachment gets.

pub mod files;
pub mod ranges;

use std::collections::HashSet;
use std::net::IpAddr;

use self::files::lease::Owner;
use self::files::{Store, remove_lease};
use self::ranges::{Range, RangeSet};
use crate::cni::result::IpConfig;
use crate::error::{Code, Error, Result};
use crate::rollback::Rollback;

/// So many taken addresses in a row are met one by one; then one look at the directory is cheaper.
const SINGLE_LOOKS: usize = 64;

/// Reserves one address from each range set, `requested` ones where a set has them. What was
/// reserved is freed if anything after it fails.
pub fn allocate(
    sets: &[RangeSet],
    requested: &[IpAddr],
    owner: &Owner,
    store: &mut Store,
    rb: &mut Rollback<'_>,
) -> Result<Vec<IpConfig>> {
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
        let path = store.lease_path(ip);
        rb.undo(format_args!("release {ip}"), move || remove_lease(&path));
        // Not undone: the round robin goes on after an address even if it was held for a moment
        // only.
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

/// The reference does not look whether the attachment has an address of the set already, and gives
/// it a second one.
fn reserve_requested<'a>(
    set: &'a RangeSet,
    ip: IpAddr,
    owner: &Owner,
    store: &mut Store,
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
    store: &mut Store,
) -> Result<(IpAddr, &'a Range)> {
    refuse_second(set, owner, store)?;
    let last = store.last_reserved(number);
    let free = first_free(set, last, &mut Reserving { owner, store })?;
    let ip = free.ok_or_else(|| exhausted(set))?;
    Ok((ip, range_of(set, ip)?))
}

struct Reserving<'a> {
    owner: &'a Owner,
    store: &'a mut Store,
}

impl Pool for Reserving<'_> {
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

/// A second ADD of one attachment is an error by the specification.
fn refuse_second(set: &RangeSet, owner: &Owner, store: &Store) -> Result<()> {
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

/// No address of the set is free.
pub fn exhausted(set: &RangeSet) -> Error {
    unavailable(format!("no IP addresses available in range set: {set}"))
}

/// Where addresses can be tried and listed.
pub trait Pool {
    /// Whether it was free, and is now the caller's.
    fn attempt(&mut self, ip: IpAddr) -> Result<bool>;
    /// Every address that is not free.
    fn taken(&self) -> Result<HashSet<IpAddr>>;
}

/// The first candidate that is free. The walk ends after as many steps as there are leases, however
/// large the set is: what the directory lists as taken is not attempted.
pub fn first_free(
    set: &RangeSet,
    last: Option<IpAddr>,
    pool: &mut impl Pool,
) -> Result<Option<IpAddr>> {
    let mut candidates = set.candidates(last);
    for ip in candidates.by_ref().take(SINGLE_LOOKS) {
        if pool.attempt(ip)? {
            return Ok(Some(ip));
        }
    }
    let Some(next) = candidates.next() else { return Ok(None) };
    let taken = pool.taken()?;
    for ip in std::iter::once(next).chain(candidates).filter(|ip| !taken.contains(ip)) {
        if pool.attempt(ip)? {
            return Ok(Some(ip));
        }
    }
    Ok(None)
}
