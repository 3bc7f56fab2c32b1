//! Which links of the host have portmap's [`Localnet`]: that which leads to a container, if it is one
//! of the attachment; and those that a flushed rule set has left without a guard.

use std::net::IpAddr;

use super::localnet::{Localnet, OURS, element, end, is_off, is_on, of_link};
use super::publication::Publication;
use super::table::LAYOUT;
use crate::cni::attachment::Key;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Interface};
use crate::cni::valid::Stale;
use crate::error::{Aspect, Error, ErrorList, Result};
use crate::family::Family;
use crate::net::netlink::{Link, Netlink};
use crate::net::nft::wire::link_name;
use crate::plugin::{Context, Detachment, Handles};
use crate::repair::Repairs;
use crate::steps::rules::Backend;
use crate::steps::{link_alias, veth};

/// LOOPBACK_IFINDEX: `lo` has this number in every namespace.
const LOOPBACK: u32 = 1;

/// The setting that lets packets from 127.0.0.1 out to the ports. Fails with code 103 if the
/// host's route to the container is not the attachment's.
pub fn plan(
    cx: &Context<'_>,
    ports: &Publication<'_>,
    result: &AddResult,
) -> Result<Option<Localnet>> {
    let host = cx.host()?;
    let Some(ip) = forward_to(ports) else { return Ok(None) };
    let index = match host.link_towards(ip) {
        Ok(LOOPBACK) => return Ok(None), // the host's own address, not a container's
        // then even the container's own network does not reach it
        Err(error) if error.is_no_route() => return Ok(None),
        towards => towards?,
    };
    let Some(link) = host.find_link_by_index(index)? else { return Ok(None) };
    // A stray route to the container's address may lead to a link of others, such as an uplink, whose
    // settings are not the attachment's.
    if !is_own(host, &link, result, ports.key)? {
        return require_no_detour(host, result, &link, ip).map(|()| None);
    }
    if link.route_localnet != OURS && is_on(&link) {
        return Ok(None);
    }
    let is_guarded = match cx.handles().nft()? {
        None => false,
        Some(nft) => {
            ports.conf.backend(cx.handles())? == Backend::Nftables
                || match LAYOUT.on(nft).require() {
                    Err(error) if error.may_pass() => return Err(error),
                    required => required.is_ok(),
                }
        }
    };
    let element = element(&link.name, link.kind != veth::KIND);
    Ok(Some(Localnet { setting: of_link(&link.name), element, is_guarded }))
}

/// If a link of the attachment has the gateway of the container's address, the host's route to the
/// address leads by a link of the attachment. One that is down has no routes: the
/// plugin that made it reports that.
fn require_no_detour(host: &Netlink, result: &AddResult, link: &Link, ip: IpAddr) -> Result<()> {
    let of_ip = result.ips.iter().find(|found| found.address.addr() == ip);
    let Some(gateway) = of_ip.and_then(|found| found.gateway) else { return Ok(()) };
    for own in links_in(host, result)?.into_iter().filter(|own| own.up) {
        if host.addresses(&own)?.iter().any(|address| address.net.addr() == gateway) {
            let to = &link.name;
            let what = format!("the host routes {ip} to {to:?}, not to {:?}", own.name);
            let advice = format_args!("`ip route get {ip}` shows the route: delete it");
            let elsewhere = Error::check(what).with_details(advice);
            return Err(elsewhere.about(&Aspect::Route(ip.into())));
        }
    }
    Ok(())
}

/// For a look, in which a link that is gone was not made again.
pub fn note_of_missing(
    host: &Netlink,
    ports: &Publication<'_>,
    result: &AddResult,
    repairs: &Repairs,
) -> Result<()> {
    let Some(first) = on_host(result).next().filter(|_| forward_to(ports).is_some()) else {
        return Ok(());
    };
    if host.find_link(&first.name)?.is_some() {
        return Ok(());
    }
    let setting = of_link(&first.name);
    repairs.make_shared(
        format_args!("set sysctl {setting} to {OURS}"),
        || Err(is_off(&setting)),
        || Err(is_off(&setting)),
    )
}

/// Switches the setting off where it has our value and no guard: the rule set was flushed.
pub fn end_unguarded(handles: &Handles, links: &[Link]) -> Result<()> {
    ErrorList::of(unguarded(handles, links)?.map(|link| end(&link_name(&link.name))))
}

/// The same after a DEL that has found no element of its attachment.
pub fn end_unguarded_of(cx: &Context<'_>, at: &Detachment) -> Result<()> {
    let host = cx.host()?;
    let links = match &at.prev_result {
        Some(result) => links_in(host, result)?,
        None => host.links()?,
    };
    end_unguarded(cx.handles(), &links)
}

/// The same for all links. A look is silent while there are valid attachments: one of them may need
/// the setting, and `net sync` guards it again.
pub fn collect_garbage(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    if valid.is_look() && valid.containers().next().is_some() {
        return Ok(());
    }
    let links = cx.host()?.links()?;
    ErrorList::of(unguarded(cx.handles(), &links)?.map(|link| {
        let what = format!("sysctl {} of ours", of_link(&link.name));
        // Ports that need it are not published either.
        let stale = Stale { what, is_torn: true, ..Stale::default() };
        valid.remove(|| stale, || end(&link_name(&link.name)))
    }))
}

fn unguarded<'l>(handles: &Handles, links: &'l [Link]) -> Result<impl Iterator<Item = &'l Link>> {
    let mut ours: Vec<&Link> = links.iter().filter(|link| link.route_localnet == OURS).collect();
    if let Some(nft) = handles.nft()?.filter(|_| !ours.is_empty()) {
        let elements: Vec<_> = ours.iter().map(|link| element(&link.name, true)).collect();
        let absent = LAYOUT.on(nft).absent(&elements)?;
        ours.retain(|link| absent.iter().any(|absent| absent.key == link_name(&link.name)));
    }
    Ok(ours.into_iter())
}

/// The links of the host that the result names and that exist.
pub fn links_in(host: &Netlink, result: &AddResult) -> Result<Vec<Link>> {
    let mut links = vec![];
    for interface in on_host(result) {
        links.extend(host.find_link(&interface.name)?);
    }
    Ok(links)
}

/// Whether a link of the host is one of the attachment: the result names it, or it is the host's end
/// that we made for the attachment, or the bridge of that. Results before 0.3.0 name no links.
fn is_own(host: &Netlink, link: &Link, result: &AddResult, key: &Key) -> Result<bool> {
    if on_host(result).any(|interface| interface.name == link.name) {
        return Ok(!link_alias::is_of_another(&link.alias, key));
    }
    let end = veth::find_host_end(host, key)?;
    Ok(end.is_some_and(|end| end.index == link.index || end.master == Some(link.index)))
}

/// The address that packets from 127.0.0.1 have to reach: only those that are masqueraded do.
fn forward_to(ports: &Publication<'_>) -> Option<IpAddr> {
    let first = ports.of_family(Family::V4).next().filter(|_| ports.conf.snat);
    first.map(|forward| forward.to.addr())
}

fn on_host(result: &AddResult) -> impl Iterator<Item = &Interface> {
    result.interfaces.iter().filter(|interface| interface.sandbox.is_empty())
}
