//! Leases that are written again: their attachments live, and their files are gone.

use std::net::IpAddr;

use super::lease::{self, Content};
use super::{FileStore, Place};
use crate::cni::result::AddResult;
use crate::error::{Code, Error, ErrorList, Result};
use crate::repair::Repairs;
use crate::steps::allocation::owner::{Lease, Owner};
use crate::steps::allocation::ranges::RangeSet;

/// The leases of a result's addresses that are in these sets.
pub fn leases_of(result: &AddResult, sets: &[RangeSet], owner: &Owner) -> Vec<Lease> {
    let ips = result.ips.iter().map(|ip| ip.address.addr());
    let of_ranges = ips.filter(|ip| sets.iter().any(|set| set.contains(*ip)));
    of_ranges.map(|ip| Lease { ip, owner: owner.clone() }).collect()
}

/// Writes the leases that are missing; tries all of them.
pub fn repair(place: &Place, leases: &[Lease], repairs: &Repairs) -> Result<()> {
    ErrorList::of(leases.iter().map(|lease| repair_lease(place, lease, repairs)))
}

/// Writes a lease again that is missing; fails if the address has another owner by now.
fn repair_lease(place: &Place, lease: &Lease, repairs: &Repairs) -> Result<()> {
    match lease::read(place.dir(), lease.ip)? {
        Some(Content::Owned(owner)) if is_same(&owner, &lease.owner) => Ok(()),
        Some(Content::Owned(owner)) => Err(held_by(lease.ip, &owner.container_id)),
        Some(Content::Foreign) => Err(held_by(lease.ip, "another program")),
        Some(Content::Torn) | None => {
            repairs.make(format_args!("lease {} again", lease.ip), || write_lease(place, lease))
        }
    }
}

/// Whether it is the owner, also as old plugins wrote it, without the interface.
fn is_same(found: &Owner, owner: &Owner) -> bool {
    *found == *owner || *found == owner.without_ifname()
}

fn write_lease(place: &Place, lease: &Lease) -> Result<()> {
    let mut store = FileStore::create(place, &lease.owner)?;
    if store.insert(lease)? { Ok(()) } else { Err(held_by(lease.ip, "another container")) }
}

fn held_by(ip: IpAddr, owner: &str) -> Error {
    Error::new(Code::CONFLICT, format!("{ip} is leased to {owner} by now"))
        .with_details("two containers have the address: detach one of them, and attach it again")
}
