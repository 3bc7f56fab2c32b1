//! Allocates addresses from configured ranges to attachments: what an IPAM plugin with persistent
//! leases needs.
//!
//! [`ranges`] defines which addresses may be allocated, [`requested`] reads those that the runtime
//! or the user requests, [`first_free`] finds a free address, and a [`Store`] remembers its owner.
//! [`files`] is the store of `host-local`.

pub mod files;
pub mod ranges;
pub mod requested;

use std::collections::HashSet;
use std::net::IpAddr;

use self::ranges::{Range, RangeSet};
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::result::IpConfig;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::namespaces;
use crate::plugin::Attachment;
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

/// The owner of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The container's id.
    pub container_id: String,
    /// The interface's name; None in leases of old plugins, which did not write it.
    pub ifname: Option<String>,
    /// The network's name, where networks share a directory; else None.
    pub network: Option<String>,
}

impl Owner {
    /// The owner that an attachment is, in the directory of its network.
    pub fn new(container_id: &str, ifname: &str) -> Owner {
        let container_id = container_id.trim().to_owned();
        Owner { container_id, ifname: Some(ifname.to_owned()), network: None }
    }

    /// The owner that the attachment of this key is.
    pub fn of(key: &Key) -> Owner {
        Owner::new(key.container_id.as_str(), key.ifname.as_str())
    }

    /// The same container without an interface name, as old plugins wrote it.
    #[must_use]
    pub fn without_ifname(&self) -> Owner {
        Owner { ifname: None, ..self.clone() }
    }
}

/// An address and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub ip: IpAddr,
    /// The attachment that holds it.
    pub owner: Owner,
}

/// After this many consecutive taken addresses, listing all of them is cheaper than trying one by
/// one.
const SINGLE_LOOKS: usize = 64;

/// Addresses that can be tried one by one, and listed.
pub trait Pool {
    /// Whether the address is free. A pool that makes reservations has reserved it then.
    fn attempt(&mut self, ip: IpAddr) -> Result<bool>;
    /// Every address that is not free.
    fn taken(&self) -> Result<HashSet<IpAddr>>;
}

/// The first candidate that is free. The walk ends after as many steps as there are leases, however
/// many candidates there are: an address that the pool lists as taken is not tried.
pub fn first_free(
    mut candidates: impl Iterator<Item = IpAddr>,
    pool: &mut impl Pool,
) -> Result<Option<IpAddr>> {
    let found = try_each(candidates.by_ref().take(SINGLE_LOOKS), pool)?;
    if found.is_some() {
        return Ok(found);
    }
    let Some(next) = candidates.next() else { return Ok(None) };
    let taken = pool.taken()?;
    let rest = std::iter::once(next).chain(candidates);
    try_each(rest.filter(|ip| !taken.contains(ip)), pool)
}

/// Tries the addresses until one is free.
fn try_each(ips: impl Iterator<Item = IpAddr>, pool: &mut impl Pool) -> Result<Option<IpAddr>> {
    for ip in ips {
        if pool.attempt(ip)? {
            return Ok(Some(ip));
        }
    }
    Ok(None)
}

/// What frees addresses of sets that are full. Looks into every namespace of the machine, so it is
/// for failures only.
pub fn advice_on_full_sets(held: &[IpAddr], network: &NetworkName) -> String {
    let gone = namespaces::addresses_elsewhere()
        .map(|in_use| held.iter().filter(|ip| !in_use.contains(ip)).count());
    let count = held.len();
    match gone {
        Ok(0) => format!("all {count} leases are of containers that exist: make the range larger"),
        Ok(gone) => format!(
            "{gone} of {count} leases are of containers that are gone; \
             free those with: cni-multi net gc {network}"
        ),
        Err(_) => {
            format!("free leases of containers that are gone with: cni-multi net gc {network}")
        }
    }
}

/// What frees the address of an attachment that has one.
pub fn advice_on_second_add(at: &Attachment) -> String {
    let Key { network, container_id, ifname } = &at.key;
    let netns = &at.netns_path;
    format!(
        "its {:?} has the address from an earlier ADD; DEL frees it: \
         cni-multi net del {network} {netns} --container-id {container_id} --ifname {ifname}",
        ifname.as_str()
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
