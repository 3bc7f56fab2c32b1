//! Addresses that no host can have, gateways that no route of a container leads to, and default routes
//! that lead nowhere: no address has a gateway, or nothing has the gateway's address; and what to write
//! in place of an invalid subnet.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::checker::{Checker, Note, Plugin, is_true};
use super::document::{Spot, item};
use super::together::{is_gateway, objects_with_subnets, range, text};
use crate::cni::addr;
use crate::cni::json::Value;
use crate::family::Family;

/// An object of `ipam` with a subnet, and perhaps a gateway in it.
struct Place<'a> {
    /// The path of the object.
    path: String,
    net: IpNet,
    /// The keys of its other addresses.
    addresses: &'static [&'static str],
    conf: &'a Value,
}

impl Checker<'_> {
    /// Reports addresses and gateways of the IPAM section with which ADD fails, or the container has
    /// no network.
    pub fn check_hosts(&mut self, plugin: &Plugin) {
        if plugin.ipam_text("type") == "dhcp" && plugin.text("type") == "bridge" {
            // The bridge becomes the gateway of a network that has a router.
            let mut keys = ["isDefaultGateway", "isGateway"].into_iter();
            if let Some(key) = keys.find(|key| is_true(plugin.value.get(key))) {
                let message = &["with dhcp, the bridge takes the address of the network's router"];
                let spot = plugin.at(key);
                let note = Note::new("router-address", &spot, message).of_key();
                self.tell(note.hint(&["remove it"]));
            }
        }
        let places = places(plugin);
        for Place { path, net, addresses, conf } in &places {
            for key in *addresses {
                self.check_host(&plugin.at(&[path, ".", key].concat()), text(conf, key), *net);
            }
            let gateway = plugin.at(&[path, ".gateway"].concat());
            self.check_host(&gateway, text(conf, "gateway"), *net);
            if let Some(ip) = ip_at(conf, "gateway").filter(|ip| is_used(plugin, *ip)) {
                self.check_reach(plugin, &gateway, ip, &[*net]);
            }
        }
        let mut nets: Vec<IpNet> = places.iter().map(|place| place.net).collect();
        // whereabouts has one gateway beside its ranges.
        if let Some(ipam) =
            plugin.value.get("ipam").filter(|ipam| text(ipam, "type") == "whereabouts")
        {
            let ranges = ipam.get("ipRanges").map_or(&[][..], Value::items).iter().chain([ipam]);
            let net = |text: &str| addr::parse_cidr(text.split('-').next_back()?.trim()).ok();
            nets.extend(ranges.filter_map(|it| net(text(it, "range"))));
            let assigned = ipam.get("addresses").map_or(&[][..], Value::items).iter();
            nets.extend(assigned.filter_map(|it| net(text(it, "address"))));
            if let Some(ip) = ip_at(ipam, "gateway").filter(|ip| is_used(plugin, *ip)) {
                self.check_reach(plugin, &plugin.at("ipam.gateway"), ip, &nets);
            }
        }
        for (index, route) in routes(plugin).iter().enumerate() {
            let spot = plugin.at(&[&item("ipam.routes", index), ".gw"].concat());
            if let Some(ip) = ip_at(route, "gw").filter(|ip| !ip.is_unspecified()) {
                self.check_reach(plugin, &spot, ip, &nets);
            }
        }
    }

    /// Reports the address of a network, or its broadcast address.
    fn check_host(&mut self, spot: &Spot, text: &str, net: IpNet) {
        let ip = addr::parse_cidr(text).map(|own| own.addr());
        let ip = ip.ok().or_else(|| addr::parse_ip(text).ok().flatten());
        let (Some(ip @ IpAddr::V4(_)), 0..31) = (ip, net.prefix_len()) else { return };
        let what = if ip == net.network() {
            "the network's own address"
        } else if ip == net.broadcast() {
            "the broadcast address"
        } else {
            return;
        };
        let [ip, net] = [ip.to_string(), net.trunc().to_string()];
        let message = &[ip.as_str(), " is ", what, " of ", &net];
        self.tell(Note::new("no-host", spot, message).expecting("an address of a host"));
    }

    /// Reports a gateway outside the subnets, if no route to it comes first.
    fn check_reach(&mut self, plugin: &Plugin, spot: &Spot, ip: IpAddr, nets: &[IpNet]) {
        let is_near = |net: &IpNet| net.contains(&ip);
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        // These two set routes as well, and the kernel refuses one whose gateway is on no link.
        let routed = [&WITH_GATEWAY[..], &["ovs", "dummy"]].concat();
        let is_needed = routed.contains(&plugin.text("type")) && !is_link_local;
        let is_of_family = |net: &&IpNet| Family::of_net(**net) == Family::of(ip);
        let Some(net) = nets.iter().find(is_of_family) else { return };
        if !is_needed
            || nets.iter().any(is_near)
            || routes(plugin).iter().any(|it| leads_to(it, ip))
        {
            return;
        }
        let [ip_text, net] = [ip.to_string(), net.trunc().to_string()];
        let message = &[ip_text.as_str(), " is not in ", &net];
        let note = Note::new("unreachable-gateway", spot, message);
        let note = note.expecting("an address of the subnet");
        match ip {
            IpAddr::V4(_) => {
                let route =
                    ["{\"dst\": \"", &ip_text, "/32\", \"gw\": \"0.0.0.0\", \"scope\": 253}"];
                self.tell(note.hint(&["or put ", &route.concat(), " before the other routes"]));
            }
            IpAddr::V6(_) => self.tell(note.hint(&["or one of fe80::/10"])),
        }
    }

    /// Reports sbr whose tables get no default route.
    pub fn check_tables(&mut self, plugins: &[Plugin]) {
        let Some(first) = plugins.first().filter(|first| first.ipam_text("type") == "static")
        else {
            return;
        };
        let has_gateway = |place: &Place<'_>| ip_at(place.conf, "gateway").is_some();
        let is_default = |route: &Value| {
            addr::parse_cidr(text(route, "dst")).is_ok_and(|dst: IpNet| dst.prefix_len() == 0)
        };
        let places = places(first);
        if places.iter().any(has_gateway) || routes(first).iter().any(is_default) {
            return;
        }
        let is_bare = |plugin: &&Plugin| {
            let has = |key| plugin.value.get(key).is_some();
            plugin.text("type") == "sbr" && !has("table") && !has("gateways")
        };
        for plugin in plugins.iter().filter(is_bare).filter(|_| !places.is_empty()) {
            let message = &["no table gets a default route, as no address has a gateway"];
            let note = Note::new("no-gateway", &plugin.spot, message);
            self.tell(note.hint(&["add \"gateways\" with the network's router"]));
        }
    }
}

/// The objects with a subnet in the section of host-local, cluster-local or static.
fn places(plugin: &Plugin) -> Vec<Place<'_>> {
    let Some(ipam) = plugin.value.get("ipam") else { return vec![] };
    let (key, addresses, objects): (_, &[&str], Vec<(String, &Value)>) =
        match plugin.ipam_text("type") {
            "host-local" | "cluster-local" => {
                ("subnet", &["rangeStart", "rangeEnd"], objects_with_subnets(ipam))
            }
            "static" => {
                let list = ipam.get("addresses").map_or(&[][..], Value::items).iter().enumerate();
                let object = |(number, conf)| (item("ipam.addresses", number), conf);
                ("address", &["address"], list.map(object).collect())
            }
            _ => return vec![],
        };
    let place = |(path, conf)| {
        let net = addr::parse_cidr(text(conf, key)).ok()?;
        Some(Place { path, net, addresses, conf })
    };
    objects.into_iter().filter_map(place).collect()
}

fn routes(plugin: &Plugin) -> &[Value] {
    plugin.ipam("routes").map_or(&[][..], Value::items)
}

fn ip_at(object: &Value, key: &str) -> Option<IpAddr> {
    addr::parse_ip(text(object, key)).ok().flatten()
}

/// Whether a route of the container leads by the gateway of its address.
fn is_used(plugin: &Plugin, gateway: IpAddr) -> bool {
    let is_default = is_true(plugin.value.get("isDefaultGateway")) && is_gateway(plugin);
    let is_by_it = |route: &Value| {
        let dst = addr::parse_cidr(text(route, "dst"));
        let is_of_family = dst.is_ok_and(|dst: IpNet| Family::of_net(dst) == Family::of(gateway));
        is_of_family && route.get("gw").is_none() && route.get("gws").is_none()
    };
    is_default || routes(plugin).iter().any(is_by_it)
}

/// Whether the route is one to addresses on the link, among them this one.
fn leads_to(route: &Value, ip: IpAddr) -> bool {
    let dst = addr::parse_cidr(text(route, "dst"));
    let is_on_link = ip_at(route, "gw").is_some_and(|gateway| gateway.is_unspecified())
        || route.get("scope").and_then(Value::as_u64) == Some(253);
    is_on_link && dst.is_ok_and(|dst: IpNet| dst.contains(&ip))
}

/// The plugins whose containers reach other networks through a gateway on their link. ptp is its
/// own gateway, and what a dummy gets goes nowhere.
pub const WITH_GATEWAY: [&str; 7] =
    ["bridge", "macvlan", "ipvlan", "vlan", "host-device", "tap", "bond"];

impl Checker<'_> {
    /// Reports the default routes of the IPAM section that lead nowhere.
    pub fn check_gateways(&mut self, plugin: &Plugin) {
        // Whether the containers need a gateway that the plugin does not make itself.
        let is_routed = plugin.text("mode").starts_with("l3"); // ipvlan's master routes
        if !WITH_GATEWAY.contains(&plugin.text("type")) || is_gateway(plugin) || is_routed {
            return;
        }
        let routes = plugin.ipam("routes").map_or(&[][..], Value::items);
        for (index, route) in routes.iter().enumerate() {
            let Some(family) = family_of_default(route) else { continue };
            let spot = plugin.at(&item("ipam.routes", index));
            match plugin.ipam_text("type") {
                "static" => {
                    let addresses = plugin.ipam("addresses").map_or(&[][..], Value::items);
                    if addresses.iter().any(|it| given(it, "gateway") == Some(family)) {
                        continue;
                    }
                    let message = &["a default route without a gateway"];
                    let hint = &["add \"gateway\" to the address, or \"gw\" to the route"];
                    self.tell(Note::new("no-gateway", &spot, message).hint(hint));
                }
                // The bridge may not get the address of the gateway that the IPAM plugin chooses.
                "host-local" | "cluster-local" => {
                    let Some(gateway) = chosen_gateway(plugin, family) else { continue };
                    let gateway = gateway.to_string();
                    let message =
                        &["the default route leads to ", &gateway, ", which the bridge lacks"];
                    let hint = &[
                        "add \"isGateway\": true, or \"gateway\" to the range if a router has it",
                    ];
                    self.tell(Note::new("no-gateway", &spot, message).hint(hint));
                }
                _ => (), // it has gateways of its own
            }
        }
    }
}

/// The family of a default route without a gateway of its own.
fn family_of_default(route: &Value) -> Option<Family> {
    let dst: IpNet = addr::parse_cidr(text(route, "dst")).ok()?;
    let is_open =
        dst.prefix_len() == 0 && given(route, "gw").is_none() && route.get("gws").is_none();
    is_open.then(|| Family::of_net(dst))
}

/// The family of the address at this key, if there is one.
fn given(object: &Value, key: &str) -> Option<Family> {
    addr::parse_ip(text(object, key)).ok()?.map(Family::of)
}

/// The gateway of the bridge's first range of the family, unless the range names one.
fn chosen_gateway(plugin: &Plugin, family: Family) -> Option<IpAddr> {
    let ipam = plugin.value.get("ipam").filter(|_| plugin.text("type") == "bridge")?;
    let confs = objects_with_subnets(ipam).into_iter();
    let mut gateways =
        confs.filter_map(|(_, conf)| Some((given(conf, "gateway"), range(conf)?.gateway)));
    let (named, gateway) = gateways.find(|(_, gateway)| Family::of(*gateway) == family)?;
    named.is_none().then_some(gateway)
}

/// The keys with an address and its prefix length, and those of lists of them.
const CIDR_KEYS: [&str; 5] = ["subnet", "dst", "address", "shapedSubnets", "unshapedSubnets"];

const EXPECTED_CIDR: &str = "write an address and its prefix length, such as \"10.88.0.0/24\"";

/// The advice for the text at this path, if it is an invalid address with a prefix length; else
/// empty.
pub fn advice_on_subnet(path: &str, text: &str) -> String {
    let key = path.rsplit('.').next().and_then(|last| last.split('[').next());
    if !CIDR_KEYS.contains(&key.unwrap_or_default()) || addr::parse_cidr(text).is_ok() {
        return String::new();
    }
    let (address, length) = text.split_once('/').unwrap_or((text, ""));
    let Ok(address) = address.parse::<IpAddr>() else {
        return EXPECTED_CIDR.to_owned();
    };
    if !text.contains('/') {
        let usual = if address.is_ipv4() { 24 } else { 64 };
        return format!("add the prefix length, such as \"{address}/{usual}\"");
    }
    // The prefix length may be a mask such as `255.255.0.0`.
    let mask = length.parse::<Ipv4Addr>().map(u32::from);
    match mask {
        Ok(mask) if mask.leading_ones() + mask.trailing_zeros() == u32::BITS => {
            format!("write \"{address}/{}\"", mask.leading_ones())
        }
        _ if address.is_ipv4() => "the prefix length is a number from 0 to 32".to_owned(),
        _ => "the prefix length is a number from 0 to 128".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_subnet_has_its_own_advice() {
        for (text, expected) in [
            ("10.88.0.0", "add the prefix length, such as \"10.88.0.0/24\""),
            ("fd00::", "add the prefix length, such as \"fd00::/64\""),
            ("10.88.0.0/255.255.0.0", "write \"10.88.0.0/16\""),
            ("10.88.0.0/255.0.255.0", "the prefix length is a number from 0 to 32"),
            ("10.88.0.0/33", "the prefix length is a number from 0 to 32"),
            ("fd00::/129", "the prefix length is a number from 0 to 128"),
            ("10.88.0/24", EXPECTED_CIDR),
            ("", EXPECTED_CIDR),
            ("10.88.0.0/24", ""),
        ] {
            assert_eq!(advice_on_subnet("ipam.ranges[0][0].subnet", text), expected, "{text}");
        }
        assert_eq!(advice_on_subnet("shapedSubnets[1]", "x"), EXPECTED_CIDR);
        assert_eq!(advice_on_subnet("ipam.gateway", "x"), "");
    }
}
