//! `whereabouts` is [`cluster-local`](super::cluster_local) by another name: it translates the
//! configuration of the plugin of that name, whose networks keep their configurations.
//!
//! Leases and blocks are those of cluster-local, in its directory: the networks of both exclude each
//! other's addresses, one daemon serves both, and a network may change its type with leases.
//!
//! <https://github.com/k8snetworkplumbingwg/whereabouts>

mod conf;
mod document;
mod flat;
mod range;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use self::conf::Conf;
use super::cluster_local::ClusterLocal;
use super::cluster_local::conf as shared;
use super::cluster_local::leases::Leases;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{ErrorList, Result};
use crate::plugin::leases::LeaseStore;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::allocation::files::attached;

/// The `whereabouts` plugin.
pub struct Whereabouts;

impl Plugin for Whereabouts {
    const NAME: &'static str = "whereabouts";
    const KIND: Kind = Kind::Ipam;
    const ABOUT: &'static str = "cluster-local by configurations of whereabouts";
    const LEASES: Option<&'static dyn LeaseStore> =
        Some(&Leases { confs: conf::translated, of: Some(ClusterLocal::NAME) });
    const IS_ALIAS: bool = true;
    type Conf = Conf;

    /// The allocated addresses come first, then the assigned ones.
    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let mut result = transaction(|rb| {
            let mut result = AddResult::default();
            for part in &conf.parts {
                let of_realm = ClusterLocal::add(cx, part, at)?;
                rb.undo("release addresses", || {
                    attached::release(&part.place(cx), &part.place(cx).owner(&at.key))
                });
                result.ips.extend(of_realm.ips);
                result.routes = of_realm.routes; // each has all
            }
            Ok(result)
        })?;
        for ip in &mut result.ips {
            ip.gateway = conf.gateway_of(ip.address);
        }
        result.ips.extend(conf.assigned.iter().cloned());
        result.dns = conf.dns.clone();
        Ok(result)
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        conf.parts.iter().try_for_each(|part| ClusterLocal::check(cx, part, at))
    }

    fn del(cx: &Context<'_>, _: &Conf, at: &Detachment) -> Result<()> {
        ClusterLocal::del(cx, &shared::Conf::default(), at)
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        conf.parts.iter().try_for_each(|part| ClusterLocal::status(cx, part))
    }

    fn gc(cx: &Context<'_>, _: &Conf, valid: &ValidAttachments) -> Result<()> {
        ClusterLocal::gc(cx, &shared::Conf::default(), valid)
    }

    /// The leases.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        ErrorList::of(conf.parts.iter().map(|part| ClusterLocal::repair(cx, part, at, repairs)))
    }
}
