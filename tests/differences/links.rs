//! Deliberate differences of links, addresses and routes from the reference.

use serde_json::{Value, json};

use super::{FAILED, OK, check_after_add, differs};
use crate::support::attachment::with;
use crate::support::netns::Lab;
use crate::support::networks::bridge::{self, static_ipam};

/// The reference's CHECK looks for a route to the address's network in the main table; the kernel
/// has none for a /32.
#[test]
fn check_of_a_host_address_succeeds() {
    let conf = static_ipam(
        &with(&bridge::conf(), json!({"isGateway": null})),
        json!([{"address": "10.10.0.7/32"}]),
        json!([]),
    );
    differs("bridge", OK, FAILED, |lab| check_after_add(lab, &conf));
}

/// The reference's CHECK looks for every route in the main table.
#[test]
fn check_of_a_route_in_another_table_succeeds() {
    let conf =
        with(&bridge::conf(), json!({"ipam": {"routes": [{"dst": "10.99.0.0/16", "table": 100}]}}));
    differs("bridge", OK, FAILED, |lab| check_after_add(lab, &conf));
    let conf = with(&conf, json!({"type": "ptp"}));
    differs("ptp", OK, FAILED, |lab| check_after_add(lab, &conf));
}

/// The reference's library requests a queue length of zero on the host's end, through a field that
/// is never set.
#[test]
fn the_host_s_end_keeps_the_kernel_s_queue_length() {
    for plugin in ["bridge", "ptp"] {
        let observe = |lab: &Lab| host_end(lab, plugin)["txqlen"].clone();
        differs(plugin, json!(1000), Value::Null, observe); // `ip` prints no length of zero
    }
}

/// DEL finds the host's end by its alias and needs no namespace; the reference sets no alias.
#[test]
fn the_host_s_end_names_its_attachment() {
    for plugin in ["bridge", "ptp"] {
        differs(plugin, true, false, |lab| {
            let alias = host_end(lab, plugin)["ifalias"].as_str().unwrap_or_default().to_owned();
            alias.ends_with("net: net1, if: eth0, id: container-1")
        });
    }
}

fn host_end(lab: &Lab, plugin: &str) -> Value {
    let result =
        lab.attach(&lab.container(), &with(&bridge::conf(), json!({"type": plugin}))).add();
    let at = result["interfaces"].as_array().unwrap().len() - 2;
    lab.host.link(&crate::support::attachment::interface(&result, at)).unwrap()
}

/// No other host can have the addresses of a link that was just created, so they are usable when
/// ADD returns. The reference lets the kernel run duplicate address detection where `accept_dad`
/// enables it: on its bridge, and in a container of ptp.
#[test]
fn ipv6_addresses_can_be_used_at_once() {
    let nodad =
        |flags: &Value| flags.as_array().unwrap().iter().any(|address| address["nodad"] == true);
    for (plugin, in_container) in [("bridge", false), ("ptp", true)] {
        let conf = with(&bridge::dual_stack(), json!({"type": plugin}));
        differs(plugin, true, false, |lab| {
            let container = lab.container();
            lab.attach(&container, &conf).add();
            let links = match in_container {
                true => container.json("ip -j -6 addr show dev eth0 scope global"),
                false => lab.host.json("ip -j -6 addr show dev br0 scope global"),
            };
            nodad(&links[0]["addr_info"])
        });
    }
}

/// The reference has `mtu` and `advmss` of a route in the result, but not in the kernel.
#[test]
fn metrics_of_a_route_are_in_the_kernel() {
    let conf = with(
        &bridge::conf(),
        json!({"ipam": {"routes": [{"dst": "10.99.0.0/16", "mtu": 1300, "advmss": 1200}]}}),
    );
    differs("bridge", json!({"mtu": 1300, "advmss": 1200}), Value::Null, |lab| {
        let container = lab.container();
        lab.attach(&container, &conf).add();
        container.json("ip -j -d route show 10.99.0.0/16")[0]["metrics"][0].clone()
    });
}

/// An MTU that no veth accepts is refused before any change, with or without masquerading; the
/// reference creates the bridge first.
#[test]
fn an_mtu_that_cannot_be_is_a_mistake_of_the_configuration() {
    differs("bridge", 7, 999, |lab| {
        lab.attach(&lab.container(), &with(&bridge::conf(), json!({"mtu": 100_000})))
            .try_add()
            .err()
            .code
    });
}

/// The reference ignores a negative MTU.
#[test]
fn a_negative_mtu_is_a_mistake_of_the_configuration() {
    for plugin in ["bridge", "ptp"] {
        let conf = with(&bridge::conf(), json!({"type": plugin, "mtu": -1}));
        differs(plugin, FAILED, OK, |lab| lab.attach(&lab.container(), &conf).try_add().status);
    }
}
