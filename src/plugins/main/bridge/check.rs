//! CHECK of `bridge`: compares prevResult with the kernel.

use std::net::IpAddr;

use ipnet::IpNet;

use super::member::Member;
use super::{gateway, vlan};
use crate::cni::result::{AddResult, Interface};
use crate::error::{Error, Result};
use crate::net::netlink::Link;
use crate::steps::{addresses, ipam, prev_result, spoofcheck, veth};

/// Verifies that everything ADD made is still as it was made.
pub fn all(member: Member<'_>) -> Result<()> {
    let Member { cx, conf, at } = member;
    ipam::check_if_any(cx, at)?;
    let result = &prev_result::require(cx)?;
    let (index, interface) = prev_result::container_interface(result, at)?;
    let bridge = verify_bridge(member, result)?;
    let container = prev_result::verify_link(at.netlink()?, interface, Some("veth"))?;
    let made = Made { member, result, bridge, container };
    made.verify_port()?;
    if conf.disable_container_interface {
        return Ok(());
    }
    addresses::verify(at, &made.container, result, index)?;
    if cx.config.ipam_type()?.is_empty() { Ok(()) } else { made.verify_routing() }
}

/// Verifies that the bridge exists. Its hardware address may have changed: a bridge that was not
/// created here follows its ports.
fn verify_bridge(member: Member<'_>, result: &AddResult) -> Result<Link> {
    let name = &member.conf.bridge;
    require_in_result(name, result)?;
    let Some(link) = member.host()?.find_link(name)? else {
        return Err(Error::check(format!("Interface name {name} not found")));
    };
    require_bridge(name, &link)?;
    // Another program may have turned it on: only a missing setting is a difference.
    if member.conf.promisc_mode && !link.promisc {
        return Err(not_promiscuous(name));
    }
    Ok(link)
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
    bridge: Link,
    container: Link,
}

impl Made<'_> {
    /// Verifies that the host's end is a port of the bridge with its flags, its VLANs and its spoof
    /// check.
    fn verify_port(&self) -> Result<()> {
        let conf = self.member.conf;
        let port = self.find_port()?;
        verify_flag(&port, "hairpin", port.hairpin, conf.hairpin_mode)?;
        verify_flag(&port, "isolated", port.isolated, conf.port_isolation)?;
        vlan::verify(self.member.host()?, &port, &vlan::plan(conf))?;
        if conf.macspoofchk { self.verify_spoofcheck(&port) } else { Ok(()) }
    }

    fn verify_spoofcheck(&self, port: &Link) -> Result<()> {
        let Member { cx, at, .. } = self.member;
        let port = spoofcheck::Port { name: &port.name, mac: &self.container.mac() };
        spoofcheck::verify(cx.handles(), &at.key, &port)
    }

    /// The host's end, which must be a port of the bridge.
    fn find_port(&self) -> Result<Link> {
        let reason = match veth::host_end(self.member.cx, &self.container)? {
            Some(port) if port.master == Some(self.bridge.index) => return Ok(port),
            Some(port) => not_a_port(&port, &self.bridge),
            None => veth::other_end_missing(&self.container),
        };
        let bridge = &self.bridge.name;
        Err(reason.saying(format_args!("CNI veth created for bridge {bridge} was not found")))
    }

    fn verify_routing(&self) -> Result<()> {
        let Member { cx, conf, at } = self.member;
        if conf.is_gateway() {
            self.verify_gateways()?;
        }
        if conf.ip_masq {
            conf.masquerade(cx).verify(&at.key, self.result)?;
        }
        Ok(())
    }

    fn verify_gateways(&self) -> Result<()> {
        let addresses = gateway::addresses(self.result);
        let gateways: Vec<IpAddr> = addresses.iter().map(IpNet::addr).collect();
        let link = self.find_gateway_link()?;
        veth::verify_gateways(self.member.host()?, &link, &gateways, &self.container)
    }

    fn find_gateway_link(&self) -> Result<Link> {
        let Some(name) = self.member.conf.gateway_interface() else {
            return Ok(self.bridge.clone());
        };
        let found = self.member.host()?.find_link(&name)?;
        found.ok_or_else(|| Error::check(format!("gateway interface {name:?} not found")))
    }
}

fn not_a_port(link: &Link, bridge: &Link) -> Error {
    Error::check(format!("{:?} is not a port of bridge {:?}", link.name, bridge.name))
}

fn verify_flag(port: &Link, flag: &str, found: bool, wanted: bool) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::check(format!("bridge port {:?} has {flag} {found}, expected {wanted}", port.name)))
}
