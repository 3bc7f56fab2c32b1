//! The search for a free address.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::error::Result;

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
