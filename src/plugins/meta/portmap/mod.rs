//! `portmap`: forwards ports of the host to ports of the container.
//! <https://www.cni.dev/plugins/current/meta/portmap/>
//!
//! It is chained after the plugin that created the container's interface. Only packets addressed to
//! the host itself are redirected. The default backend is nftables over netlink; `backend:
//! "iptables"` uses the chains and comments of the reference.

mod condition;
mod conf;
mod flows;
mod iptables;
mod listener;
mod mapping;
mod nft;
mod of_reference;
mod publication;
mod rules;

pub use self::conf::Conf;

use std::net::IpAddr;

pub use self::nft::LAYOUT;
use self::publication::Publication;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Error, ErrorList, Result, warn};
use crate::family::Family;
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
            flows::forget_earlier(cx, &ports.forwards);
            Ok(())
        })?;
        listener::warn_of_each(&ports);
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
        flows::forget_released(handles, released);
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
        flows::forget_released(handles, released);
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
    flows::forget_to_others(cx, &ports.forwards);
    Ok(())
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
