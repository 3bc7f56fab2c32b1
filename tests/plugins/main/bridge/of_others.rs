//! A foreign bridge, with an uplink or without ports, keeps its hardware address.

use serde_json::{Value, json};

use super::mac;
use crate::support::attachment::{for_each_peer, for_ours, with};
use crate::support::netns::Lab;
use crate::support::networks::bridge::{conf, warm_up};
use crate::support::traffic::assert_pings;

/// Creates a bridge with an uplink that has this hardware address.
fn bridge_with_uplink(lab: &Lab, address: &str) {
    lab.host.sh(&format!(
        "ip link add wire0 up address {address} type veth peer name wire1 && ip link set wire1 up && \
         ip link add br0 up type bridge && ip link set wire0 master br0"
    ));
    assert_eq!(mac(&lab.host, "br0"), address);
}

/// Expects that two ADDs and their DELs keep the bridge's current address.
#[track_caller]
fn assert_keeps_mac(lab: &Lab, conf: &Value) {
    let before = mac(&lab.host, "br0");
    for round in 1..=2 {
        let container = lab.container();
        let attachment = lab.attach(&container, conf);
        let result = attachment.add();
        assert_eq!(result["interfaces"][0]["mac"], *before, "the result of ADD {round}");
        assert_eq!(mac(&lab.host, "br0"), before, "after ADD {round}");
        if conf["isGateway"] == true {
            assert_pings(&container, "10.10.0.1");
        }
        attachment.del();
        assert_eq!(mac(&lab.host, "br0"), before, "after DEL {round}");
    }
}

/// The uplink's address is the highest, so the bridge would take the address of each new port.
#[test]
fn gateway_on_a_bridge_with_an_uplink_keeps_its_mac() {
    for_each_peer("bridge", |lab| {
        bridge_with_uplink(lab, "fe:ff:ff:ff:ff:ff");
        assert_keeps_mac(lab, &conf());
    });
}

#[test]
fn gateway_on_a_bridge_without_ports_keeps_its_mac() {
    for_each_peer("bridge", |lab| {
        lab.host.sh("ip link add br0 type bridge");
        assert_keeps_mac(lab, &conf());
    });
}

/// The address is not fixed on such a bridge: it is the lowest of its ports', and the addresses of
/// container ports are high. The reference's are random.
#[test]
fn switch_with_an_uplink_keeps_its_mac() {
    for_ours("bridge", |lab| {
        bridge_with_uplink(lab, "fc:ff:ff:ff:ff:ff");
        assert_keeps_mac(lab, &with(&conf(), json!({"ipam": null, "isGateway": null})));
        lab.host.sh("ip addr add 10.10.0.1/24 dev br0");
        // The bridge has the gateway's address already, so its MAC is not fixed here either.
        assert_keeps_mac(lab, &conf());
    });
}

/// A bridge that has lost its last port has no MAC. The reference's first ADD fails on it.
#[test]
fn gateway_on_a_bridge_without_a_mac_gets_one_that_stays() {
    for_ours("bridge", |lab| {
        lab.host.sh("ip link add br0 up type bridge && ip link add port master br0 type veth peer name other && ip link del port");
        assert_eq!(mac(&lab.host, "br0"), "00:00:00:00:00:00");
        warm_up(lab, &conf());
        assert_ne!(mac(&lab.host, "br0"), "00:00:00:00:00:00");
        assert_keeps_mac(lab, &conf());
    });
}
