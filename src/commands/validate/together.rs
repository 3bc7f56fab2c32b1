//! What can be said of several networks only: addresses that two of them give out, a bridge that two of them share.

use super::checker::{Checker, NOTHING, is_true};
use super::finding::Note;
use super::network::Plugin;
use crate::cni::addr;
use crate::cni::json::Value;
use crate::plugins::ipam::host_local::ranges::{Range, RangeConf};

/// Addresses that a network gives out.
struct Pool {
    network: usize,
    plugin: usize,
    path: String,
    range: Range,
}

/// Looks at every two networks.
pub fn check(checker: &mut Checker<'_>) {
    let mut pools = vec![];
    for (network, list) in checker.networks.iter().enumerate() {
        for (plugin, conf) in list.plugins.iter().enumerate() {
            let of = |(path, range): (String, Range)| Pool { network, plugin, path: conf.at(&path), range };
            pools.extend(ranges(conf).into_iter().map(of));
        }
    }
    for (i, pool) in pools.iter().enumerate() {
        if let Some((other, what)) = pools[..i].iter().find_map(|other| Some((other, overlap(checker, other, pool)?))) {
            let (here, there) = (&checker.networks[pool.network], &checker.networks[other.network]);
            let place = checker.place(&there.plugins[other.plugin], &other.path);
            let (document, path) = (here.plugins[pool.plugin].document, pool.path.as_str());
            let (subnets, name) = ([pool.range.subnet.to_string(), other.range.subnet.to_string()], there.name.clone());
            let message = &[&subnets[0], " overlaps with ", &subnets[1], " of network \"", &name, "\""];
            checker.tell(Note { code: "overlap", document, path, message, hint: &[what, "; see ", &place], ..NOTHING });
        }
    }
    let bridges: Vec<(usize, usize)> = (0..checker.networks.len())
        .flat_map(|network| (0..checker.networks[network].plugins.len()).map(move |plugin| (network, plugin)))
        .filter(|(network, plugin)| checker.networks[*network].plugins[*plugin].text("type") == "bridge")
        .collect();
    for (i, here) in bridges.iter().enumerate() {
        for there in &bridges[..i] {
            compare_bridges(checker, *there, *here, &pools);
        }
    }
}

/// The ranges of host-local, each with the path of its subnet.
fn ranges(plugin: &Plugin) -> Vec<(String, Range)> {
    let Some(ipam) = plugin.value.get("ipam").filter(|_| plugin.ipam_type() == "host-local") else { return vec![] };
    let mut confs = vec![("ipam".to_owned(), ipam)];
    if let Some(Value::Array(sets)) = ipam.get("ranges") {
        for (i, set) in sets.iter().enumerate() {
            let Value::Array(set) = set else { continue };
            confs.extend(
                set.iter()
                    .enumerate()
                    .map(|(j, conf)| (["ipam.ranges[", &i.to_string(), "][", &j.to_string(), "]"].concat(), conf)),
            );
        }
    }
    let range = |(path, conf): (String, &Value)| {
        let text = |key| conf.get(key).and_then(Value::as_str).unwrap_or_default();
        let ip = |key| addr::parse_ip(text(key)).ok();
        let subnet = Some(addr::parse_cidr(text("subnet")).ok()?);
        let (range_start, range_end, gateway) = (ip("rangeStart")?, ip("rangeEnd")?, ip("gateway")?);
        Some((path + ".subnet", Range::new(&RangeConf { subnet, range_start, range_end, gateway }, "").ok()?))
    };
    confs.into_iter().filter_map(range).collect()
}

/// What is wrong with two pools, if anything is.
fn overlap(checker: &Checker<'_>, one: &Pool, other: &Pool) -> Option<&'static str> {
    let lists = [&checker.networks[one.network], &checker.networks[other.network]];
    let [a, b] = [&lists[0].plugins[one.plugin], &lists[1].plugins[other.plugin]];
    let is_one_store = lists[0].name == lists[1].name && data_dir(a) == data_dir(b);
    if one.network == other.network || is_one_store {
        return None;
    }
    let [link_a, link_b] = [link(a), link(b)];
    let is_one_link = link_a.is_some() && link_a == link_b;
    let meet_on_host = is_routed(a) && is_routed(b);
    if !is_one_link && !meet_on_host {
        return None; // two links that know nothing of each other
    }
    let (x, y) = (&one.range, &other.range);
    if x.contains(y.start) || y.contains(x.start) {
        return Some("each network keeps leases of its own, so an address may be given twice");
    }
    let is_one_subnet = x.subnet.contains(&y.subnet.addr()) || y.subnet.contains(&x.subnet.addr());
    (is_one_subnet && !is_one_link && a.text("type") == "bridge" && b.text("type") == "bridge")
        .then_some("the host has two routes to it")
}

fn data_dir(plugin: &Plugin) -> &str {
    plugin.value.get("ipam").and_then(|ipam| ipam.get("dataDir")).and_then(Value::as_str).unwrap_or_default()
}

/// Whether the host has routes to the containers.
fn is_routed(plugin: &Plugin) -> bool {
    plugin.text("type") == "ptp" || plugin.text("type") == "bridge" && is_gateway(plugin)
}

fn is_gateway(plugin: &Plugin) -> bool {
    ["isGateway", "isDefaultGateway"].iter().any(|key| is_true(plugin.value.get(key)))
}

/// What the containers are connected by.
fn link(plugin: &Plugin) -> Option<String> {
    let number = |key| plugin.value.get(key).map(Value::to_text).unwrap_or_default();
    match plugin.text("type") {
        "bridge" => Some([bridge(plugin), " ", &number("vlan")].concat()),
        "vlan" => Some([plugin.text("master"), " ", &number("vlanId")].concat()),
        "macvlan" | "ipvlan" => Some(plugin.text("master").to_owned()),
        _ => None,
    }
}

fn bridge(plugin: &Plugin) -> &str {
    match plugin.text("bridge") {
        "" => "cni0",
        name => name,
    }
}

fn compare_bridges(checker: &mut Checker<'_>, there: (usize, usize), here: (usize, usize), pools: &[Pool]) {
    let of = |(network, plugin): (usize, usize)| &checker.networks[network].plugins[plugin];
    let (a, b) = (of(there), of(here));
    if bridge(a) != bridge(b) {
        return;
    }
    let (network, place) = (checker.networks[there.0].name.clone(), checker.place(a, &a.at("bridge")));
    let (document, path) = (b.document, &b.at("bridge"));
    let gateways = |at: (usize, usize)| -> Vec<String> {
        let own = pools.iter().filter(|pool| (pool.network, pool.plugin) == at && pool.range.gateway.is_ipv4());
        own.map(|pool| pool.range.gateway.to_string()).collect()
    };
    let (theirs, ours) = (gateways(there), gateways(here));
    let is_shared = theirs.is_empty() || ours.is_empty() || ours.iter().any(|gateway| theirs.contains(gateway));
    if link(a) == link(b) && is_gateway(a) && is_gateway(b) && !is_shared {
        let is_forced = [a, b].iter().any(|plugin| is_true(plugin.value.get("forceAddress")));
        let code = if is_forced { "bridge-gateway-replaced" } else { "bridge-gateway" };
        let (theirs, ours) = (theirs.join(", "), ours.join(", "));
        let message = &["it is the gateway ", &ours, " here and ", &theirs, " in network \"", &network, "\""];
        checker.tell(Note { code, document, path, message, hint: &["see ", &place], ..NOTHING });
    } else if filters_vlans(a) != filters_vlans(b) {
        let message = &["it is to filter by VLAN in this network or in \"", &network, "\" only"];
        let hint = &["whichever makes the bridge decides; see ", &place];
        checker.tell(Note { code: "bridge-vlan", document, path, message, hint, ..NOTHING });
    }
}

fn filters_vlans(plugin: &Plugin) -> bool {
    let vlan = plugin.value.get("vlan").map(Value::to_text).unwrap_or_default();
    plugin.value.get("vlanTrunk").is_some() || !["", "0"].contains(&vlan.as_str())
}
