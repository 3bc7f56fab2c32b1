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
use super::cluster_local::leases::Leases;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::Result;
use crate::plugin::leases::LeaseStore;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;

/// The `whereabouts` plugin.
pub struct Whereabouts;

impl Plugin for Whereabouts {
    const NAME: &'static str = "whereabouts";
    const KIND: Kind = Kind::Ipam;
    const ABOUT: &'static str = "cluster-local by configurations of whereabouts";
    const LEASES: Option<&'static dyn LeaseStore> =
        Some(&Leases { conf: conf::translated, of: Some(ClusterLocal::NAME) });
    const NO_EFFECT: &'static [&'static str] = document::NO_EFFECT;
    const IS_ALIAS: bool = true;
    type Conf = Conf;

    /// The allocated addresses come first, then the assigned ones.
    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let mut result = ClusterLocal::add(cx, &conf.shared, at)?;
        for ip in &mut result.ips {
            ip.gateway = conf.gateway_of(ip.address);
        }
        result.ips.extend(conf.assigned.iter().cloned());
        result.dns = conf.dns.clone();
        Ok(result)
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        ClusterLocal::check(cx, &conf.shared, at)
    }

    fn del(cx: &Context<'_>, conf: &Conf, at: &Detachment) -> Result<()> {
        ClusterLocal::del(cx, &conf.shared, at)
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        ClusterLocal::status(cx, &conf.shared)
    }

    fn gc(cx: &Context<'_>, conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        ClusterLocal::gc(cx, &conf.shared, valid)
    }

    /// The leases.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        ClusterLocal::repair(cx, &conf.shared, at, repairs)
    }
}
