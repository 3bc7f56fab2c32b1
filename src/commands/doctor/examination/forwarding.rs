//! D22x: whether the host forwards for its containers.

use std::collections::BTreeMap;

use super::faults::{FORWARDING_OFF_V4, FORWARDING_OFF_V6};
use super::finding::{Finding, Findings, Object};
use super::node::{Node, Reader};
use super::wiring::Wiring;
use crate::error::Result;
use crate::family::Family;
use crate::net::sysctl::Sysctl;

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    let all = Wiring::all(node);
    for (family, fault) in [(Family::V4, &FORWARDING_OFF_V4), (Family::V6, &FORWARDING_OFF_V6)] {
        // The settings that are off, each with how many attachments need it.
        let mut off: BTreeMap<String, usize> = BTreeMap::new();
        for wiring in &all {
            let setting = Reader(findings).keep(setting_that_is_off(node, wiring, family));
            if let Some(setting) = setting {
                *off.entry(setting.to_string()).or_default() += 1;
            }
        }
        for (setting, count) in off {
            let containers = if count == 1 { "attachment needs" } else { "attachments need" };
            let evidence = format!("sysctl {setting} is 0, and {count} {containers} it");
            let fix = format!("sudo sysctl -w {setting}=1");
            findings.add(Finding::new(fault, Object::Node, evidence).fix(fix));
        }
    }
}

/// The setting that keeps the host from forwarding for the attachment; None if none does, or if the
/// host is not its gateway.
fn setting_that_is_off(
    node: &Node<'_>,
    wiring: &Wiring<'_>,
    family: Family,
) -> Result<Option<Sysctl>> {
    let Some(router) = wiring.router(node, family) else { return Ok(None) };
    let of_all = Sysctl::forwarding(family);
    let links = [Some(router), node.uplink(family)];
    for name in links.into_iter().flatten().map(|link| &link.name) {
        match family {
            Family::V4 => {
                let of_link = Sysctl::ipv4_conf(name, "forwarding");
                if of_link.read()? == "0" {
                    // The setting of all links changes each of them when it is changed.
                    let is_all = of_all.read()? == "0";
                    return Ok(Some(if is_all { of_all } else { of_link }));
                }
            }
            Family::V6 => {
                if of_all.read()? == "0" && !is_forced(name)? {
                    return Ok(Some(of_all));
                }
            }
        }
    }
    Ok(None)
}

/// Whether the link forwards IPv6 without the setting of all links (Linux 6.17).
fn is_forced(link: &str) -> Result<bool> {
    let setting = Sysctl::ipv6_conf(link, "force_forwarding");
    Ok(setting.exists()? && setting.read()? == "1")
}
