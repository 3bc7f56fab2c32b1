//! Releases leases: those of one attachment, and those without a valid one.

use super::{FileStore, Place};
use crate::cni::attachment::attachment_hash;
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::{Holder, Stale};
use crate::error::{ErrorList, Result};
use crate::steps::allocation::owner::{Lease, Owner};
use crate::steps::allocation::{Store as _, held_by_attachment, release_all};

/// Releases what an attachment holds.
pub fn of_attachment(place: &Place, owner: &Owner) -> Result<()> {
    let Some(mut store) = FileStore::open(place, owner)? else { return Ok(()) };
    let held = held_by_attachment(&store, owner)?;
    if held.is_empty() {
        store.require_all_read()?; // an unreadable lease may be the attachment's
    }
    release_all(&mut store, &held)
}

/// Releases the leases of attachments that are not valid, or reports them.
pub fn of_invalid(place: &Place, valid: &ValidAttachments) -> Result<()> {
    if valid.is_look() { look(place, valid) } else { release_stale(place, valid) }
}

/// Reports the leases that GC would release.
fn look(place: &Place, valid: &ValidAttachments) -> Result<()> {
    let mut errors = ErrorList::default();
    for lease in stale_leases(&place.leases()?.unwrap_or_default(), valid) {
        errors.push(valid.remove(|| stale(&lease), || Ok(())));
    }
    errors.finish()
}

fn release_stale(place: &Place, valid: &ValidAttachments) -> Result<()> {
    // Reading all leases also removes the torn ones.
    let Some(mut store) = FileStore::open_whole(place)? else { return Ok(()) };
    let mut errors = ErrorList::default();
    for lease in stale_leases(store.leases(), valid) {
        errors.push(valid.remove(|| stale(&lease), || store.release(lease.ip)));
    }
    errors.push(store.require_all_read());
    errors.finish()
}

fn stale_leases(leases: &[Lease], valid: &ValidAttachments) -> Vec<Lease> {
    leases.iter().filter(|lease| !is_valid(&lease.owner, valid)).cloned().collect()
}

/// Describes a lease for GC.
fn stale(lease: &Lease) -> Stale {
    Stale {
        what: format!("lease {}", lease.ip),
        holder: holder_of(&lease.owner),
        addresses: vec![lease.ip],
        ..Stale::default()
    }
}

fn holder_of(owner: &Owner) -> Holder {
    let id = &owner.container_id;
    let Some(ifname) = &owner.ifname else { return Holder::of_container(id) };
    let hash = Some(attachment_hash(id, ifname));
    Holder { hash, ifname: ifname.clone(), ..Holder::of_container(id) }
}

/// Whether the lease has a valid owner. A lease without an interface name stays while any
/// attachment of its container is valid.
fn is_valid(owner: &Owner, valid: &ValidAttachments) -> bool {
    match &owner.ifname {
        Some(ifname) => valid.contains(&owner.container_id, ifname),
        None => valid.contains_container(&owner.container_id),
    }
}
