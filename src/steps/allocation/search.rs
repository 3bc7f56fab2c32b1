//! The search for a free address.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::error::Result;

/// So many taken addresses in a row are tried one by one; then one look at the whole list is
/// cheaper.
const SINGLE_LOOKS: usize = 64;

/// Addresses that can be tried one by one, and listed.
pub trait Pool {
    /// Whether the address is free. A pool that reserves has reserved it then.
    fn attempt(&mut self, ip: IpAddr) -> Result<bool>;
    /// Every address that is not free.
    fn taken(&self) -> Result<HashSet<IpAddr>>;
}

/// The first candidate that is free. The walk ends after as many steps as there are leases, however
/// many candidates there are: an address that the pool lists as taken is not attempted.
pub fn first_free(
    mut candidates: impl Iterator<Item = IpAddr>,
    pool: &mut impl Pool,
) -> Result<Option<IpAddr>> {
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
