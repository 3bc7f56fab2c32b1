//! `host-local` allocates addresses from configured ranges and keeps the leases in files on this
//! host.
//!
//! The store is compatible with the reference's, in both directions.
//! <https://www.cni.dev/plugins/current/ipam/host-local/>

mod conf;

use std::path::Path;

use self::conf::{Conf, DEFAULT_DATA_DIR};
use crate::cni::attachment::NetworkName;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Dns};
use crate::error::{Result, warn};
use crate::plugin::leases::LeaseStore;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf as _};
use crate::repair::Repairs;
use crate::steps::allocation::conf::AllocationConf;
use crate::steps::allocation::files::operator::{self, FileLeases};
use crate::steps::allocation::files::{FileStore, Place, attached, lease};
use crate::steps::allocation::ranges::RangeSet;
use crate::steps::allocation::{self, Everything, Need, Owner, full_set};
use crate::steps::dns;

/// The `host-local` plugin.
pub struct HostLocal;

impl Plugin for HostLocal {
    const NAME: &'static str = "host-local";
    const KIND: Kind = Kind::Ipam;
    const ABOUT: &'static str = "addresses of configured ranges, remembered in files";
    const LEASES: Option<&'static dyn LeaseStore> = Some(&Leases);
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let AllocationConf { sets, requested, routes, resolv_conf } = &conf.allocation;
        let dns = resolv_conf.as_deref().map_or(Ok(Dns::default()), dns::read_resolv_conf)?;
        let place = conf::place(cx);
        let owner = &Owner::of(&at.key);
        let allocated = FileStore::create(&place, owner).and_then(|mut store| {
            let need = Need { sets, requested, owner };
            allocation::allocate(&need, &mut store, &Everything, || Ok(()))
        });
        let held = || place.taken_of(&full_sets(&place, sets)?);
        let ips = allocated.map_err(|e| allocation::with_next_step(e, at, held))?;
        Ok(AddResult { ips, routes: routes.clone(), dns, ..AddResult::default() })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let held = attached::held(&conf::place(cx), &at.key, Self::NAME)?;
        let result = cx.config.prev_result()?.unwrap_or_default();
        attached::verify(&result, &conf.allocation.sets, &held)
    }

    fn del(cx: &Context<'_>, _: &Conf, at: &Detachment) -> Result<()> {
        attached::release(&conf::place(cx), &Owner::of(&at.key))
    }

    /// A full range set is a warning: kubelet evicts the pods of a node that is not ready, and the
    /// next DEL frees an address.
    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let place = conf::place(cx);
        place.require_usable()?;
        for set in full_sets(&place, &conf.allocation.sets)? {
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
        let leases = attached::leases_of(&result, &conf.allocation.sets, &Owner::of(&at.key));
        attached::repair(&conf::place(cx), &leases, repairs)
    }
}

/// The sets without a free address.
fn full_sets<'s>(place: &Place, sets: &'s [RangeSet]) -> Result<Vec<&'s RangeSet>> {
    let mut full = vec![];
    for (number, set) in sets.iter().enumerate() {
        let last = lease::last_reserved(place.dir(), number);
        if place.is_full(set.candidates(last), |ip| set.contains(ip))? {
            full.push(set);
        }
    }
    Ok(full)
}

/// The leases of the file store.
struct Leases;

impl FileLeases for Leases {
    fn configured(&self, cx: &Context<'_>) -> Result<Vec<(Place, Vec<RangeSet>)>> {
        let mut conf: Conf = cx.config.decode()?;
        conf.validate(cx)?;
        Ok(vec![(conf::place(cx), conf.allocation.sets)])
    }

    fn places(&self, cx: &Context<'_>) -> Vec<Result<Place>> {
        vec![Ok(conf::place(cx))]
    }

    fn networks(&self) -> Result<Vec<NetworkName>> {
        Ok(operator::networks(Path::new(DEFAULT_DATA_DIR)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
