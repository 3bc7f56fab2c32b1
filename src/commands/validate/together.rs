//! Conflicts between networks: addresses that two of them allocate, a bridge that two of them
//! share.

use super::checker::{Checker, Note, Plugin, is_true};
use super::document::{Spot, item};
use crate::cni::addr;
use crate::cni::json::Value;
use crate::steps::allocation::ranges::{Range, RangeConf};

/// A range of addresses that a network allocates.
struct Pool {
    /// The index of the network.
    network: usize,
    spot: Spot,
    range: Range,
    data_dir: String,
    link: Option<String>,
    is_routed: bool,
    is_bridge: bool,
}

/// A bridge as one network configures it.
struct Bridge {
    /// The index of the network.
    network: usize,
    spot: Spot,
    name: String,
    link: Option<String>,
    filters_vlans: bool,
    forces_address: bool,
    gateways: Vec<String>,
}

/// Compares every two networks. Each conflict is reported once per pair, at the later network with
/// the earlier one that it concerns.
pub fn check(checker: &mut Checker<'_>) {
    let mut pools = vec![];
    let mut bridges = vec![];
    for (index, network) in checker.networks.iter().enumerate().filter(|(_, it)| it.loads) {
        for plugin in &network.plugins {
            let ranges = ranges(plugin);
            if is_bridge(plugin) {
                bridges.push(Bridge::of(index, plugin, &ranges));
            }
            pools.extend(ranges.into_iter().map(|range| Pool::of(index, plugin, range)));
        }
    }
    check_pools(checker, &pools);
    check_bridges(checker, &bridges);
}

fn is_bridge(plugin: &Plugin) -> bool {
    plugin.text("type") == "bridge"
}

impl Pool {
    fn of(network: usize, plugin: &Plugin, (path, range): (String, Range)) -> Pool {
        Pool {
            network,
            spot: plugin.at(&path),
            range,
            data_dir: plugin.ipam_text("dataDir").to_owned(),
            link: link(plugin),
            // Whether the host has routes to the containers.
            is_routed: plugin.text("type") == "ptp" || is_bridge(plugin) && is_gateway(plugin),
            is_bridge: is_bridge(plugin),
        }
    }

    /// The conflict with another network's pool, if there is one.
    fn conflict_with(&self, other: &Pool) -> Option<&'static str> {
        let is_one_link = self.link.is_some() && self.link == other.link;
        let is_connected = is_one_link || self.is_routed && other.is_routed;
        if !is_connected {
            return None; // no packets can get from one to the other
        }
        let (one, two) = (&self.range, &other.range);
        if one.contains(two.start) || two.contains(one.start) {
            return Some("the networks keep separate leases, so an address may be allocated twice");
        }
        let is_one_subnet =
            one.subnet.contains(&two.subnet.addr()) || two.subnet.contains(&one.subnet.addr());
        let are_bridges = self.is_bridge && other.is_bridge;
        (is_one_subnet && are_bridges && !is_one_link)
            .then_some("the host has two routes to the subnet")
    }
}

impl Bridge {
    fn of(network: usize, plugin: &Plugin, ranges: &[(String, Range)]) -> Bridge {
        let own = ranges.iter().filter(|(_, range)| range.gateway.is_ipv4() && is_gateway(plugin));
        Bridge {
            network,
            spot: plugin.at("bridge"),
            name: bridge(plugin).to_owned(),
            link: link(plugin),
            filters_vlans: plugin.value.get("vlanTrunk").is_some() || number(plugin, "vlan") != "0",
            forces_address: is_true(plugin.value.get("forceAddress")),
            gateways: own.map(|(_, range)| range.gateway.to_string()).collect(),
        }
    }

    /// Whether the two are one link with different addresses.
    fn has_other_gateway(&self, other: &Bridge) -> bool {
        let is_any = !self.gateways.is_empty() && !other.gateways.is_empty();
        let is_shared = self.gateways.iter().any(|gateway| other.gateways.contains(gateway));
        self.link == other.link && is_any && !is_shared
    }
}

fn check_pools(checker: &mut Checker<'_>, pools: &[Pool]) {
    for (i, here) in pools.iter().enumerate() {
        let conflict = pools[..i].iter().find_map(|there| {
            let is_one_store = there.data_dir == here.data_dir
                && is_one_name(checker, there.network, here.network);
            let is_other = there.network != here.network && !is_one_store;
            Some((there, there.conflict_with(here).filter(|_| is_other)?))
        });
        let Some((there, conflict)) = conflict else { continue };
        let name = checker.networks[there.network].name.clone();
        let place = checker.place(&there.spot);
        let [ours, theirs] = [here, there].map(|pool| pool.range.subnet.to_string());
        let message = &[&ours, " overlaps with ", &theirs, " of network \"", &name, "\""];
        let note = Note::new("overlap", &here.spot, message);
        checker.tell(note.hint(&[conflict, "; see ", &place]));
    }
}

fn check_bridges(checker: &mut Checker<'_>, bridges: &[Bridge]) {
    for (i, here) in bridges.iter().enumerate() {
        let is_other = |there: &&Bridge| {
            there.name == here.name && !is_one_name(checker, there.network, here.network)
        };
        let others = || bridges[..i].iter().filter(is_other);
        let other_gateway = others().find(|there| there.has_other_gateway(here));
        let other_vlans = others().find(|there| there.filters_vlans != here.filters_vlans);
        let Some(there) = other_gateway.or(other_vlans) else { continue };
        let network = checker.networks[there.network].name.clone();
        let place = checker.place(&there.spot);
        if other_gateway.is_some() {
            let is_forced = there.forces_address || here.forces_address;
            let code = if is_forced { "bridge-gateway-replaced" } else { "bridge-gateway" };
            let [ours, theirs] = [here, there].map(|bridge| bridge.gateways.join(", "));
            let message = &[
                "the gateway is ",
                &ours,
                " here, but ",
                &theirs,
                " in network \"",
                &network,
                "\"",
            ];
            checker.tell(Note::new(code, &here.spot, message).hint(&["see ", &place]));
        } else {
            let message =
                &["only one of this network and \"", &network, "\" enables VLAN filtering"];
            let hint = &["the network that creates the bridge decides; see ", &place];
            checker.tell(Note::new("bridge-vlan", &here.spot, message).hint(hint));
        }
    }
}

/// Whether the two have the same name, so that a runtime never uses both.
fn is_one_name(checker: &Checker<'_>, one: usize, other: usize) -> bool {
    checker.networks[one].name == checker.networks[other].name
}

/// The host-local ranges, each with the path of its subnet.
fn ranges(plugin: &Plugin) -> Vec<(String, Range)> {
    let Some(ipam) = plugin.value.get("ipam").filter(|_| plugin.ipam_text("type") == "host-local")
    else {
        return vec![];
    };
    let range = |(path, conf): (String, &Value)| Some((path + ".subnet", range(conf)?));
    objects_with_subnets(ipam).into_iter().filter_map(range).collect()
}

/// The objects of `ipam` that may have a subnet, each with its path.
pub fn objects_with_subnets(ipam: &Value) -> Vec<(String, &Value)> {
    let mut confs = vec![("ipam".to_owned(), ipam)];
    for (i, set) in ipam.get("ranges").map_or(&[][..], Value::items).iter().enumerate() {
        let set_path = item("ipam.ranges", i);
        confs.extend(set.items().iter().enumerate().map(|(j, conf)| (item(&set_path, j), conf)));
    }
    confs
}

/// The range of an object with a subnet.
pub fn range(conf: &Value) -> Option<Range> {
    let ip = |key| addr::parse_ip(text(conf, key)).ok();
    let conf = RangeConf {
        subnet: Some(addr::parse_cidr(text(conf, "subnet")).ok()?),
        range_start: ip("rangeStart")?,
        range_end: ip("rangeEnd")?,
        gateway: ip("gateway")?,
    };
    Range::new(&conf, "").ok()
}

/// The string at `key`, empty if there is none.
pub fn text<'a>(conf: &'a Value, key: &str) -> &'a str {
    conf.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Whether the bridge gets the gateway's address.
pub fn is_gateway(plugin: &Plugin) -> bool {
    ["isGateway", "isDefaultGateway"].iter().any(|key| is_true(plugin.value.get(key)))
}

/// The link that connects the containers.
fn link(plugin: &Plugin) -> Option<String> {
    match plugin.text("type") {
        "bridge" => Some([bridge(plugin), " ", &number(plugin, "vlan")].concat()),
        "vlan" => Some([plugin.text("master"), " ", &number(plugin, "vlanId")].concat()),
        "macvlan" | "ipvlan" => Some(plugin.text("master").to_owned()),
        _ => None,
    }
}

/// The number at this key; 0 if there is none.
fn number(plugin: &Plugin, key: &str) -> String {
    plugin.value.get(key).map_or_else(|| "0".to_owned(), Value::to_text)
}

fn bridge(plugin: &Plugin) -> &str {
    match plugin.text("bridge") {
        "" => "cni0",
        name => name,
    }
}
