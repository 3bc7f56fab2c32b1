//! D52x: leases and ranges.

use std::net::IpAddr;

use ipnet::IpNet;

use super::faults::{LEASE_OF_ANOTHER, NO_LEASE, RANGE_FULL, RANGE_NEARLY_FULL, RANGE_OVERLAPS};
use super::finding::{Finding, Findings, Object, quoted};
use super::node::{Leases, Network, Node};
use super::wiring::{Wiring, attach_again, sync};
use crate::cni::json::Value;
use crate::error::Aspect;
use crate::plugin::leases::RangeUse;

/// From this share on a range is nearly full: nine tenths.
const NEARLY: (u64, u64) = (9, 10);

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    for leases in node.leases.iter().filter(|leases| is_asked_for(node, leases)) {
        let network = leases.network.network.as_str();
        for range in &leases.holdings.ranges {
            fullness(network, range, findings);
            overlaps(node, network, range, findings);
        }
    }
    Wiring::all(node).iter().for_each(|wiring| owner(node, wiring, findings));
}

/// Whether the network, or a container on it, was asked for.
fn is_asked_for(node: &Node<'_>, leases: &Leases) -> bool {
    let network = &leases.network.network;
    node.request.subject.is_empty()
        || node.attachments.iter().any(|attachment| attachment.at().key.network == *network)
}

fn fullness(network: &str, range: &RangeUse, findings: &mut Findings) {
    let RangeUse { range, held, size } = range;
    let fault = match held {
        held if held >= size => &RANGE_FULL,
        held if held.saturating_mul(NEARLY.1) >= size.saturating_mul(NEARLY.0) => {
            &RANGE_NEARLY_FULL
        }
        _ => return,
    };
    let evidence = format!("{held} of {size} addresses of {range} are held");
    let finding = Finding::new(fault, Object::Network(network.to_owned()), evidence);
    findings.add(finding.fix(format!("sudo cni-multi net gc {}", quoted(network))));
}

/// The leases of one attachment's addresses.
fn owner(node: &Node<'_>, wiring: &Wiring<'_>, findings: &mut Findings) {
    let attachment = wiring.attachment;
    let at = attachment.at();
    let Some(kind) = wiring.plugin.value.get("ipam").and_then(|ipam| ipam.get("type")?.as_str())
    else {
        return;
    };
    let of_network =
        |leases: &&Leases| leases.network.network == at.key.network && leases.network.ipam == kind;
    // Of the other plugins with leases a server decides.
    let is_in_files = matches!(kind, "host-local" | "cluster-local" | "whereabouts");
    let Some(leases) = node.leases.iter().find(of_network).filter(|_| is_in_files) else {
        return;
    };
    for ip in attachment.result.iter().flat_map(|result| &result.ips) {
        let ip = ip.address.addr();
        let held = leases.holdings.held.iter().find(|held| held.address == ip);
        let finding = match held {
            None if has_data_dir(wiring) => continue,
            None => {
                let evidence = format!("{ip} is free in the ranges of {:?}", wiring.network());
                Finding::new(&NO_LEASE, attachment.object(), evidence).fix(sync(wiring.network()))
            }
            Some(held) if held.container_id == at.key.container_id.as_str() => continue,
            Some(held) => {
                let evidence = format!("the lease of {ip} is of container {}", held.container_id);
                let fix = attach_again(attachment);
                Finding::new(&LEASE_OF_ANOTHER, attachment.object(), evidence).fix(fix)
            }
        };
        findings.add(finding.explaining([Aspect::Lease]));
    }
}

/// Whether the record names another place of leases than the configuration of today may have.
fn has_data_dir(wiring: &Wiring<'_>) -> bool {
    wiring.plugin.value.get("ipam").is_some_and(|ipam| ipam.get("dataDir").is_some())
}

/// A range of a network that the host routes for, and that is elsewhere as well.
fn overlaps(node: &Node<'_>, network: &str, range: &RangeUse, findings: &mut Findings) {
    let Some(own) = node.networks.iter().find(|it| it.list.name == network) else { return };
    let object = Object::Network(network.to_owned());
    if findings.0.iter().any(|it| it.object == object && it.fault.code == "overlap") {
        return; // of two configurations
    }
    let (Some((first, last)), Some(bridge)) = (ends(&range.range), routed_bridge(own)) else {
        return;
    };
    let is_within = |net: &IpNet| net.addr() <= last && last_of(net) >= first;
    let connected = node.addresses.iter().filter(|address| {
        let link = node.link(address.link);
        let is_other = link.is_some_and(|link| link.name != bridge && link.kind != "veth");
        let is_subnet = address.net.prefix_len() < address.net.max_prefix_len();
        is_other
            && is_subnet
            && is_same_family(&address.net, first)
            && is_within(&address.net.trunc())
    });
    let mut found: Vec<String> = connected
        .filter_map(|address| {
            Some(format!("{} on {:?}", address.net, node.link(address.link)?.name))
        })
        .collect();
    // The network's own subnet is wider than its range.
    let is_wider = |net: &IpNet| net.addr() < first && last_of(net) > last;
    let routes = node.routes.iter().filter(|route| {
        is_same_family(&route.dst, first) && is_within(&route.dst) && !is_wider(&route.dst)
    });
    found.extend(routes.filter_map(|route| {
        route.gateways.first().map(|gateway| format!("the route to {} by {gateway}", route.dst))
    }));
    if found.is_empty() {
        return;
    }
    let evidence = format!("{} overlaps {}", range.range, found.join(", "));
    let file = own.file.display();
    let finding = Finding::new(&RANGE_OVERLAPS, object, evidence);
    findings.add(finding.fix(format!("choose another subnet in {file}")));
}

fn is_same_family(net: &IpNet, address: IpAddr) -> bool {
    net.addr().is_ipv4() == address.is_ipv4()
}

/// The bridge of a network that the host routes for; "" for one of pairs alone.
fn routed_bridge(network: &Network) -> Option<&str> {
    let first = network.list.plugins.first()?;
    match first.kind.as_str() {
        "ptp" => Some(""),
        "bridge" => Some(first.value.get("bridge").and_then(Value::as_str).unwrap_or("cni0")),
        _ => None,
    }
}

/// The first and the last address of `10.88.0.2-10.88.0.254`.
fn ends(range: &str) -> Option<(IpAddr, IpAddr)> {
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn last_of(net: &IpNet) -> IpAddr {
    net.broadcast()
}
