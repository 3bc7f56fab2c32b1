//! Default routes that lead nowhere: no address has a gateway, or nothing has the gateway's address.

use std::net::IpAddr;

use ipnet::IpNet;

use super::checker::Checker;
use super::document::item;
use super::finding::Note;
use super::network::Plugin;
use super::together::{is_gateway, objects_with_subnets, range, text};
use crate::cni::addr;
use crate::cni::json::Value;
use crate::family::Family;

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
