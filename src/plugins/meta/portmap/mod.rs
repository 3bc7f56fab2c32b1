//! `portmap`: forwards ports of the host to ports of the container.
//! <https://www.cni.dev/plugins/current/meta/portmap/>
//!
//! It is chained after the plugin that created the container's interface. Only packets addressed to
//! the host itself are redirected. The default backend is nftables over netlink; `backend:
//! "iptables"` uses the chains and comments of the reference.

mod condition;
mod conf;
mod iptables;
mod listener;
mod mapping;
mod nft;
mod of_reference;
mod publication;
mod rules;

pub use self::conf::Conf;

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::errno::Errno;

use self::mapping::{Forward, Protocol, Released};
pub use self::nft::LAYOUT;
use self::publication::Publication;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Error, ErrorList, Result, warn};
use crate::family::Family;
use crate::net::conntrack::{Conntrack, Flow};
use crate::net::netlink::{Link, Netlink};
use crate::net::sysctl::Sysctl;
use crate::plugin::{Attachment, Context, Detachment, Handles, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
use crate::steps::backend::Backend;
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
        let ports = Publication::plan(conf, &result, at)?;
        if ports.is_empty() {
            return Ok(result);
        }
        refuse_taken(handles, &ports)?;
        transaction(|rb| {
            open(handles, &ports, rb)?;
            // Last, so that no rollback undoes it: an ADD that loses the race for a port would
            // switch the setting off for the ADD that has the port.
            let_localhost_out(cx, &ports)?;
            forget_flows_to_others(cx, &ports.forwards);
            Ok(())
        })?;
        listener::warn_of_each(handles, &ports);
        Ok(result)
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let handles = cx.handles();
        let result = prev_result::require(cx)?;
        let ports = Publication::plan(conf, &result, at)?;
        if ports.is_empty() {
            return Ok(());
        }
        ErrorList::of([verify(handles, &ports), verify_localhost_gets_out(cx, &ports)])
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        let handles = cx.handles();
        let mut errors = ErrorList::default();
        let mut released = errors.push(nft::delete(handles, &at.key)).unwrap_or_default();
        errors.push(of_reference::delete(handles, &at.key));
        released.extend(errors.push(iptables::delete(handles, &at.key)).unwrap_or_default());
        forget_flows_of(handles, released);
        errors.finish()
    }

    /// The runtime names the containers with published ports only at ADD. A backend that cannot
    /// work is a warning and not an error: otherwise a runtime would start no container at all, for
    /// a feature that few of them need.
    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        if let Err(error) = require_backend(cx.handles(), conf) {
            warn(format_args!("portmap: no port can be published: {error}"));
        }
        Ok(())
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        let handles = cx.handles();
        let mut errors = ErrorList::default();
        let by_nft = nft::collect_garbage(handles, &cx.config.name, valid);
        let mut released = errors.push(by_nft).unwrap_or_default();
        let by_iptables = iptables::collect_garbage(handles, &cx.config.name, valid);
        released.extend(errors.push(by_iptables).unwrap_or_default());
        forget_flows_of(handles, released);
        errors.finish()
    }

    /// Publishes the ports again, and lets 127.0.0.1 reach them.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let result = prev_result::require(cx)?;
        let ports = Publication::plan(conf, &result, at)?;
        if ports.is_empty() {
            return Ok(());
        }
        let verified = verify(cx.handles(), &ports);
        repairs.make_unless(verified, format_args!("publish {ports}"), || reopen(cx, &ports))?;
        let_localhost_out_again(cx, &ports, &result, repairs)
    }
}

/// Verifies the rules of the ports. Rules of iptables are accepted with any backend: the reference
/// may have made them, or an ADD of ours with another configuration.
fn verify(handles: &Handles, ports: &Publication<'_>) -> Result<()> {
    let Some(missing) = iptables::missing(handles, ports)? else { return Ok(()) };
    match ports.conf.backend(handles)? {
        Backend::Iptables => Err(missing),
        Backend::Nftables => nft::verify(handles, ports),
    }
}

fn require_backend(handles: &Handles, conf: &Conf) -> Result<()> {
    match conf.backend(handles)? {
        Backend::Nftables => nft::require(handles),
        Backend::Iptables => iptables::require(handles),
    }
}

/// Refuses ports that are taken, also those taken by another backend or by the reference.
fn refuse_taken(handles: &Handles, ports: &Publication<'_>) -> Result<()> {
    nft::refuse_taken(handles, ports)?;
    of_reference::refuse_taken(handles, ports)?;
    iptables::refuse_taken(handles, ports)
}

/// Opens the ports with the configured backend.
fn open<'a>(handles: &'a Handles, ports: &Publication<'a>, rb: &mut Rollback<'a>) -> Result<()> {
    match ports.conf.backend(handles)? {
        Backend::Nftables => open_by_nft(handles, ports, rb),
        Backend::Iptables => iptables::create(handles, ports, rb),
    }
}

fn open_by_nft<'a>(
    handles: &'a Handles,
    ports: &Publication<'a>,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    nft::create(handles, ports)?;
    let key = ports.key;
    rb.undo("close the ports", move || nft::delete(handles, key).map(drop));
    Ok(())
}

/// Opens ports that were closed. Flows of UDP may have begun in the meantime.
fn reopen(cx: &Context<'_>, ports: &Publication<'_>) -> Result<()> {
    let handles = cx.handles();
    refuse_taken(handles, ports)?;
    transaction(|rb| open(handles, ports, rb))?;
    forget_flows_to_others(cx, &ports.forwards);
    Ok(())
}

/// Deletes UDP flows to a port of the host that began before the port led here. They would never
/// get here: the kernel does not evaluate the rules for them again.
fn forget_flows_to_others(cx: &Context<'_>, forwards: &[Forward]) {
    let of_udp = |forward: &&Forward| forward.protocol == Protocol::Udp;
    let udp: Vec<&Forward> = forwards.iter().filter(of_udp).collect();
    let ports: Vec<(IpAddr, u16)> =
        udp.iter().map(|forward| (forward.to.addr(), forward.host_port)).collect();
    if ports.is_empty() {
        return;
    }
    let is_stale = |flow: &Flow| {
        udp.iter().any(|forward| leads_elsewhere(flow, forward)) && is_own(cx, flow.destination)
    };
    if let Err(error) = Conntrack::open().and_then(|conntrack| forget(&conntrack, &ports, is_stale))
    {
        warn(error); // the ports are open nevertheless
    }
}

/// Whether the host has the address, as far as the kernel answers.
fn is_own(cx: &Context<'_>, ip: IpAddr) -> bool {
    cx.host().and_then(|host| host.is_local(ip)).unwrap_or(false)
}

/// Whether a flow to the forward's port is answered by another address than the container's.
fn leads_elsewhere(flow: &Flow, forward: &Forward) -> bool {
    flow.port == forward.host_port
        && flow.answering != forward.to.addr()
        && forward.answers_at(flow.destination)
}

/// Deletes UDP flows to a container that is gone: the kernel would go on sending their packets
/// there, and not to the next container that publishes the port.
///
/// The kernel walks its whole table for that, so in a chain a thread waits for it. That thread's
/// socket is closed at the end of the chain: close(2) holds nf_tables' mutex until the kernel has
/// freed deleted rules, and a deletion of a link waits for that mutex.
fn forget_flows_of(handles: &Handles, mut released: Vec<Released>) {
    released.retain(|gone| gone.protocol == Protocol::Udp);
    let led: Vec<(IpAddr, u16)> = released.iter().map(|gone| (gone.to, gone.host_port)).collect();
    if led.is_empty() {
        return;
    }
    handles.postponed().meanwhile(move || {
        let conntrack = Conntrack::open().map_err(warn).ok()?;
        match forget_led(&conntrack, &led) {
            // Flows in a flowtable are deleted by bridge and ptp, after the container's link.
            Err(error) if !error.is_errno(Errno::EBUSY) => warn(error),
            _ => (),
        }
        Some(conntrack)
    });
}

/// Up to this number of ports, portmap sends one request for each to delete its flows. With 262144
/// buckets the kernel took up to 0.3 ms for such a request, and 11 ms for a dump.
const ONE_BY_ONE: usize = 16;

/// Deletes the UDP flows to these ports that led to these addresses.
fn forget_led(conntrack: &Conntrack, led: &[(IpAddr, u16)]) -> Result<()> {
    let mut left = vec![];
    for (ip, port) in led {
        if led.len() > ONE_BY_ONE || !is_forgotten(conntrack, *ip, *port)? {
            left.push((*ip, *port));
        }
    }
    forget(conntrack, &left, |flow| left.contains(&(flow.answering, flow.port)))
}

fn is_forgotten(conntrack: &Conntrack, led_to: IpAddr, port: u16) -> Result<bool> {
    match led_to {
        IpAddr::V4(ip) => conntrack.forget_udp_answered_by(ip, port),
        IpAddr::V6(_) => Ok(false),
    }
}

/// Deletes the stale ones among the UDP flows to these ports, each of which led to an address.
fn forget(
    conntrack: &Conntrack,
    ports: &[(IpAddr, u16)],
    is_stale: impl Fn(&Flow) -> bool,
) -> Result<()> {
    let mut errors = ErrorList::default();
    for family in Family::ALL {
        let ports = ports_of(family, ports);
        if !ports.is_empty() {
            errors.push(conntrack.forget_udp(family, &ports, &is_stale));
        }
    }
    errors.finish()
}

fn ports_of(family: Family, ports: &[(IpAddr, u16)]) -> BTreeSet<u16> {
    let of_family = ports.iter().filter(|(to, _)| Family::of(*to) == family);
    of_family.map(|(_, port)| *port).collect()
}

/// Switches on [`localnet`].
fn let_localhost_out(cx: &Context<'_>, ports: &Publication<'_>) -> Result<()> {
    localnet(cx, ports)?.iter().try_for_each(|localnet| localnet.ensure("1"))
}

fn verify_localhost_gets_out(cx: &Context<'_>, ports: &Publication<'_>) -> Result<()> {
    match localnet(cx, ports)? {
        Some(setting) if setting.read().is_ok_and(|value| value != "1") => Err(is_off(&setting)),
        _ => Ok(()),
    }
}

fn is_off(setting: &Sysctl) -> Error {
    Error::check(format!("sysctl {setting} is off, so the ports do not answer at 127.0.0.1"))
}

/// Switches [`localnet`] on again.
fn let_localhost_out_again(
    cx: &Context<'_>,
    ports: &Publication<'_>,
    result: &AddResult,
    repairs: &Repairs,
) -> Result<()> {
    let setting = match missing_link(cx.host()?, result)? {
        Some(name) if needs_localnet(ports) => Some(of_link(name)),
        Some(_) => None,
        None => localnet(cx, ports)?,
    };
    let Some(setting) = setting else { return Ok(()) };
    let what = format_args!("set sysctl {setting} to 1");
    repairs.make_shared(what, || require_on(&setting), || setting.ensure("1"))
}

/// A setting that cannot be read is not on either: its link may be gone.
fn require_on(setting: &Sysctl) -> Result<()> {
    if setting.read().is_ok_and(|value| value == "1") { Ok(()) } else { Err(is_off(setting)) }
}

/// Returns the name of the host's first link in the result, if it is missing. The plugin that made
/// it comes earlier in the chain: a repair has made it again by now, a look has not.
fn missing_link<'r>(host: &Netlink, result: &'r AddResult) -> Result<Option<&'r str>> {
    let mut names = result.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    let Some(first) = names.next() else { return Ok(None) };
    Ok(host.find_link(&first.name)?.is_none().then_some(first.name.as_str()))
}

/// LOOPBACK_IFINDEX: `lo` has this number in every namespace.
const LOOPBACK: u32 = 1;

/// Returns the setting that lets packets with the source 127.0.0.1 out to the container, if they
/// are masqueraded. The reference leaves it on as well.
fn localnet(cx: &Context<'_>, ports: &Publication<'_>) -> Result<Option<Sysctl>> {
    let Some(forward) = ports.of_family(Family::V4).next().filter(|_| ports.conf.snat) else {
        return Ok(None);
    };
    let link = link_towards(cx.host()?, forward.to.addr())?;
    Ok(link.map(|link| of_link(&link.name)))
}

/// Whether [`localnet`] is needed.
fn needs_localnet(ports: &Publication<'_>) -> bool {
    ports.conf.snat && ports.of_family(Family::V4).next().is_some()
}

fn of_link(name: &str) -> Sysctl {
    Sysctl::ipv4_conf(name, "route_localnet")
}

/// Finds the link that leads to a container's address.
fn link_towards(host: &Netlink, ip: IpAddr) -> Result<Option<Link>> {
    match host.link_towards(ip) {
        Ok(LOOPBACK) => Ok(None), // the host's own address, not a container's
        Ok(index) => host.find_link_by_index(index),
        // then even the container's own network does not reach it
        Err(error) if error.is_unreachable() => Ok(None),
        Err(error) => Err(error),
    }
}
