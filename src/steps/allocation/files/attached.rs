//! The leases of attachments: their release, their comparison with a result, and their repair where
//! an attachment lives and its files are gone.

use std::net::IpAddr;

use super::lease::{self, Content};
use super::{FileStore, Place};
use crate::cni::attachment::{Key, attachment_hash};
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::cni::valid::{Holder, Stale};
use crate::error::{Aspect, Code, Error, ErrorList, Result};
use crate::repair::Repairs;
use crate::steps::allocation::ranges::RangeSet;
use crate::steps::allocation::{Lease, Owner, joined};

/// Releases what an attachment holds.
pub fn release(place: &Place, owner: &Owner) -> Result<()> {
    let Some(mut store) = FileStore::open(place, owner)? else { return Ok(()) };
    let held = store.held_by_attachment(owner)?;
    if held.is_empty() {
        store.require_all_read()?; // an unreadable lease may be the attachment's
    }
    ErrorList::of(held.iter().map(|ip| store.release(*ip)))
}

/// Releases the leases of attachments that are not valid, or reports them.
pub fn release_invalid(place: &Place, valid: &ValidAttachments) -> Result<()> {
    // A lease without an interface name stays while any attachment of its container is valid.
    let is_valid = |Owner { container_id, ifname, .. }: &Owner| match ifname {
        Some(ifname) => valid.contains(container_id, ifname),
        None => valid.contains_container(container_id),
    };
    let is_stale = |lease: &&Lease| place.is_of_network(&lease.owner) && !is_valid(&lease.owner);
    let mut errors = ErrorList::default();
    if valid.is_look() {
        for lease in place.leases()?.unwrap_or_default().iter().filter(is_stale) {
            errors.push(valid.remove(|| stale(lease), || Ok(())));
        }
        return errors.finish();
    }
    // Reading all leases also removes the torn ones.
    let Some(mut store) = FileStore::open_whole(place)? else { return Ok(()) };
    let leases: Vec<Lease> = store.leases().iter().filter(is_stale).cloned().collect();
    for lease in leases {
        errors.push(valid.remove(|| stale(&lease), || store.release(lease.ip)));
    }
    errors.push(store.require_all_read());
    errors.finish()
}

/// Describes a lease for GC.
fn stale(lease: &Lease) -> Stale {
    let Owner { container_id: id, ifname, .. } = &lease.owner;
    let mut holder = Holder::of_container(id);
    if let Some(ifname) = ifname {
        holder.hash = Some(attachment_hash(id, ifname));
        holder.ifname.clone_from(ifname);
    }
    let what = format!("lease {}", lease.ip);
    Stale { what, holder, addresses: vec![lease.ip], ..Stale::default() }
}

/// The addresses that the attachment holds, at least one. `plugin` begins the error message.
pub fn held(place: &Place, key: &Key, plugin: &str) -> Result<Vec<IpAddr>> {
    let owner = place.owner(key);
    let store = FileStore::open(place, &owner)?;
    let held = store.map_or(Ok(vec![]), |store| store.held_by_attachment(&owner))?;
    if !held.is_empty() {
        return Ok(held);
    }
    let Key { network, container_id, ifname } = key;
    let msg = format!("{plugin}: Failed to find address added by container {container_id}");
    let (network, ifname) = (network.as_str(), ifname.as_str());
    let details = format!("no address of network {network:?} is held for its {ifname:?}");
    Err(Error::check(msg).with_details(details).about(&Aspect::Lease))
}

/// Verifies that the container holds the addresses of its result. An address of another plugin, or of
/// a range that is no longer configured, is not ours to verify.
pub fn verify(result: &AddResult, sets: &[RangeSet], held: &[IpAddr]) -> Result<()> {
    for ip in result.ips.iter().map(|ip| ip.address.addr()) {
        if !held.contains(&ip) && sets.iter().any(|set| set.contains(ip)) {
            let problem = format!("address {ip} of prevResult is not held by this container");
            return Err(Error::check(problem)
                .with_details(format_args!("it holds {}", joined(held, ", ")))
                .about(&Aspect::Lease));
        }
    }
    Ok(())
}

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
