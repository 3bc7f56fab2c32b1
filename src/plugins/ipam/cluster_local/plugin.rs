//! The operations of the plugin.

use std::net::IpAddr;

use super::conf::{self, Conf, Scope};
use super::held::{Blocks, State};
use super::leases::{self, Leases};
use super::need::Wish;
use super::{add, machine_scope, status, sticky};
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Dns, IpConfig};
use crate::error::{Code, Error, ErrorList, Result};
#[cfg(feature = "cluster")]
use crate::plugin::OperatorCommand;
use crate::plugin::leases::LeaseStore;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::steps::allocation;
use crate::steps::allocation::files::{Place, attached};
use crate::steps::dns;

/// The `cluster-local` plugin.
pub struct ClusterLocal;

impl Plugin for ClusterLocal {
    const NAME: &'static str = "cluster-local";
    const KIND: Kind = Kind::Ipam;
    const ABOUT: &'static str = "addresses of ranges that several networks or hosts share";
    const LEASES: Option<&'static dyn LeaseStore> =
        Some(&Leases { confs: leases::confs, of: None });
    #[cfg(feature = "cluster")]
    const COMMANDS: &'static [OperatorCommand] = &[super::operator::COMMAND];
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let dns = conf.resolv_conf.as_deref().map_or(Ok(Dns::default()), dns::read_resolv_conf)?;
        let ips = addresses(cx, conf, at)?;
        Ok(AddResult { ips, routes: conf.routes.clone(), dns, ..AddResult::default() })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let place = conf.place(cx);
        let held = attached::held(&place, &at.key, Self::NAME)?;
        refuse_disputed(&place, &held)?;
        attached::verify(&allocated(cx, conf)?, &conf.sets, &held)
    }

    fn del(cx: &Context<'_>, _: &Conf, at: &Detachment) -> Result<()> {
        in_each_place(cx, |place| attached::release(place, &place.owner(&at.key)))
    }

    /// Pools that are used up are a warning: kubelet evicts the pods of a node that is not ready, and
    /// the next DEL frees an address.
    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        // Where a runtime supplies the ranges with ADD, nothing of the configuration was validated.
        let written = cx.config.value.get("ipam").and_then(|ipam| ipam.get("scope")?.as_str());
        let scope = match &conf.sets[..] {
            [] => Scope::read(written.unwrap_or_default())?,
            _ => conf.scope,
        };
        match scope {
            Scope::Machine => machine_scope::status(&conf.place(cx), conf),
            Scope::Cluster => {
                status::of(&conf::directory(cx), &conf::place(cx), conf, cx.deadline())
            }
        }
    }

    /// The daemon gives blocks back.
    fn gc(cx: &Context<'_>, _: &Conf, valid: &ValidAttachments) -> Result<()> {
        in_each_place(cx, |place| attached::release_invalid(place, valid))
    }

    /// The leases.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let (result, place) = (allocated(cx, conf)?, conf.place(cx));
        let leases = attached::leases_of(&result, &conf.sets, &place.owner(&at.key));
        let addresses: Vec<_> = leases.iter().map(|lease| lease.ip).collect();
        refuse_disputed(&place, &addresses).map_err(|e| e.with_code(Code::CONFLICT))?;
        attached::repair(&place, &leases, repairs)
    }
}

/// Calls a function for each place where the network may have leases; tries all of them.
fn in_each_place(cx: &Context<'_>, release: impl Fn(&Place) -> Result<()>) -> Result<()> {
    let realms = machine_scope::places(cx);
    let unread = realms.as_ref().map(drop).map_err(Error::clone);
    let places = std::iter::once(conf::place(cx)).chain(realms.unwrap_or_default());
    ErrorList::of(places.map(|place| release(&place)).chain([unread]))
}

/// The result of ADD, without the addresses that have no leases.
fn allocated(cx: &Context<'_>, conf: &Conf) -> Result<AddResult> {
    let mut result = cx.config.prev_result()?.unwrap_or_default();
    result.ips.retain(|ip| !conf.assigned.contains(&ip.address.addr()));
    Ok(result)
}

/// Fails if one of the addresses is in no block of this node, or in one that another node has, or has leases
/// in.
fn refuse_disputed(place: &Place, held: &[IpAddr]) -> Result<()> {
    let Some(own) = Blocks::read(place.dir())? else { return Ok(()) };
    for ip in held {
        let problem = match own.blocks.iter().find(|held| held.block.contains(*ip)) {
            None => format!("{ip} is in no block of this node"),
            Some(held) => {
                let why = match (held.state, held.contested) {
                    (State::Lost, _) => "another node has",
                    (_, true) => "another node has leases in",
                    _ => continue,
                };
                format!("{ip} is in block {}, which {why}", held.block.prefix())
            }
        };
        return Err(Error::check(problem).with_details("detach the container and attach it again"));
    }
    Ok(())
}

fn addresses(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<Vec<IpConfig>> {
    let (place, data_dir) = (conf.place(cx), conf::directory(cx));
    let name = conf.sticky.name(cx.args, at.ifname())?;
    let wish = Wish {
        data_dir: &data_dir,
        place: &place,
        network: &at.key.network,
        conf,
        owner: &place.owner(&at.key),
        names: sticky::of_sets(name.as_deref(), conf.sets.len()),
        deadline: cx.deadline(),
    };
    let allocated = match conf.scope {
        Scope::Machine => machine_scope::addresses(&wish),
        Scope::Cluster => add::addresses(&wish),
    };
    allocated.map_err(|e| with_next_step(e, &place, conf, at))
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
fn held_in(place: &Place, conf: &Conf) -> Option<Vec<IpAddr>> {
    let taken = place.taken().ok()?;
    let held: Vec<_> =
        taken.into_iter().filter(|ip| conf.sets.iter().any(|set| set.contains(*ip))).collect();
    (!held.is_empty()).then_some(held)
}
