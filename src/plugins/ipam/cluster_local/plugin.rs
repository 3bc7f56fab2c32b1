//! The operations of the plugin.

use std::collections::HashSet;
use std::net::IpAddr;

use super::add::{self, Wish, free};
use super::conf::{self, Conf, Scope};
use super::held::{Blocks, State};
use super::leases::{self, Leases};
use super::pool::candidates;
use super::{client, machine_scope, node, sticky};
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Dns};
use crate::error::{Code, Error, ErrorList, Result, warn};
#[cfg(feature = "cluster")]
use crate::plugin::OperatorCommand;
use crate::plugin::leases::LeaseStore;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::steps::allocation::conf::AllocationConf;
use crate::steps::allocation::files::{Place, attached};
use crate::steps::allocation::{full_set, with_next_step};
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
        let AllocationConf { sets, routes, resolv_conf, .. } = &conf.allocation;
        let dns = resolv_conf.as_deref().map_or(Ok(Dns::default()), dns::read_resolv_conf)?;
        let place = conf.place(cx);
        let wish = Wish {
            data_dir: conf::directory(cx),
            network: &at.key.network,
            conf,
            owner: place.owner(&at.key),
            names: sticky::names(&conf.sticky, cx.args, at.ifname(), sets.len())?,
            deadline: cx.deadline(),
            place,
        };
        let allocated = match conf.scope {
            Scope::Machine => machine_scope::addresses(&wish),
            Scope::Cluster => add::addresses(&wish),
        };
        let held = || wish.place.taken_of(&sets.iter().collect::<Vec<_>>());
        let ips = allocated.map_err(|e| with_next_step(e, at, held))?;
        Ok(AddResult { ips, routes: routes.clone(), dns, ..AddResult::default() })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let place = conf.place(cx);
        let held = attached::held(&place, &at.key, Self::NAME)?;
        refuse_disputed(&place, &held)?;
        attached::verify(&allocated(cx, conf)?, &conf.allocation.sets, &held)
    }

    fn del(cx: &Context<'_>, _: &Conf, at: &Detachment) -> Result<()> {
        in_each_place(cx, |place| attached::release(place, &place.owner(&at.key)))
    }

    /// Pools that are used up are a warning: kubelet evicts the pods of a node that is not ready, and
    /// the next DEL frees an address.
    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        // Where a runtime supplies the ranges with ADD, nothing of the configuration was validated.
        let written = cx.config.value.get("ipam").and_then(|ipam| ipam.get("scope")?.as_str());
        let scope = match &conf.allocation.sets[..] {
            [] => Scope::read(written.unwrap_or_default())?,
            _ => conf.scope,
        };
        let place = conf.place(cx);
        place.require_usable()?;
        let sets = conf.allocation.sets.iter().zip(&conf.terms.pools);
        if scope == Scope::Machine {
            for (set, pool) in sets {
                if place.is_full(candidates(pool.spans(), None), |ip| set.contains(ip))? {
                    warn(format_args!("cluster-local: {}", full_set(set)));
                }
            }
            return Ok(());
        }
        let own = Blocks::read(place.dir())?;
        let mut full = vec![];
        for (set, pool) in sets {
            let is_full = own.as_ref().map_or(Ok(true), |own| {
                let all = free(own, pool.spans(), &HashSet::new(), None);
                place.is_full(all.into_iter(), |ip| own.has(ip) && pool.allocates(ip))
            });
            full.extend(is_full?.then_some(set));
        }
        let is_confirmed = node::is_confirmed(&conf::directory(cx));
        if full.is_empty() && is_confirmed.map_err(|e| e.with_code(Code::NOT_AVAILABLE))? {
            return Ok(());
        }
        client::status(cx.deadline()).map_err(|e| e.with_code(Code::NOT_AVAILABLE))?;
        let has_blocks = own.is_some_and(|own| !own.blocks.is_empty());
        for set in full.into_iter().filter(|_| has_blocks) {
            warn(format_args!(
                "cluster-local: this node has no free address of {set}; the daemon claims more, if the cluster has any"
            ));
        }
        Ok(())
    }

    /// The daemon gives blocks back.
    fn gc(cx: &Context<'_>, _: &Conf, valid: &ValidAttachments) -> Result<()> {
        in_each_place(cx, |place| attached::release_invalid(place, valid))
    }

    /// The leases.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let (result, place) = (allocated(cx, conf)?, conf.place(cx));
        let leases = attached::leases_of(&result, &conf.allocation.sets, &place.owner(&at.key));
        let addresses: Vec<_> = leases.iter().map(|lease| lease.ip).collect();
        refuse_disputed(&place, &addresses).map_err(|e| e.with_code(Code::CONFLICT))?;
        attached::repair(&place, &leases, repairs)
    }
}

/// Calls a function for each place where the network may have leases; tries all of them.
fn in_each_place(cx: &Context<'_>, release: impl Fn(&Place) -> Result<()>) -> Result<()> {
    ErrorList::of(conf::places(cx).into_iter().map(|place| release(&place?)))
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
