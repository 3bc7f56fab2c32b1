//! Allocates addresses from configured ranges to attachments: what an IPAM plugin with persistent
//! leases needs.
//!
//! [`ranges`] defines which addresses may be allocated, [`requested`] reads those that the runtime
//! or the user requests, [`first_free`] finds a free address, and [`files`] remember its owner. [`conf`]
//! is what the configurations of such plugins have in common.

pub mod conf;
pub mod files;
pub mod ranges;
pub mod requested;

use std::collections::HashSet;
use std::net::IpAddr;

use self::files::FileStore;
use self::ranges::{Range, RangeSet};
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::result::IpConfig;
use crate::error::{Code, Error, Result};
use crate::net::namespaces;
use crate::plugin::Attachment;
use crate::rollback::{Rollback, transaction};

/// What a plugin gives of its range sets: every address but the gateways, unless it says otherwise.
pub trait Policy {
    /// The addresses of a range set that may be allocated, in the order of the round robin.
    fn candidates<'a>(
        &self,
        set: &'a RangeSet,
        last: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> + use<'a, Self> {
        set.candidates(last)
    }

    /// Whether the attachment may have an address of the sets, if it is free.
    fn allows(&self, _: IpAddr) -> bool {
        true
    }

    /// What the file of the round robin of a range set is named after.
    fn turn_of(&self, range_set: usize) -> String {
        range_set.to_string()
    }
}

/// All addresses of the sets.
pub struct Everything;

impl Policy for Everything {}

/// What an attachment needs.
pub struct Need<'a> {
    /// One address from each of these.
    pub sets: &'a [RangeSet],
    /// Addresses to take where a set contains any.
    pub requested: &'a [IpAddr],
    /// The attachment.
    pub owner: &'a Owner,
}

/// Reserves one address from each range set, a requested one where a set contains any, and calls
/// `then`. Any failure, also of `then`, leaves the leases as they were.
pub fn allocate(
    need: &Need<'_>,
    files: &mut FileStore,
    policy: &impl Policy,
    then: impl FnOnce() -> Result<()>,
) -> Result<Vec<IpConfig>> {
    let allocated = transaction(|rb| {
        let ips = reserve_all(need, files, policy, rb)?;
        then().map(|()| ips)
    });
    allocated.inspect_err(|_| files.forget_what_is_gone())
}

fn reserve_all(
    need: &Need<'_>,
    files: &mut FileStore,
    policy: &impl Policy,
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
        let turn = policy.turn_of(number);
        let place = requested.iter().position(|ip| set.contains(*ip));
        let wanted = place.map(|place| requested.remove(place));
        let mut source = Source { set, owner: need.owner, files: &mut *files, policy };
        let ip = source
            .reserve(wanted, &turn)
            .map_err(|e| e.context(format_args!("failed to allocate for range {number}")))?;
        files.release_on_failure(ip, rb);
        // Not undone: the round robin continues after an address even if it was held only for a
        // moment.
        files.set_last_reserved(&turn, ip)?;
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
struct Source<'a, P> {
    set: &'a RangeSet,
    owner: &'a Owner,
    files: &'a mut FileStore,
    policy: &'a P,
}

impl<P: Policy> Source<'_, P> {
    /// Reserves the address `wanted`, or the next free one after that of `turn`. The reference does not
    /// check for a wanted one whether the attachment already has an address of the set, and allocates a
    /// second one.
    fn reserve(&mut self, wanted: Option<IpAddr>, turn: &str) -> Result<IpAddr> {
        let set = self.set;
        let Some(ip) = wanted else {
            self.refuse_second()?;
            let candidates = self.policy.candidates(set, self.files.last_reserved(turn));
            let free = first_free(candidates, self)?;
            return free.ok_or_else(|| unavailable(full_set(set)));
        };
        if ip == range_of(set, ip)?.gateway {
            return Err(unavailable(format!("requested ip {ip} is subnet's gateway")));
        }
        self.refuse_second()?;
        if self.attempt(ip)? {
            return Ok(ip);
        }
        Err(unavailable(format!("requested IP address {ip} is not available in range set {set}")))
    }

    /// Refuses a second ADD of one attachment, which is an error by the specification. Addresses count
    /// that old plugins noted for its container.
    fn refuse_second(&self) -> Result<()> {
        let mut held = self.files.held_by(self.owner)?;
        held.extend(self.files.held_by(&self.owner.without_ifname())?);
        let Some(ip) = held.iter().find(|ip| self.set.contains(**ip)) else { return Ok(()) };
        let id = &self.owner.container_id;
        let msg = format!("{ip} has been allocated to {id}, duplicate allocation is not allowed");
        Err(Error::new(Code::CONFLICT, msg))
    }
}

impl<P: Policy> Pool for Source<'_, P> {
    fn attempt(&mut self, ip: IpAddr) -> Result<bool> {
        Ok(self.policy.allows(ip) && self.files.reserve(ip, self.owner)?)
    }

    fn taken(&self) -> Result<HashSet<IpAddr>> {
        self.files.taken()
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

/// The error of an ADD with what frees an address. `held` finds those of full sets; the lock is released
/// by then.
pub fn with_next_step(
    error: Error,
    at: &Attachment,
    held: impl FnOnce() -> Result<Vec<IpAddr>>,
) -> Error {
    match error.code {
        Code::CONFLICT => error.with_details(advice_on_second_add(at)),
        Code::ADDRESS_UNAVAILABLE => match held() {
            Ok(held) if !held.is_empty() => {
                error.with_details(advice_on_full_sets(&held, &at.key.network))
            }
            _ => error,
        },
        _ => error, // the store failed, or the advice is there already
    }
}

/// What frees addresses of sets that are full. Looks into every namespace of the machine, so it is
/// for failures only.
fn advice_on_full_sets(held: &[IpAddr], network: &NetworkName) -> String {
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
fn advice_on_second_add(at: &Attachment) -> String {
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
