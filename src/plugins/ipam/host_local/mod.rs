//! `host-local` allocates addresses from configured ranges and keeps the leases in files on this
//! host.
//!
//! The store is compatible with the reference's, in both directions.
//! <https://www.cni.dev/plugins/current/ipam/host-local/>

mod conf;
mod full;
mod leases;

use self::conf::Conf;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Dns, IpConfig};
use crate::error::{Code, Error, Result};
use crate::plugin::leases::LeaseStore;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::allocation::files::{FileStore, Place, check, release, repairing};
use crate::steps::allocation::owner::Owner;
use crate::steps::allocation::{self, Need, advice};
use crate::steps::resolv_conf;

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
        let allocated = allocate(&place, conf, &Owner::of(&at.key));
        let ips = allocated.map_err(|e| with_next_step(e, &place, conf, at))?;
        Ok(AddResult { ips, routes: conf.routes.clone(), dns, ..AddResult::default() })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let held = check::held(&conf::place(cx), &at.key, Self::NAME)?;
        check::verify(&cx.config.prev_result()?.unwrap_or_default(), &conf.sets, &held)
    }

    fn del(cx: &Context<'_>, _: &Conf, at: &Detachment) -> Result<()> {
        release::of_attachment(&conf::place(cx), &Owner::of(&at.key))
    }

    /// A full range set is a warning: kubelet evicts the pods of a node that is not ready, and the
    /// next DEL frees an address.
    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let place = conf::place(cx);
        place.require_usable()?;
        full::warn_of_full_sets(&place, &conf.sets)
    }

    fn gc(cx: &Context<'_>, _: &Conf, valid: &ValidAttachments) -> Result<()> {
        release::of_invalid(&conf::place(cx), valid)
    }

    /// The leases.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let result = cx.config.prev_result()?.unwrap_or_default();
        let leases = repairing::leases_of(&result, &conf.sets, &Owner::of(&at.key));
        repairing::repair(&conf::place(cx), &leases, repairs)
    }
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
        Code::CONFLICT => error.with_details(advice::on_second_add(at)),
        Code::ADDRESS_UNAVAILABLE => match full::advice(place, &conf.sets, &at.key.network) {
            Some(advice) => error.with_details(advice),
            None => error,
        },
        _ => error, // the store failed
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
