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
    // A lease without an interface name stays while any attachment of its container is valid.
    let is_stale = |lease: &&Lease| match &lease.owner.ifname {
        Some(ifname) => !valid.contains(&lease.owner.container_id, ifname),
        None => !valid.contains_container(&lease.owner.container_id),
    };
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
    let Owner { container_id: id, ifname } = &lease.owner;
    let mut holder = Holder::of_container(id);
    if let Some(ifname) = ifname {
        holder.hash = Some(attachment_hash(id, ifname));
        holder.ifname.clone_from(ifname);
    }
    let what = format!("lease {}", lease.ip);
    Stale { what, holder, addresses: vec![lease.ip], ..Stale::default() }
}
