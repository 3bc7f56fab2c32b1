//! `msg` contains the reference's sentences that tools and users search for; each is checked in the
//! reference's own error too.

use serde_json::json;

use crate::support::attachment::{for_each_peer, for_ours, interface, with};
use crate::support::call::Outcome;
use crate::support::networks::bridge::{conf, static_ipam};
use crate::support::networks::ptp;
use crate::support::networks::stacked::{MACVLAN, PEER, VLAN};

#[track_caller]
fn assert_says(outcome: &Outcome, sentence: &str) {
    let error = outcome.err();
    assert!(error.msg.contains(sentence), "expected {sentence:?}: {error:?}");
}

#[test]
fn add_with_an_unreachable_gateway_names_the_route() {
    let routes = json!([{"dst": "10.99.0.0/16", "gw": "10.88.0.1", "priority": 7}]);
    let network = static_ipam(&conf(), json!([{"address": "10.10.0.2/24"}]), routes);
    for_each_peer("bridge", |lab| {
        let outcome = lab.attach(&lab.container(), &network).try_add();
        assert_says(&outcome, "failed to add route '");
        assert_says(
            &outcome,
            "via 10.88.0.1 dev eth0 metric 7 (Scope: universe, Table: 0)': network is unreachable",
        );
    });
}

#[test]
fn add_with_an_address_of_a_neighbour_names_it() {
    let address = json!([{"address": format!("{}/64", PEER[1]), "gateway": "2001:db8:10::fe"}]);
    MACVLAN.for_each_peer(|lab| {
        let container = lab.container();
        container.sh("echo 1 > /proc/sys/net/ipv6/conf/default/accept_dad");
        let outcome = lab.attach(&container, &static_ipam(&MACVLAN.conf(), address.clone(), json!([]))).try_add();
        let sentence =
            "failed to settle addresses for \"eth0\": link eth0 has address 2001:db8:10::1 in DADFAILED state";
        assert_says(&outcome, sentence);
    });
}

#[test]
fn add_on_a_master_that_is_taken_names_the_kind() {
    MACVLAN.for_each_peer(|lab| {
        lab.host.sh("ip link add bridge0 type bridge; ip link set uplink master bridge0");
        let outcome = lab.attach(&lab.container(), &MACVLAN.conf()).try_add();
        assert_says(&outcome, "failed to create macvlan: device or resource busy");
    });
}

#[test]
fn add_to_a_bridge_with_another_address_names_both() {
    for_each_peer("bridge", |lab| {
        lab.host.sh("ip link add br0 type bridge; ip addr add 10.99.0.1/24 dev br0");
        let outcome = lab.attach(&lab.container(), &conf()).try_add();
        let sentence = "failed to set bridge addr: \"br0\" already has an IP address different from 10.10.0.1/24";
        assert_says(&outcome, sentence);
    });
}

/// The reference accepts a duplicate address; it has this sentence for other causes.
#[test]
fn add_with_an_address_of_another_names_the_host() {
    let network = static_ipam(
        &ptp::conf(),
        json!([{"address": "10.10.0.2/24", "gateway": "10.10.0.1"}]),
        json!([]),
    );
    for_ours("ptp", |lab| {
        lab.attach(&lab.container(), &network).add();
        let outcome = lab.attach(&lab.container(), &network).try_add();
        assert_says(&outcome, "failed to add route on host: file exists");
    });
}

/// Numbers that fit Go's `int` but are out of range.
#[test]
fn add_with_a_number_out_of_range_names_it() {
    let bridge = |change| with(&conf(), change);
    let vlan = |change| with(&VLAN.conf(), change);
    let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.10.0.2/24"}]});
    let mark = json!({"cniVersion": "1.0.0", "name": "net1", "type": "portmap", "markMasqBit": -1, "prevResult": result});
    let mtu = "must be [0, master MTU(1500)]";
    let cases = [
        (bridge(json!({"vlan": -1})), "invalid VLAN ID -1 (must be between 0 and 4094)".to_owned()),
        (
            bridge(json!({"vlan": 70_000})),
            "invalid VLAN ID 70000 (must be between 0 and 4094)".to_owned(),
        ),
        (bridge(json!({"vlanTrunk": [{"id": -1}]})), "incorrect trunk id parameter".to_owned()),
        (
            bridge(json!({"vlanTrunk": [{"minID": -1, "maxID": 4}]})),
            "incorrect trunk minID parameter".to_owned(),
        ),
        (
            bridge(json!({"vlanTrunk": [{"minID": 1, "maxID": 70_000}]})),
            "incorrect trunk maxID parameter".to_owned(),
        ),
        (
            vlan(json!({"vlanId": -1})),
            "invalid VLAN ID -1 (must be between 0 and 4095 inclusive)".to_owned(),
        ),
        (
            vlan(json!({"vlanId": 70_000})),
            "invalid VLAN ID 70000 (must be between 0 and 4095 inclusive)".to_owned(),
        ),
        (vlan(json!({"mtu": -100})), format!("invalid MTU -100, {mtu}")),
        (with(&MACVLAN.conf(), json!({"mtu": -1})), format!("invalid MTU -1, {mtu}")),
        (with(&MACVLAN.conf(), json!({"mtu": 70_000})), format!("invalid MTU 70000, {mtu}")),
        (mark, "MasqMarkBit must be between 0 and 31".to_owned()),
    ];
    for (network, sentence) in cases {
        for_each_peer(network["type"].as_str().unwrap(), |lab| {
            assert_says(&lab.attach(&lab.container(), &network).try_add(), &sentence);
        });
    }
}

#[test]
fn a_namespace_that_cannot_be_opened_is_named() {
    for_each_peer("bridge", |lab| {
        let add = |path: &str| lab.attach(&lab.container(), &conf()).netns(Some(path)).try_add();
        let sentence = "failed to open netns \"/nowhere\": failed to Statfs \"/nowhere\": no such file or directory";
        assert_says(&add("/nowhere"), sentence);
        assert_says(
            &add("/etc/passwd"),
            "failed to open netns \"/etc/passwd\": unknown FS magic on \"/etc/passwd\"",
        );
    });
}

#[test]
fn check_of_a_port_without_bridge_names_the_bridge() {
    for_each_peer("bridge", |lab| {
        let attachment = lab.attach(&lab.container(), &conf());
        let result = attachment.add();
        lab.host.sh(&format!("ip link set {} nomaster", interface(&result, 1)));
        assert_says(&attachment.check(&result), "CNI veth created for bridge br0 was not found");
    });
}

/// The reference's CHECK only looks for a route to the subnet in the container.
#[test]
fn check_without_the_gateway_s_address_names_it() {
    let sentence = "Failed to find Gateway 10.10.0.1 for interface eth0";
    for_ours("bridge", |lab| {
        let attachment = lab.attach(&lab.container(), &conf());
        let result = attachment.add();
        lab.host.sh("ip addr flush dev br0");
        assert_says(&attachment.check(&result), sentence);
    });
    for_ours("ptp", |lab| {
        let attachment = lab.attach(&lab.container(), &ptp::conf());
        let result = attachment.add();
        lab.host.sh(&format!("ip addr flush dev {}", interface(&result, 0)));
        assert_says(&attachment.check(&result), sentence);
    });
}
