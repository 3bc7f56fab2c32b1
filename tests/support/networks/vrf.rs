//! Network configurations for vrf.

use serde_json::{Value, json};

use super::bridge::static_ipam;
use crate::support::attachment::{for_ours, with};
use crate::support::chain::Chained;
use crate::support::kernel::has_link;
use crate::support::netns::{Container, Lab, Namespace};

/// Creates and deletes a VRF in a container, so that the kernel's l3mdev rule exists from then on;
/// returns false, after a skip, if the kernel has no VRFs.
pub fn has_vrf(container: &Namespace) -> bool {
    has_link(container, "vrf", "probe type vrf table 9999")
}

/// A container, if the kernel has VRFs.
pub fn container(lab: &Lab) -> Option<Container> {
    Some(lab.container()).filter(|container| has_vrf(container))
}

/// A network on the bridge `br{number}` with a route of its own; all these networks use the same
/// addresses.
pub fn network(number: u8, address: u8) -> Value {
    let conf = json!({"cniVersion": "1.0.0", "name": format!("net{number}"), "type": "bridge", "bridge": format!("br{number}")});
    let addresses = json!([
        {"address": format!("10.20.0.{address}/24"), "gateway": "10.20.0.1"},
        {"address": format!("2001:db8:20::{address}/64"), "gateway": "2001:db8:20::1"},
    ]);
    static_ipam(
        &conf,
        addresses,
        json!([
            {"dst": "10.77.0.0/16"}, {"dst": "10.78.0.0/16", "gw": "10.20.0.9", "mtu": 1300, "priority": 5}, {"dst": "2001:db8:77::/48"},
        ]),
    )
}

/// Runs ADD of the main plugin as `ifname`; the case runs vrf.
#[track_caller]
pub fn attach<'a>(
    lab: &'a Lab,
    container: &Container,
    main: &Value,
    ifname: &str,
    vrf: &str,
) -> Chained<'a> {
    lab.chain_in(container, ifname, main, &json!({"type": "vrf", "vrfname": vrf}))
}

/// As `attach`, for `net1` on the first network and a VRF `blue`.
#[track_caller]
pub fn in_blue<'a>(lab: &'a Lab, container: &Container) -> Chained<'a> {
    attach(lab, container, &network(1, 2), "net1", "blue")
}

/// Runs a case of ours with the only interface of a VRF `blue`, if the kernel has VRFs.
pub fn for_ours_in_blue(case: impl Fn(&Lab, &Container, &Chained<'_>)) {
    for_ours("vrf", |lab| {
        if let Some(container) = container(lab) {
            case(lab, &container, &in_blue(lab, &container));
        }
    });
}

pub fn master(container: &Namespace, ifname: &str) -> Value {
    container.link(ifname).unwrap()["master"].clone()
}

/// All addresses of an interface, link-local ones included, without their state.
pub fn addresses(container: &Namespace, ifname: &str) -> Vec<Value> {
    let links = container.json(&format!("ip -j addr show dev {ifname}"));
    let state = json!({"tentative": null, "valid_life_time": null, "preferred_life_time": null});
    let mut all: Vec<Value> =
        links[0]["addr_info"].as_array().unwrap().iter().map(|a| with(a, state.clone())).collect();
    all.sort_by_key(Value::to_string);
    all
}
