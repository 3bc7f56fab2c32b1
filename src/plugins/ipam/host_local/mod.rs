//! `host-local` allocates addresses from configured ranges and keeps the leases in files on this
//! host.
//!
//! The store is compatible with the reference's, in both directions.
//! <https://www.cni.dev/plugins/current/ipam/host-local/>

mod conf;

use std::net::IpAddr;
use std::path::Path;

use self::conf::{Conf, DEFAULT_DATA_DIR};
use crate::cni::attachment::NetworkName;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Dns};
use crate::error::{Code, Result, warn};
use crate::plugin::leases::{Holding, Holdings, Incoming, LeaseImporter, LeaseStore};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf as _};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::allocation::files::operator;
use crate::steps::allocation::files::{FileStore, Place, attached, lease};
use crate::steps::allocation::ranges::RangeSet;
use crate::steps::allocation::{self, Need, Owner, first_free, full_set};
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
            Code::ADDRESS_UNAVAILABLE => {
                match advice_on_full(&place, &conf.sets, &at.key.network) {
                    Some(advice) => e.with_details(advice),
                    None => e,
                }
            }
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
        for set in full_sets(&place, &conf.sets)? {
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

/// What the reader of a failed ADD can do about full sets; None if no set is full. Looks into every
/// namespace of the machine, so it is for failures only.
fn advice_on_full(place: &Place, sets: &[RangeSet], network: &NetworkName) -> Option<String> {
    let full = full_sets(place, sets).ok().filter(|full| !full.is_empty())?;
    let taken = place.taken().ok()?;
    let held: Vec<IpAddr> =
        taken.into_iter().filter(|ip| full.iter().any(|set| set.contains(*ip))).collect();
    Some(allocation::advice_on_full_sets(&held, network))
}

/// The sets without a free address. Runtimes call STATUS every few seconds, so the search ends at the
/// first free address and takes no lock. A torn lease counts as free: the next ADD frees it.
fn full_sets<'s>(place: &Place, sets: &'s [RangeSet]) -> Result<Vec<&'s RangeSet>> {
    let mut full = vec![];
    for (number, set) in sets.iter().enumerate() {
        let last = lease::last_reserved(place.dir(), number);
        let free = first_free(set.candidates(last), &mut &*place)?;
        if free.is_none() && !place.has_torn(|ip| set.contains(ip))? {
            full.push(set);
        }
    }
    Ok(full)
}

/// The leases of the file store.
struct Leases;

impl LeaseStore for Leases {
    fn holdings(&self, cx: &Context<'_>) -> Result<Holdings> {
        let sets = sets(cx).unwrap_or_default(); // leases are listed whatever the ranges are
        operator::holdings(&conf::place(cx), &sets)
    }

    fn networks(&self) -> Result<Vec<NetworkName>> {
        Ok(operator::networks(Path::new(DEFAULT_DATA_DIR)))
    }

    fn shares_place_of(&self) -> Option<&'static str> {
        None
    }

    fn free(&self, cx: &Context<'_>, held: &Holding) -> Result<bool> {
        operator::free(&conf::place(cx), held)
    }

    fn importer(&self) -> Option<&dyn LeaseImporter> {
        Some(self)
    }
}

impl LeaseImporter for Leases {
    fn preview(&self, cx: &Context<'_>, leases: &[Holding]) -> Result<usize> {
        operator::preview(&conf::place(cx), &sets(cx)?, leases)
    }

    fn import(
        &self,
        cx: &Context<'_>,
        incoming: &Incoming<'_>,
        then: &mut dyn FnMut() -> Result<()>,
    ) -> Result<usize> {
        operator::import(&conf::place(cx), &sets(cx)?, incoming, then)
    }
}

/// The range sets of the configuration.
fn sets(cx: &Context<'_>) -> Result<Vec<RangeSet>> {
    let mut conf: Conf = cx.config.decode()?;
    conf.validate(cx)?;
    Ok(conf.sets)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
