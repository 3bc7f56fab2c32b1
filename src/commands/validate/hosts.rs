//! Addresses that no host can have, and gateways that no route of a container leads to.

use std::net::IpAddr;

use ipnet::IpNet;

use super::checker::{Checker, is_true};
use super::document::{Spot, item};
use super::finding::Note;
use super::gateways::WITH_GATEWAY;
use super::network::Plugin;
use super::together::{is_gateway, objects_with_subnets, text};
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
