//! `host-local` allocates addresses from configured ranges and keeps the leases in files on this
//! host.
//!
//! The store is compatible with the reference's, in both directions.
//! <https://www.cni.dev/plugins/current/ipam/host-local/>

mod conf;
mod full;
mod leases;
mod resolv_conf;

use std::net::IpAddr;

use self::conf::Conf;
use crate::cni::attachment::{Key, attachment_hash};
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Dns, IpConfig};
use crate::cni::valid::{Holder, Stale};
use crate::error::{Aspect, Code, Error, ErrorList, Result};
use crate::plugin::leases::LeaseStore;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::allocation::files::lease::{self, Content};
use crate::steps::allocation::files::{FileStore, Place};
use crate::steps::allocation::owner::{Lease, Owner};
use crate::steps::allocation::ranges::RangeSet;
use crate::steps::allocation::{self, Need, Store as _, held_by_attachment, joined, release_all};

/// The `host-local` plugin.
pub struct HostLocal;

impl Plugin for HostLocal {
    const NAME: &'static str = "host-local";
    const KIND: Kind = Kind::Ipam;
    const ABOUT: &'static str = "addresses of configured ranges, remembered in files";
    const LEASES: Option<&'static dyn LeaseStore> = Some(&leases::Leases);
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let dns = conf.resolv_conf.as_deref().map_or(Ok(Dns::default()), resolv_conf::read)?;
        let place = conf::place(cx);
        let allocated = allocate(&place, conf, &owner(&at.key));
        let ips = allocated.map_err(|e| with_next_step(e, &place, conf, at))?;
        Ok(AddResult { ips, routes: conf.routes.clone(), dns, ..AddResult::default() })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let held = held_addresses(&conf::place(cx), &owner(&at.key))?;
        if held.is_empty() {
            return Err(nothing_held(&at.key));
        }
        let result = cx.config.prev_result()?.unwrap_or_default();
        result.ips.iter().try_for_each(|ip| verify_held(ip.address.addr(), &conf.sets, &held))
    }

    fn del(cx: &Context<'_>, _: &Conf, at: &Detachment) -> Result<()> {
        let owner = owner(&at.key);
        let Some(mut store) = FileStore::open(&conf::place(cx), &owner)? else {
            return Ok(());
        };
        let held = held_by_attachment(&store, &owner)?;
        if held.is_empty() {
            store.require_all_read()?; // an unreadable lease may be the attachment's
        }
        release_all(&mut store, &held)
    }

    /// A full range set is a warning: kubelet evicts the pods of a node that is not ready, and the
    /// next DEL frees an address.
    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let place = conf::place(cx);
        place.require_usable()?;
        full::warn_of_full_sets(&place, &conf.sets)
    }

    fn gc(cx: &Context<'_>, _: &Conf, valid: &ValidAttachments) -> Result<()> {
        let place = conf::place(cx);
        if valid.is_look() { look(&place, valid) } else { release_stale(&place, valid) }
    }

    /// The leases.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let place = conf::place(cx);
        let owner = owner(&at.key);
        let result = cx.config.prev_result()?.unwrap_or_default();
        let ips = result.ips.iter().map(|ip| ip.address.addr());
        let of_ranges = ips.filter(|ip| conf.sets.iter().any(|set| set.contains(*ip)));
        ErrorList::of(
            of_ranges.map(|ip| repair_lease(&place, &Lease { ip, owner: owner.clone() }, repairs)),
        )
    }
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

/// Reserves the addresses of an attachment: all of them or none.
fn allocate(place: &Place, conf: &Conf, owner: &Owner) -> Result<Vec<IpConfig>> {
    let mut store = FileStore::create(place, owner)?;
    let need = Need { sets: &conf.sets, requested: &conf.requested, owner };
    let allocated = transaction(|rb| allocation::allocate(&need, &mut store, rb));
    allocated.inspect_err(|_| store.forget_what_is_gone())
}

/// Adds who holds the addresses, and what frees one. The lock is released by now.
fn with_next_step(error: Error, place: &Place, conf: &Conf, at: &Attachment) -> Error {
    match error.code {
        Code::CONFLICT => error.with_details(advice_on_second_add(at)),
        Code::ADDRESS_UNAVAILABLE => match full::advice(place, &conf.sets, &at.key.network) {
            Some(advice) => error.with_details(advice),
            None => error,
        },
        _ => error, // the store failed
    }
}

fn advice_on_second_add(at: &Attachment) -> String {
    let Key { network, container_id, ifname } = &at.key;
    let netns = &at.netns_path;
    format!(
        "its {:?} has the address from an earlier ADD; DEL frees it: \
         cni-multi net del {network} {netns} --container-id {container_id} --ifname {ifname}",
        ifname.as_str()
    )
}

fn held_addresses(place: &Place, owner: &Owner) -> Result<Vec<IpAddr>> {
    let store = FileStore::open(place, owner)?;
    store.map_or(Ok(vec![]), |store| held_by_attachment(&store, owner))
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

fn owner(key: &Key) -> Owner {
    Owner::new(key.container_id.as_str(), key.ifname.as_str())
}

fn nothing_held(key: &Key) -> Error {
    let msg = format!("host-local: Failed to find address added by container {}", key.container_id);
    let details = format!(
        "no address of network {:?} is held for its {:?}",
        key.network.as_str(),
        key.ifname.as_str()
    );
    Error::check(msg).with_details(details).about(&Aspect::Lease)
}

/// Verifies that the container holds the address. An address of another plugin, or of a range that
/// is no longer configured, is not ours to verify.
fn verify_held(ip: IpAddr, sets: &[RangeSet], held: &[IpAddr]) -> Result<()> {
    let is_ours = sets.iter().any(|set| set.contains(ip));
    if held.contains(&ip) || !is_ours { Ok(()) } else { Err(not_held(ip, held)) }
}

fn not_held(ip: IpAddr, held: &[IpAddr]) -> Error {
    Error::check(format!("address {ip} of prevResult is not held by this container"))
        .with_details(format_args!("it holds {}", joined(held, ", ")))
        .about(&Aspect::Lease)
}

/// Whether the lease has a valid owner. A lease without an interface name stays while any
/// attachment of its container is valid.
fn is_valid(owner: &Owner, valid: &ValidAttachments) -> bool {
    match &owner.ifname {
        Some(ifname) => valid.contains(&owner.container_id, ifname),
        None => valid.contains_container(&owner.container_id),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
