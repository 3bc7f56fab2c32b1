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
use crate::cni::result::{AddResult, Dns};
use crate::error::{Code, Result, warn};
use crate::plugin::leases::LeaseStore;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::allocation::Owner;
use crate::steps::allocation::files::{FileStore, attached};
use crate::steps::allocation::{self, Need, full_set};
use crate::steps::dns;

/// The `host-local` plugin.
pub struct HostLocal;

impl Plugin for HostLocal {
    const NAME: &'static str = "host-local";
    const KIND: Kind = Kind::Ipam;
    const ABOUT: &'static str = "addresses of configured ranges, remembered in files";
    const LEASES: Option<&'static dyn LeaseStore> = Some(&leases::Leases);
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let dns = conf.resolv_conf.as_deref().map_or(Ok(Dns::default()), dns::read_resolv_conf)?;
        let place = conf::place(cx);
        let owner = &Owner::of(&at.key);
        let allocated = FileStore::create(&place, owner).and_then(|mut store| {
            let need = Need { sets: &conf.sets, requested: &conf.requested, owner };
            transaction(|rb| allocation::allocate(&need, &mut store, rb))
                .inspect_err(|_| store.forget_what_is_gone())
        });
        // An error says who holds the addresses, and what frees one. The lock is released by now.
        let ips = allocated.map_err(|e| match e.code {
            Code::CONFLICT => e.with_details(allocation::advice_on_second_add(at)),
            Code::ADDRESS_UNAVAILABLE => match full::advice(&place, &conf.sets, &at.key.network) {
                Some(advice) => e.with_details(advice),
                None => e,
            },
            _ => e, // the store failed
        })?;
        Ok(AddResult { ips, routes: conf.routes.clone(), dns, ..AddResult::default() })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let held = attached::held(&conf::place(cx), &at.key, Self::NAME)?;
        attached::verify(&cx.config.prev_result()?.unwrap_or_default(), &conf.sets, &held)
    }

    fn del(cx: &Context<'_>, _: &Conf, at: &Detachment) -> Result<()> {
        attached::release(&conf::place(cx), &Owner::of(&at.key))
    }

    /// A full range set is a warning: kubelet evicts the pods of a node that is not ready, and the
    /// next DEL frees an address.
    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let place = conf::place(cx);
        place.require_usable()?;
        for set in full::full_sets(&place, &conf.sets)? {
            warn(format_args!("{}: {}", Self::NAME, full_set(set)));
        }
        Ok(())
    }

    fn gc(cx: &Context<'_>, _: &Conf, valid: &ValidAttachments) -> Result<()> {
        attached::release_invalid(&conf::place(cx), valid)
    }

    /// The leases.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let result = cx.config.prev_result()?.unwrap_or_default();
        let leases = attached::leases_of(&result, &conf.sets, &Owner::of(&at.key));
        attached::repair(&conf::place(cx), &leases, repairs)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
