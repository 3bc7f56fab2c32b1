//! Leases that are written again: their attachments live, and their files are gone.

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

/// Writes the leases that are missing; tries all of them. An address that has another owner by now is
/// an error.
pub fn repair(place: &Place, leases: &[Lease], repairs: &Repairs) -> Result<()> {
    ErrorList::of(leases.iter().map(|lease| {
        let Lease { ip, owner } = lease;
        let held_by = |other: &str| {
            let msg = format!("{ip} is leased to {other} by now");
            Err(Error::new(Code::CONFLICT, msg).with_details(
                "two containers have the address: detach one of them, and attach it again",
            ))
        };
        match lease::read(place.dir(), *ip)? {
            // Old plugins wrote it without the interface.
            Some(Content::Owned(found)) if [owner, &owner.without_ifname()].contains(&&found) => {
                Ok(())
            }
            Some(Content::Owned(found)) => held_by(&found.container_id),
            Some(Content::Foreign) => held_by("another program"),
            Some(Content::Torn) | None => repairs.make(format_args!("lease {ip} again"), || {
                let mut store = FileStore::create(place, owner)?;
                if store.insert(lease)? { Ok(()) } else { held_by("another container") }
            }),
        }
    }))
}
