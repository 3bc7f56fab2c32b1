//! Conflicts between networks: addresses that two of them allocate, a bridge that two of them
//! share.

use super::checker::{Checker, NOTHING, is_true};
use super::finding::Note;
use super::network::Plugin;
use crate::cni::addr;
use crate::cni::json::Value;
use crate::steps::allocation::ranges::{Range, RangeConf};

/// A range of addresses that a network allocates.
struct Pool {
    at: Place,
    path: String,
    range: Range,
    data_dir: String,
    link: Option<String>,
    is_routed: bool,
    is_bridge: bool,
}

/// A plugin, as the index of its network and its index in that network.
type Place = (usize, usize);

/// A bridge as one network configures it.
struct Bridge {
    at: Place,
    name: String,
    link: Option<String>,
    filters_vlans: bool,
    gateways: Vec<String>,
}

/// Compares every two networks. Each conflict is reported once per pair, at the later network with
/// the earlier one that it concerns.
pub fn check(checker: &mut Checker<'_>) {
    let (mut pools, mut bridges): (Vec<Pool>, Vec<Bridge>) = (vec![], vec![]);
    for (network, list) in checker.networks.iter().enumerate().filter(|(_, list)| list.loads) {
        for (plugin, conf) in list.plugins.iter().enumerate() {
            let at = (network, plugin);
            let ranges = ranges(conf);
            if conf.text("type") == "bridge" {
                let own =
                    ranges.iter().filter(|(_, range)| range.gateway.is_ipv4() && is_gateway(conf));
                let gateways = own.map(|(_, range)| range.gateway.to_string()).collect();
                let name = bridge(conf).to_owned();
                let link = link(conf);
                let filters_vlans = filters_vlans(conf);
                bridges.push(Bridge { at, name, link, filters_vlans, gateways });
            }
            let of = |(path, range): (String, Range)| Pool {
                at,
                path: conf.at(&path),
                range,
                data_dir: data_dir(conf).to_owned(),
                link: link(conf),
                is_routed: is_routed(conf),
                is_bridge: conf.text("type") == "bridge",
            };
            pools.extend(ranges.into_iter().map(of));
        }
    }
    for (i, pool) in pools.iter().enumerate() {
        if let Some((other, what)) =
            pools[..i].iter().find_map(|other| Some((other, overlap(checker, other, pool)?)))
        {
            let name = checker.networks[other.at.0].name.clone();
            let place = checker.place(plugin(checker, other.at), &other.path);
            let document = plugin(checker, pool.at).document;
            let path = pool.path.as_str();
            let subnets = [pool.range.subnet.to_string(), other.range.subnet.to_string()];
            let message =
                &[&subnets[0], " overlaps with ", &subnets[1], " of network \"", &name, "\""];
            checker.tell(Note {
                code: "overlap",
                document,
                path,
                message,
                hint: &[what, "; see ", &place],
                ..NOTHING
            });
        }
    }
    for (i, here) in bridges.iter().enumerate() {
        let others = || {
            bridges[..i]
                .iter()
                .filter(|there| there.name == here.name && !is_one_name(checker, there.at, here.at))
        };
        let gateway = others().find(|there| has_other_gateway(there, here));
        let vlans = others().find(|there| there.filters_vlans != here.filters_vlans);
        if let Some(there) = gateway {
            tell_gateways(checker, there, here);
        } else if let Some(there) = vlans {
            tell_vlans(checker, there, here);
        }
    }
}

fn plugin<'a>(checker: &'a Checker<'_>, at: Place) -> &'a Plugin {
    &checker.networks[at.0].plugins[at.1]
}

/// Whether the two have the same name, so that a runtime never uses both.
fn is_one_name(checker: &Checker<'_>, one: Place, other: Place) -> bool {
    checker.networks[one.0].name == checker.networks[other.0].name
}

/// The host-local ranges, each with the path of its subnet.
fn ranges(plugin: &Plugin) -> Vec<(String, Range)> {
    let Some(ipam) = plugin.value.get("ipam").filter(|_| plugin.ipam_type() == "host-local") else {
        return vec![];
    };
    let mut confs = vec![("ipam".to_owned(), ipam)];
    if let Some(Value::Array(sets)) = ipam.get("ranges") {
        for (i, set) in sets.iter().enumerate() {
            let Value::Array(set) = set else { continue };
            confs.extend(set.iter().enumerate().map(|(j, conf)| {
                (["ipam.ranges[", &i.to_string(), "][", &j.to_string(), "]"].concat(), conf)
            }));
        }
    }
    let range = |(path, conf): (String, &Value)| {
        let text = |key| conf.get(key).and_then(Value::as_str).unwrap_or_default();
        let ip = |key| addr::parse_ip(text(key)).ok();
        let subnet = Some(addr::parse_cidr(text("subnet")).ok()?);
        let range_start = ip("rangeStart")?;
        let range_end = ip("rangeEnd")?;
        let gateway = ip("gateway")?;
        Some((
            path + ".subnet",
            Range::new(&RangeConf { subnet, range_start, range_end, gateway }, "").ok()?,
        ))
    };
    confs.into_iter().filter_map(range).collect()
}

/// The conflict of two pools, if there is one.
fn overlap(checker: &Checker<'_>, one: &Pool, other: &Pool) -> Option<&'static str> {
    if one.at.0 == other.at.0
        || is_one_name(checker, one.at, other.at) && one.data_dir == other.data_dir
    {
        return None;
    }
    let is_one_link = one.link.is_some() && one.link == other.link;
    let meet_on_host = one.is_routed && other.is_routed;
    if !is_one_link && !meet_on_host {
        return None; // two independent links
    }
    let x = &one.range;
    let y = &other.range;
    if x.contains(y.start) || y.contains(x.start) {
        return Some("each network keeps leases of its own, so an address may be given twice");
    }
    let is_one_subnet = x.subnet.contains(&y.subnet.addr()) || y.subnet.contains(&x.subnet.addr());
    (is_one_subnet && !is_one_link && one.is_bridge && other.is_bridge)
        .then_some("the host has two routes to it")
}

fn data_dir(plugin: &Plugin) -> &str {
    plugin
        .value
        .get("ipam")
        .and_then(|ipam| ipam.get("dataDir"))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Whether the host has routes to the containers.
fn is_routed(plugin: &Plugin) -> bool {
    plugin.text("type") == "ptp" || plugin.text("type") == "bridge" && is_gateway(plugin)
}

fn is_gateway(plugin: &Plugin) -> bool {
    ["isGateway", "isDefaultGateway"].iter().any(|key| is_true(plugin.value.get(key)))
}

/// The link that connects the containers.
fn link(plugin: &Plugin) -> Option<String> {
    let number = |key| plugin.value.get(key).map_or_else(|| "0".to_owned(), Value::to_text);
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

fn has_other_gateway(there: &Bridge, here: &Bridge) -> bool {
    let is_shared = here.gateways.iter().any(|gateway| there.gateways.contains(gateway));
    here.link == there.link && !there.gateways.is_empty() && !here.gateways.is_empty() && !is_shared
}

fn tell_gateways(checker: &mut Checker<'_>, there: &Bridge, here: &Bridge) {
    let (network, place, document, path) = places(checker, there, here);
    let is_forced = [there, here]
        .iter()
        .any(|bridge| is_true(plugin(checker, bridge.at).value.get("forceAddress")));
    let code = if is_forced { "bridge-gateway-replaced" } else { "bridge-gateway" };
    let theirs = there.gateways.join(", ");
    let ours = here.gateways.join(", ");
    let message =
        &["it is the gateway ", &ours, " here and ", &theirs, " in network \"", &network, "\""];
    checker.tell(Note { code, document, path: &path, message, hint: &["see ", &place], ..NOTHING });
}

fn tell_vlans(checker: &mut Checker<'_>, there: &Bridge, here: &Bridge) {
    let (network, place, document, path) = places(checker, there, here);
    let message = &["it is to filter by VLAN in this network or in \"", &network, "\" only"];
    let hint = &["whichever makes the bridge decides; see ", &place];
    checker.tell(Note { code: "bridge-vlan", document, path: &path, message, hint, ..NOTHING });
}

/// The other network and the place where it names the bridge; the document and the path of the name
/// here.
fn places(checker: &Checker<'_>, there: &Bridge, here: &Bridge) -> (String, String, usize, String) {
    let a = plugin(checker, there.at);
    let b = plugin(checker, here.at);
    (
        checker.networks[there.at.0].name.clone(),
        checker.place(a, &a.at("bridge")),
        b.document,
        b.at("bridge"),
    )
}

fn filters_vlans(plugin: &Plugin) -> bool {
    let vlan = plugin.value.get("vlan").map(Value::to_text).unwrap_or_default();
    plugin.value.get("vlanTrunk").is_some() || !["", "0"].contains(&vlan.as_str())
}
