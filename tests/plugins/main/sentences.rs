//! `msg` contains the reference's sentences that tools and users search for; each is checked in the
//! reference's own error too.

use serde_json::json;

use crate::support::attachment::{for_each_peer, for_ours, interface, with};
use crate::support::call::Outcome;
use crate::support::networks::bridge::{conf, static_ipam};
use crate::support::networks::ptp;
use crate::support::networks::stacked::{MACVLAN, PEER, VLAN};
use crate::support::table::cells;

#[track_caller]
fn assert_says(outcome: &Outcome, sentence: &str) {
    let error = outcome.err();
    assert!(error.msg.contains(sentence), "expected {sentence:?}: {error:?}");
}

/// What prepares the host, the network, changes to it, and the sentence. Numbers out of range fit Go's `int`.
const OF_ADD: &str = r#"
true | bridge | {"ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1", "priority": 7}]}} | failed to add route '
true | bridge | {"ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1", "priority": 7}]}} | via 10.88.0.1 dev eth0 metric 7 (Scope: universe, Table: 0)': network is unreachable
ip link add bridge0 type bridge; ip link set uplink master bridge0 | macvlan | {} | failed to create macvlan: device or resource busy
ip link add br0 type bridge; ip addr add 10.99.0.1/24 dev br0 | bridge | {} | failed to set bridge addr: "br0" already has an IP address different from 10.10.0.1/24
true | bridge | {"promiscMode": true, "hairpinMode": true} | hairpin mode and promiscuous mode
mkdir -p /var/lib/cni/networks/net1 && printf 'other\r\neth0' >/var/lib/cni/networks/net1/10.10.0.2 | bridge | {"ipam": {"subnet": "10.10.0.0/30"}} | 10.10.0.1-10.10.0.2
true | bridge | {"vlan": -1} | invalid VLAN ID -1 (must be between 0 and 4094)
true | bridge | {"vlan": 70000} | invalid VLAN ID 70000 (must be between 0 and 4094)
true | bridge | {"vlanTrunk": [{"id": -1}]} | incorrect trunk id parameter
true | bridge | {"vlanTrunk": [{"minID": -1, "maxID": 4}]} | incorrect trunk minID parameter
true | bridge | {"vlanTrunk": [{"minID": 1, "maxID": 70000}]} | incorrect trunk maxID parameter
true | vlan | {"vlanId": -1} | invalid VLAN ID -1 (must be between 0 and 4095 inclusive)
true | vlan | {"vlanId": 70000} | invalid VLAN ID 70000 (must be between 0 and 4095 inclusive)
true | vlan | {"mtu": -100} | invalid MTU -100, must be [0, master MTU(1500)]
true | macvlan | {"mtu": -1} | invalid MTU -1, must be [0, master MTU(1500)]
true | macvlan | {"mtu": 70000} | invalid MTU 70000, must be [0, master MTU(1500)]
true | portmap | {"markMasqBit": -1} | MasqMarkBit must be between 0 and 31
"#;

#[test]
fn add_says_what_the_reference_says() {
    let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.10.0.2/24"}]});
    let mark =
        json!({"cniVersion": "1.0.0", "name": "net1", "type": "portmap", "prevResult": result});
    for [prepare, plugin, changes, sentence] in cells(OF_ADD) {
        let base = match plugin {
            "bridge" => conf(),
            "macvlan" => MACVLAN.conf(),
            "vlan" => VLAN.conf(),
            _ => mark.clone(),
        };
        let network = with(&base, serde_json::from_str(changes).unwrap());
        for_each_peer(plugin, |lab| {
            lab.host.sh(prepare);
            assert_says(&lab.place(&network).1.try_add(), sentence);
        });
    }
}

#[test]
fn add_with_an_address_of_a_neighbour_names_it() {
    let address = json!([{"address": format!("{}/64", PEER[1]), "gateway": "2001:db8:10::fe"}]);
    let network = static_ipam(&MACVLAN.conf(), address, json!([]));
    MACVLAN.for_each_peer(|lab| {
        let (container, attachment) = lab.place(&network);
        container.sh("echo 1 > /proc/sys/net/ipv6/conf/default/accept_dad");
        let sentence =
            "failed to settle addresses for \"eth0\": link eth0 has address 2001:db8:10::1 in DADFAILED state";
        assert_says(&attachment.try_add(), sentence);
    });
}

/// The reference accepts a duplicate address; it has this sentence for other causes.
#[test]
fn add_with_an_address_of_another_names_the_host() {
    let address = json!([{"address": "10.10.0.2/24", "gateway": "10.10.0.1"}]);
    let network = static_ipam(&ptp::conf(), address, json!([]));
    for_ours("ptp", |lab| {
        lab.added(&network);
        assert_says(&lab.place(&network).1.try_add(), "failed to add route on host: file exists");
    });
}

#[test]
fn a_namespace_that_cannot_be_opened_is_named() {
    for_each_peer("bridge", |lab| {
        for (path, why) in [
            ("/nowhere", "failed to Statfs \"/nowhere\": no such file or directory"),
            ("/etc/passwd", "unknown FS magic on \"/etc/passwd\""),
        ] {
            let outcome = lab.place(&conf()).1.netns(Some(path)).try_add();
            assert_says(&outcome, &format!("failed to open netns \"{path}\": {why}"));
        }
    });
}

#[test]
fn check_of_a_port_without_bridge_names_the_bridge() {
    for_each_peer("bridge", |lab| {
        let (_, attachment, result) = lab.added(&conf());
        lab.host.sh(&format!("ip link set {} nomaster", interface(&result, 1)));
        assert_says(&attachment.check(&result), "CNI veth created for bridge br0 was not found");
    });
}
