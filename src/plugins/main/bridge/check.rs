//! CHECK of `bridge`: compares prevResult with the kernel.

use std::net::IpAddr;

use ipnet::IpNet;

use super::conf::Conf;
use super::member::Member;
use super::{gateway, vlan};
use crate::cni::result::AddResult;
use crate::error::{Error, Result};
use crate::net::netlink::Link;
use crate::plugin::Context;
use crate::steps::{addresses, ipam, prev_result, spoofcheck, veth};

/// Verifies that everything ADD made is still as it was made.
pub fn all(member: Member<'_>) -> Result<()> {
    let Member { cx, conf, at } = member;
    ipam::check_if_any(cx, at)?;
    let result = prev_result::require(cx)?;
    let (index, interface) = prev_result::container_interface(&result, at)?;
    let bridge = bridge(cx, conf, &result)?;
    let container = prev_result::verify_link(at.netlink()?, interface, Some("veth"))?;
    port(member, &bridge, &container)?;
    if conf.disable_container_interface {
        return Ok(());
    }
    addresses::verify(at, &container, &result, index)?;
    if cx.config.ipam_type()?.is_empty() {
        return Ok(());
    }
    if conf.is_gateway() {
        gateway_addresses(member, &bridge, &container, &result)?;
    }
    if conf.ip_masq {
        conf.masquerade(cx).verify(&at.key, &result)?;
    }
    Ok(())
}

/// Verifies that the bridge exists. Its hardware address may have changed: a bridge that was not
/// created here follows its ports.
fn bridge(cx: &Context<'_>, conf: &Conf, result: &AddResult) -> Result<Link> {
    let name = &conf.bridge;
    require_in_result(name, result)?;
    let Some(link) = cx.host()?.find_link(name)? else {
        return Err(Error::check(format!("Interface name {name} not found")));
    };
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

/// Requires the result to have the bridge, on the host.
fn require_in_result(name: &str, result: &AddResult) -> Result<()> {
    let Some(told) = result.interfaces.iter().find(|interface| interface.name == name) else {
        return Err(Error::check("prevResult does not have it")
            .saying(format_args!("CNI created bridge {name} in host namespace was not found")));
    };
    if told.sandbox.is_empty() {
        Ok(())
    } else {
        Err(Error::check(format!("prevResult has it in {:?}", told.sandbox))
            .saying(format_args!("Interface {name} should not be in sandbox")))
    }
}

/// Verifies that the host's end is a port of the bridge with its flags, its VLANs and its spoof
/// check.
fn port(member: Member<'_>, bridge: &Link, container: &Link) -> Result<()> {
    let Member { cx, conf, at } = member;
    let port = find_port(cx, bridge, container)?;
    verify_flag(&port, "hairpin", port.hairpin, conf.hairpin_mode)?;
    verify_flag(&port, "isolated", port.isolated, conf.port_isolation)?;
    vlan::verify(cx.host()?, &port, &vlan::plan(conf))?;
    if conf.macspoofchk {
        let port = spoofcheck::Port { name: &port.name, mac: &container.mac() };
        spoofcheck::verify(cx.handles(), &at.key, &port)?;
    }
    Ok(())
}

/// The host's end, which must be a port of the bridge.
fn find_port(cx: &Context<'_>, bridge: &Link, container: &Link) -> Result<Link> {
    let reason = match veth::host_end(cx, container)? {
        Some(port) if port.master == Some(bridge.index) => return Ok(port),
        Some(port) => {
            Error::check(format!("{:?} is not a port of bridge {:?}", port.name, bridge.name))
        }
        None => veth::other_end_missing(container),
    };
    Err(reason.saying(format_args!("CNI veth created for bridge {} was not found", bridge.name)))
}

fn verify_flag(port: &Link, flag: &str, found: bool, wanted: bool) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    let name = &port.name;
    Err(Error::check(format!("bridge port {name:?} has {flag} {found}, expected {wanted}")))
}

fn gateway_addresses(
    member: Member<'_>,
    bridge: &Link,
    container: &Link,
    result: &AddResult,
) -> Result<()> {
    let host = member.cx.host()?;
    let link = find_gateway_link(member, bridge)?;
    let gateways: Vec<IpAddr> = gateway::addresses(result).iter().map(IpNet::addr).collect();
    veth::verify_gateways(host, &link, &gateways, container)
}

fn find_gateway_link(member: Member<'_>, bridge: &Link) -> Result<Link> {
    let Some(name) = member.conf.gateway_interface() else { return Ok(bridge.clone()) };
    let found = member.cx.host()?.find_link(&name)?;
    found.ok_or_else(|| Error::check(format!("gateway interface {name:?} not found")))
}
