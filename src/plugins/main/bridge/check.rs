//! CHECK of `bridge`: compares prevResult with the kernel.

use super::conf::Conf;
use super::member::Member;
use super::{gateway, vlan};
use crate::cni::result::AddResult;
use crate::error::{Error, Result};
use crate::net::netlink::Link;
use crate::plugin::Context;
use crate::steps::ipam::Ipam;
use crate::steps::{addresses, masquerade, prev_result, spoofcheck, veth};

/// Verifies that everything ADD made is still as it was made.
pub fn all(member: Member<'_>) -> Result<()> {
    let Member { cx, conf, at } = member;
    let ipam = Ipam::find(cx)?;
    ipam.as_ref().map_or(Ok(()), |ipam| ipam.check(at))?;
    let result = prev_result::require(cx)?;
    let (index, interface) = prev_result::container_interface(&result, at)?;
    let bridge = bridge(cx, conf, &result)?;
    let container = prev_result::verify_link(at.netlink()?, interface, Some("veth"))?;
    port(member, &bridge, &container)?;
    if conf.disable_container_interface {
        return Ok(());
    }
    addresses::verify(at, &container, &result, index)?;
    if ipam.is_some() && conf.is_gateway() {
        gateway_addresses(member, &bridge, &container, &result)?;
    }
    if ipam.is_some() && conf.ip_masq {
        masquerade::verify(cx.handles(), conf.ip_masq_backend, &at.key, &result)?;
    }
    Ok(())
}

/// Verifies that the bridge exists. Its hardware address may have changed: a bridge that was not
/// created here follows its ports.
fn bridge(cx: &Context<'_>, conf: &Conf, result: &AddResult) -> Result<Link> {
    let name = &conf.bridge;
    let told = result.interfaces.iter().find(|interface| interface.name == *name);
    let told = told.ok_or_else(|| {
        Error::check("prevResult does not have it")
            .saying(format_args!("CNI created bridge {name} in host namespace was not found"))
    })?;
    if !told.sandbox.is_empty() {
        return Err(Error::check(format!("prevResult has it in {:?}", told.sandbox))
            .saying(format_args!("Interface {name} should not be in sandbox")));
    }
    let link = cx
        .host()?
        .find_link(name)?
        .ok_or_else(|| Error::check(format!("Interface name {name} not found")))?;
    if link.kind != "bridge" {
        return Err(Error::check(format!("Interface {name} does not have link type of bridge")));
    }
    // Another program may have turned it on: only a missing setting is a difference.
    if conf.promisc_mode && !link.promisc {
        return Err(Error::check(format!(
            "Bridge interface {name} configured Promisc Mode true doesn't match current state: 0 "
        )));
    }
    Ok(link)
}

/// Verifies that the host's end is a port of the bridge with its flags, its VLANs and its spoof
/// check.
fn port(member: Member<'_>, bridge: &Link, container: &Link) -> Result<()> {
    let Member { cx, conf, at } = member;
    let not_found = |e: Error| {
        e.saying(format_args!("CNI veth created for bridge {} was not found", bridge.name))
    };
    let port = veth::host_end(cx, container)?
        .ok_or_else(|| not_found(veth::other_end_missing(container)))?;
    let name = &port.name;
    if port.master != Some(bridge.index) {
        return Err(not_found(Error::check(format!(
            "{name:?} is not a port of bridge {:?}",
            bridge.name
        ))));
    }
    for (flag, found, wanted) in [
        ("hairpin", port.hairpin, conf.hairpin_mode),
        ("isolated", port.isolated, conf.port_isolation),
    ] {
        if found != wanted {
            return Err(Error::check(format!(
                "bridge port {name:?} has {flag} {found}, expected {wanted}"
            )));
        }
    }
    vlan::verify(cx.host()?, &port, &vlan::plan(conf))?;
    if conf.macspoofchk {
        spoofcheck::verify(cx.handles(), &at.key, name, &container.mac())?;
    }
    Ok(())
}

fn gateway_addresses(
    member: Member<'_>,
    bridge: &Link,
    container: &Link,
    result: &AddResult,
) -> Result<()> {
    let host = member.cx.host()?;
    let link = match member.conf.gateway_interface() {
        Some(name) => host
            .find_link(&name)?
            .ok_or_else(|| Error::check(format!("gateway interface {name:?} not found")))?,
        None => bridge.clone(),
    };
    let present = host.addresses(&link)?;
    let has = |ip| present.iter().any(|address| address.net.addr() == ip);
    match gateway::addresses(result).into_iter().find(|net| !has(net.addr())) {
        Some(missing) => Err(veth::gateway_missing(missing.addr(), &link, container)),
        None => Ok(()),
    }
}
