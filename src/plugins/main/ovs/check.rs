//! CHECK of `ovs`: compares prevResult with the kernel, and the configuration with the database.

use super::member::Member;
use super::port;
use super::vlan::Vlans;
use crate::error::{Aspect, Error, ErrorList, Result};
use crate::net::netlink::Link;
use crate::plugin::part::{Part, Target};
use crate::steps::addresses::Inside;
use crate::steps::{ipam, prev_result, veth};

/// Verifies that everything ADD made is still as it was made.
pub fn all(member: Member<'_>) -> Result<()> {
    let mut found = ErrorList::default();
    found.push(ipam::check_if_any(member.cx, member.at));
    verify_links(member, &mut found);
    found.finish()
}

/// Stops where a link is missing that the rest needs.
fn verify_links(member: Member<'_>, found: &mut ErrorList) -> Option<()> {
    let Member { cx, at, .. } = member;
    let result = found.push(prev_result::require(cx))?;
    let (container, index) = prev_result::see(at, &result, Some(veth::KIND), found)?;
    let on = Target { cx, at };
    found.push(member.conf.accept_ra.compare(on));
    if !result.ips.is_empty() || !result.routes.is_empty() {
        let seen = Some((&container, index));
        found.push(Inside { result: &result, wiring: None, found: seen }.compare(on));
    }
    let host_end = found.push(veth::host_end(cx, at, &result, &container))?;
    found.push(veth::verify_up(&host_end));
    found.push(verify_port(member, &host_end));
    Some(())
}

/// Verifies that the host's end is the attachment's port, with the configured VLANs.
pub fn verify_port(member: Member<'_>, host_end: &Link) -> Result<()> {
    let Member { conf, at, database, .. } = member;
    let name = host_end.name.as_str();
    let found = port::inspect(database, conf, (&at.key, name))?;
    let Some(port) = found.port else {
        let bridge = conf.bridge()?;
        let what = format!("bridge {bridge:?} of Open vSwitch has no port {name:?} of ours");
        return Err(Error::check(what).about(&Aspect::HostEnd));
    };
    let mut errors = ErrorList::default();
    errors.push(require_same(name, &port.vlans, &conf.vlans()));
    errors.push(match found.error.as_str() {
        "" => Ok(()),
        error => Err(Error::check(format!("Open vSwitch has an error of port {name:?}: {error}"))),
    });
    errors.finish()
}

fn require_same(name: &str, found: &Vlans, wanted: &Vlans) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::check(format!("port {name:?} has {}, expected {}", text(found), text(wanted))))
}

fn text(vlans: &Vlans) -> String {
    let mode = vlans.mode.unwrap_or("no vlan_mode");
    let tag = vlans.tag.map(|tag| format!(", tag {tag}")).unwrap_or_default();
    match vlans.trunks.len() {
        0 => format!("{mode}{tag}"),
        _ => format!("{mode}{tag}, trunks {:?}", vlans.trunks),
    }
}
