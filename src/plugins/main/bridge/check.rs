//! CHECK of `bridge`: compares prevResult with the kernel.

use std::net::IpAddr;

use ipnet::IpNet;

use super::member::Member;
use super::{gateway, vlan};
use crate::cni::result::{AddResult, Interface};
use crate::error::{Aspect, Error, ErrorList, Result};
use crate::net::netlink::{Link, Netlink};
use crate::steps::{addresses, fastpath, forwarding, ipam, prev_result, spoofcheck, veth};

/// Verifies that everything ADD made is still as it was made.
pub fn all(member: Member<'_>) -> Result<()> {
    let mut found = ErrorList::default();
    found.push(ipam::check_if_any(member.cx, member.at));
    verify_links(member, &mut found);
    found.finish()
}

/// Compares prevResult with the kernel; stops where a link is missing that the rest needs.
fn verify_links(member: Member<'_>, found: &mut ErrorList) -> Option<()> {
    let Member { cx, conf, at } = member;
    let result = &found.push(prev_result::require(cx))?;
    let (index, interface) = found.push(prev_result::container_interface(result, at))?;
    let bridge = find_bridge(member, result, found);
    let container = prev_result::verify_link(at, interface, Some("veth"), found)?;
    let made = Made { member, result, container };
    if let Some(bridge) = &bridge {
        found.push(made.verify_port(bridge));
    }
    found.push(conf.accept_ra.verify(cx, at));
    if conf.disable_container_interface {
        return Some(());
    }
    found.push(addresses::verify(at, &made.container, result, index));
    if !found.push(cx.config.ipam_type())?.is_empty() {
        made.verify_routing(bridge, found);
    }
    Some(())
}

/// The bridge, which must be up. Its hardware address may have changed: a bridge that was not
/// created here follows its ports.
fn find_bridge(member: Member<'_>, result: &AddResult, found: &mut ErrorList) -> Option<Link> {
    let name = &member.conf.bridge;
    found.push(require_in_result(name, result));
    let link = found.push(member.host().and_then(|host| find_link(host, name)))?;
    found.push(require_bridge(name, &link))?;
    // Another program may have turned it on: only a missing setting is a difference.
    if member.conf.promisc_mode && !link.promisc {
        found.push::<()>(Err(not_promiscuous(name)));
    }
    found.push(require_groups(&link, member.conf.group_fwd_mask()));
    found.push(require_up(&link).map_err(|error| error.about(&Aspect::Bridge)));
    Some(link)
}

fn find_link(host: &Netlink, name: &str) -> Result<Link> {
    let found = host.find_link(name)?;
    let missing = || Error::check(format!("Interface name {name} not found"));
    found.ok_or_else(|| missing().about(&Aspect::Bridge))
}

/// Verifies that the link is up.
pub fn require_up(link: &Link) -> Result<()> {
    if link.up {
        return Ok(());
    }
    Err(Error::check(format!("{} {:?} is down", link.kind_text(), link.name)))
}

/// Verifies that the bridge forwards these groups. Another network may have added others.
pub fn require_groups(bridge: &Link, wanted: u16) -> Result<()> {
    let missing = wanted & !bridge.group_fwd_mask;
    if missing == 0 {
        return Ok(());
    }
    let name = &bridge.name;
    Err(Error::check(format!("bridge {name:?} lacks bits {missing:#x} of group_fwd_mask")))
}

fn require_bridge(name: &str, link: &Link) -> Result<()> {
    if link.kind == "bridge" {
        return Ok(());
    }
    Err(Error::check(format!("Interface {name} does not have link type of bridge")))
}

fn not_promiscuous(bridge: &str) -> Error {
    Error::check(format!(
        "Bridge interface {bridge} configured Promisc Mode true doesn't match current state: 0 "
    ))
}

/// Requires the result to have the bridge, on the host.
fn require_in_result(name: &str, result: &AddResult) -> Result<()> {
    match result.interfaces.iter().find(|interface| interface.name == name) {
        None => Err(not_in_result(name)),
        Some(told) if told.sandbox.is_empty() => Ok(()),
        Some(told) => Err(in_sandbox(told)),
    }
}

fn not_in_result(bridge: &str) -> Error {
    Error::check("prevResult does not have it")
        .saying(format_args!("CNI created bridge {bridge} in host namespace was not found"))
}

fn in_sandbox(bridge: &Interface) -> Error {
    Error::check(format!("prevResult has it in {:?}", bridge.sandbox))
        .saying(format_args!("Interface {} should not be in sandbox", bridge.name))
}

/// What ADD has made.
struct Made<'a> {
    member: Member<'a>,
    result: &'a AddResult,
    container: Link,
}

impl Made<'_> {
    /// Verifies the host's end and its spoof check.
    fn verify_port(&self, bridge: &Link) -> Result<()> {
        let Member { cx, at, .. } = self.member;
        let host_end = veth::host_end(cx, at, self.result, &self.container)
            .map_err(|error| no_port(error, bridge))?;
        let mut found = ErrorList::default();
        found.push(port(self.member, &host_end, bridge));
        if self.member.conf.macspoofchk && host_end.master == Some(bridge.index) {
            found.push(self.verify_spoofcheck(&host_end));
        }
        if self.member.conf.fast_path {
            let path = fastpath::Path::through(&host_end.name, self.result);
            found.push(fastpath::verify(cx, &at.key, &path));
        }
        found.finish()
    }

    fn verify_spoofcheck(&self, port: &Link) -> Result<()> {
        let Member { cx, at, .. } = self.member;
        let mac = &prev_result::container_mac(self.result, at)?;
        let port = spoofcheck::Port { name: &port.name, mac };
        spoofcheck::verify(cx.handles(), &at.key, &port)
    }

    /// Verifies what the host does for the container's packets.
    fn verify_routing(&self, bridge: Option<Link>, found: &mut ErrorList) {
        let Member { cx, conf, at } = self.member;
        if let Some(bridge) = bridge.filter(|_| conf.is_gateway()) {
            found.push(self.verify_gateway(bridge));
        }
        if conf.ip_masq {
            found.push(conf.masquerade(cx).verify(&at.key, self.result));
        }
    }

    /// Verifies that the bridge is the gateway, and that what arrives there is forwarded.
    fn verify_gateway(&self, bridge: Link) -> Result<()> {
        let link = self.member.conf.gateway_interface().unwrap_or_else(|| bridge.name.clone());
        ErrorList::of([
            gateways(self.member, bridge, self.result, &self.container),
            forwarding::verify(self.result, &link),
        ])
    }
}

/// Verifies that the host's end is up, and a port of the bridge with its flags and its VLANs.
pub fn port(member: Member<'_>, host_end: &Link, bridge: &Link) -> Result<()> {
    if host_end.master != Some(bridge.index) {
        return ErrorList::of([Err(not_a_port(host_end, bridge)), veth::verify_up(host_end)]);
    }
    let conf = member.conf;
    ErrorList::of([
        veth::verify_up(host_end),
        verify_flag(host_end, "hairpin", host_end.hairpin, conf.hairpin_mode),
        verify_flag(host_end, "isolated", host_end.isolated, conf.port_isolation),
        vlan::verify(member.host()?, host_end, &vlan::plan(conf)),
    ])
}

/// Verifies that the bridge, or its interface in the VLAN, has the gateways' addresses.
pub fn gateways(
    member: Member<'_>,
    bridge: Link,
    result: &AddResult,
    container: &Link,
) -> Result<()> {
    let host = member.host()?;
    let link = match member.conf.gateway_interface() {
        Some(name) => find_gateway_interface(host, &name)?,
        None => bridge.clone(),
    };
    let addresses = gateway::addresses(result);
    let gateways: Vec<IpAddr> = addresses.iter().map(IpNet::addr).collect();
    ErrorList::of([
        gateway::verify_port(member, &bridge, &link),
        veth::verify_gateways(host, &link, &gateways, container),
    ])
}

/// The bridge's interface in the VLAN, which must be up.
fn find_gateway_interface(host: &Netlink, name: &str) -> Result<Link> {
    let found = host.find_link(name)?;
    let link =
        found.ok_or_else(|| Error::check(format!("gateway interface {name:?} not found")))?;
    require_up(&link).map(|()| link)
}

/// The error in the reference's words for a bridge without the port.
fn no_port(reason: Error, bridge: &Link) -> Error {
    let bridge = &bridge.name;
    reason.saying(format_args!("CNI veth created for bridge {bridge} was not found"))
}

fn not_a_port(link: &Link, bridge: &Link) -> Error {
    let problem = format!("{:?} is not a port of bridge {:?}", link.name, bridge.name);
    no_port(Error::check(problem).about(&Aspect::Port), bridge)
}

fn verify_flag(port: &Link, flag: &str, found: bool, wanted: bool) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::check(format!("bridge port {:?} has {flag} {found}, expected {wanted}", port.name)))
}
