//! The operations of the plugin.

use super::add::{self, Site};
use super::claims::Scope;
use super::conf::{self, Conf};
use super::leases::{self, Leases};
use super::need::Wish;
use super::{contested, node, prune, status, sticky};
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Dns, IpConfig};
use crate::error::{Code, Error, Result};
#[cfg(feature = "cluster")]
use crate::plugin::OperatorCommand;
use crate::plugin::leases::LeaseStore;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::steps::allocation;
use crate::steps::allocation::Owner;
use crate::steps::allocation::files::{Place, attached};
use crate::steps::dns;

/// The `cluster-local` plugin.
pub struct ClusterLocal;

impl Plugin for ClusterLocal {
    const NAME: &'static str = "cluster-local";
    const KIND: Kind = Kind::Ipam;
    const ABOUT: &'static str = "addresses of ranges that several networks or hosts share";
    const LEASES: Option<&'static dyn LeaseStore> = Some(&Leases { conf: leases::conf, of: None });
    #[cfg(feature = "cluster")]
    const COMMANDS: &'static [OperatorCommand] = &[super::operator::COMMAND];
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let dns = conf.resolv_conf.as_deref().map_or(Ok(Dns::default()), dns::read_resolv_conf)?;
        let ips = addresses(cx, conf, at)?;
        Ok(AddResult { ips, routes: conf.routes.clone(), dns, ..AddResult::default() })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let place = conf::place(cx);
        let held = attached::held(&place, &at.key, Self::NAME)?;
        contested::refuse(place.dir(), &held)?;
        attached::verify(&allocated(cx, conf)?, &conf.sets, &held)
    }

    fn del(cx: &Context<'_>, _: &Conf, at: &Detachment) -> Result<()> {
        attached::release(&conf::place(cx), &Owner::of(&at.key))
    }

    /// Pools that are used up are a warning: kubelet evicts the pods of a node that is not ready, and
    /// the next DEL frees an address.
    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let data_dir = conf::directory(cx);
        let Some(realm) = &conf.terms.realm else { return Ok(()) };
        let scope =
            Scope { data_dir: &data_dir, network: &cx.config.name, realm, deadline: cx.deadline() };
        status::of(&conf::place(cx), conf, &scope)
    }

    fn gc(cx: &Context<'_>, _: &Conf, valid: &ValidAttachments) -> Result<()> {
        let place = conf::place(cx);
        attached::release_invalid(&place, valid)?;
        if valid.is_look() || node::is_of_cluster() { Ok(()) } else { prune::prune(&place) }
    }

    /// The leases.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let (result, place) = (allocated(cx, conf)?, conf::place(cx));
        let leases = attached::leases_of(&result, &conf.sets, &Owner::of(&at.key));
        let addresses: Vec<_> = leases.iter().map(|lease| lease.ip).collect();
        contested::refuse(place.dir(), &addresses).map_err(|e| e.with_code(Code::CONFLICT))?;
        attached::repair(&place, &leases, repairs)
    }
}

/// The result of ADD, without the addresses that have no leases.
fn allocated(cx: &Context<'_>, conf: &Conf) -> Result<AddResult> {
    let mut result = cx.config.prev_result()?.unwrap_or_default();
    result.ips.retain(|ip| !conf.assigned.contains(&ip.address.addr()));
    Ok(result)
}

fn addresses(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<Vec<IpConfig>> {
    let place = conf::place(cx);
    let owner = Owner::of(&at.key);
    let name = conf.sticky.name(cx.args, at.ifname())?;
    let data_dir = conf::directory(cx);
    let site = Site { data_dir: &data_dir, network: &at.key.network, deadline: cx.deadline() };
    let names = sticky::of_sets(name.as_deref(), conf.sets.len());
    let wish = Wish { place: &place, conf, owner: &owner, names };
    add::addresses(&wish, &site).map_err(|e| with_next_step(e, &place, conf, at))
}

/// Adds who holds the addresses, and what frees one. The locks are released by now.
fn with_next_step(error: Error, place: &Place, conf: &Conf, at: &Attachment) -> Error {
    match error.code {
        Code::CONFLICT => error.with_details(allocation::advice_on_second_add(at)),
        Code::ADDRESS_UNAVAILABLE => match held_in(place, conf) {
            Some(held) => {
                error.with_details(allocation::advice_on_full_sets(&held, &at.key.network))
            }
            None => error,
        },
        _ => error, // the store failed, or the advice is there already
    }
}

/// The addresses with leases, if the network has any.
fn held_in(place: &Place, conf: &Conf) -> Option<Vec<std::net::IpAddr>> {
    let taken = place.taken().ok()?;
    let held: Vec<_> =
        taken.into_iter().filter(|ip| conf.sets.iter().any(|set| set.contains(*ip))).collect();
    (!held.is_empty()).then_some(held)
}
