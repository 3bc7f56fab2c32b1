//! `portmap`: forwards ports of the host to ports of the container.
//! <https://www.cni.dev/plugins/current/meta/portmap/>
//!
//! It is chained after the plugin that created the container's interface. Only packets addressed to
//! the host itself are redirected. The default backend is nftables over netlink; `backend:
//! "iptables"` uses the chains and comments of the reference.

mod condition;
mod conf;
mod iptables;
mod mapping;
mod nft;
mod of_reference;

pub use self::conf::Conf;

use std::collections::BTreeSet;
use std::net::IpAddr;

use self::conf::Backend;
use self::mapping::{Forward, Protocol, Released};
pub use self::nft::LAYOUT;
use crate::cni::attachment::Key;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, IpConfig};
use crate::error::{Error, ErrorList, Result, warn};
use crate::net::conntrack::{Conntrack, Flow};
use crate::net::sysctl::Sysctl;
use crate::plugin::{Attachment, Context, Detachment, Handles, Kind, Plugin};
use crate::rollback::transaction;
use crate::steps::prev_result;

/// The `portmap` plugin.
pub struct Portmap;

impl Plugin for Portmap {
    const NAME: &'static str = "portmap";
    const KIND: Kind = Kind::Meta;
    const ABOUT: &'static str = "ports of the host lead to ports of the container";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let handles = cx.handles();
        let result = prev_result::require_chained(cx, "must be called as chained plugin")?;
        let forwards = forwards(conf, &result, at)?;
        if forwards.is_empty() {
            return Ok(result);
        }
        refuse_taken(handles, &at.key, &forwards)?;
        transaction(|rb| {
            match conf.backend(handles)? {
                Backend::Nftables => {
                    nft::create(handles, &at.key, conf, &forwards)?;
                    rb.undo("close the ports", || nft::delete(handles, &at.key).map(drop));
                }
                Backend::Iptables => iptables::create(handles, &at.key, conf, &forwards, rb)?,
            }
            // Last, so that no rollback undoes it: an ADD that loses the race for a port would
            // switch the setting off for the ADD that has the port.
            if conf.snat {
                let_localhost_out(cx, &forwards)?;
            }
            forget_flows_to_others(cx, &forwards);
            Ok(result)
        })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let handles = cx.handles();
        let result = prev_result::require(cx)?;
        let forwards = forwards(conf, &result, at)?;
        if forwards.is_empty() {
            return Ok(());
        }
        // iptables rules are accepted with any backend: the reference may have made them, or an ADD
        // of ours with another configuration.
        if let Some(missing) = iptables::missing(handles, &at.key, conf, &forwards)? {
            match conf.backend(handles)? {
                Backend::Iptables => Err(missing),
                Backend::Nftables => nft::verify(handles, &at.key, conf, &forwards),
            }?;
        }
        let localnets = if conf.snat { localnets(cx, &forwards)? } else { vec![] };
        match localnets.iter().find(|localnet| localnet.read().is_ok_and(|value| value != "1")) {
            Some(off) => Err(Error::check(format!(
                "sysctl {off} is off, so the ports do not answer at 127.0.0.1"
            ))),
            None => Ok(()),
        }
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        let handles = cx.handles();
        let mut errors = ErrorList::default();
        let mut released = errors.push(nft::delete(handles, &at.key)).unwrap_or_default();
        errors.push(of_reference::delete(handles, &at.key));
        released.extend(errors.push(iptables::delete(handles, &at.key)).unwrap_or_default());
        forget_flows_of(&released);
        errors.finish()
    }

    /// The runtime names the containers with published ports only at ADD. A backend that cannot
    /// work is a warning and not an error: otherwise a runtime would start no container at all, for
    /// a feature that few of them need.
    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let handles = cx.handles();
        let ready = conf.backend(handles).and_then(|backend| match backend {
            Backend::Nftables => nft::require(handles),
            Backend::Iptables => iptables::require(handles),
        });
        if let Err(error) = ready {
            warn(format_args!("portmap: no port can be published: {error}"));
        }
        Ok(())
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        let handles = cx.handles();
        let mut errors = ErrorList::default();
        let mut released =
            errors.push(nft::collect_garbage(handles, &cx.config.name, valid)).unwrap_or_default();
        released.extend(
            errors
                .push(iptables::collect_garbage(handles, &cx.config.name, valid))
                .unwrap_or_default(),
        );
        forget_flows_of(&released);
        errors.finish()
    }
}

/// Refuses ports that are taken, also those taken by another backend or by the reference.
fn refuse_taken(handles: &Handles, key: &Key, forwards: &[Forward]) -> Result<()> {
    nft::refuse_taken(handles, key, forwards)?;
    of_reference::refuse_taken(handles, key, forwards)?;
    iptables::refuse_taken(handles, key, forwards)
}

/// Plans the forwards to the container's first address of each family.
fn forwards(conf: &Conf, result: &AddResult, at: &Attachment) -> Result<Vec<Forward>> {
    let is_in_container = |ip: &&IpConfig| match ip.interface.map(usize::try_from) {
        Some(Ok(index)) => result
            .interfaces
            .get(index)
            .is_none_or(|interface| interface.name == at.ifname() && !interface.sandbox.is_empty()),
        _ => true,
    };
    let first = |is_v6: bool| {
        result
            .ips
            .iter()
            .filter(is_in_container)
            .find(|ip| ip.address.addr().is_ipv6() == is_v6)
            .map(|ip| ip.address)
    };
    let v4 = first(false);
    let v6 = first(true);
    if !conf.mappings.is_empty() && v4.is_none() && v6.is_none() {
        let problem = format!(
            "interface {:?} has no address, expected one for the ports to lead to",
            at.ifname()
        );
        return Err(Error::config("prevResult.ips", problem));
    }
    mapping::plan(&conf.mappings, v4, v6)
}

/// Deletes UDP flows to a port of the host that began before the port led here. They would never
/// get here: the kernel does not evaluate the rules for them again.
fn forget_flows_to_others(cx: &Context<'_>, forwards: &[Forward]) {
    let is_own = |ip| cx.host().and_then(|host| host.is_local(ip)).unwrap_or(false);
    let of_udp = |forward: &&Forward| forward.protocol == Protocol::Udp;
    let ports = |is_v6| {
        of_family(
            forwards.iter().filter(of_udp).map(|forward| (forward.to.addr(), forward.host_port)),
            is_v6,
        )
    };
    let leads_elsewhere = |flow: &Flow, forward: &Forward| {
        flow.port == forward.host_port
            && flow.answering != forward.to.addr()
            && forward.answers_at(flow.destination)
    };
    let is_stale = |flow: &Flow| {
        forwards.iter().filter(of_udp).any(|forward| leads_elsewhere(flow, forward))
            && is_own(flow.destination)
    };
    forget(ports, is_stale);
}

/// Deletes UDP flows to a container that is gone, which would not get to the next one either.
fn forget_flows_of(released: &[Released]) {
    let of_udp = |gone: &&Released| gone.protocol == Protocol::Udp;
    let ports = |is_v6| {
        of_family(released.iter().filter(of_udp).map(|gone| (gone.to, gone.host_port)), is_v6)
    };
    let led_there =
        |flow: &Flow, gone: &Released| flow.port == gone.host_port && flow.answering == gone.to;
    forget(ports, |flow| released.iter().filter(of_udp).any(|gone| led_there(flow, gone)));
}

/// Returns the host's ports that lead to containers' addresses of one family.
fn of_family(forwards: impl Iterator<Item = (IpAddr, u16)>, is_v6: bool) -> BTreeSet<u16> {
    forwards.filter(|(to, _)| to.is_ipv6() == is_v6).map(|(_, port)| port).collect()
}

fn forget(ports: impl Fn(bool) -> BTreeSet<u16>, is_stale: impl Fn(&Flow) -> bool) {
    for is_v6 in [false, true] {
        let ports = ports(is_v6);
        if !ports.is_empty()
            && let Err(error) = Conntrack::open()
                .and_then(|conntrack| conntrack.forget_udp(is_v6, &ports, &is_stale))
        {
            warn(error); // the ports are open nevertheless
        }
    }
}

/// Switches on the settings of [`localnets`].
fn let_localhost_out(cx: &Context<'_>, forwards: &[Forward]) -> Result<()> {
    localnets(cx, forwards)?.iter().try_for_each(|localnet| localnet.ensure("1"))
}

/// LOOPBACK_IFINDEX: `lo` has this number in every namespace.
const LOOPBACK: u32 = 1;

/// Returns the settings that let packets with the source 127.0.0.1 out to the containers. The
/// reference leaves them on as well.
fn localnets(cx: &Context<'_>, forwards: &[Forward]) -> Result<Vec<Sysctl>> {
    let Some(ip) = forwards.iter().map(|forward| forward.to.addr()).find(IpAddr::is_ipv4) else {
        return Ok(vec![]);
    };
    let host = cx.host()?;
    let link = match host.link_towards(ip) {
        Ok(LOOPBACK) => None, // the host's own address, not a container's
        Ok(index) => host.find_link_by_index(index)?,
        // then even the container's own network does not reach it
        Err(error) if error.is_unreachable() => None,
        Err(error) => return Err(error),
    };
    Ok(link.into_iter().map(|link| Sysctl::ipv4_conf(&link.name, "route_localnet")).collect())
}
