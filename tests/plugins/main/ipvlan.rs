//! ipvlan: links with the hardware address of their master; the cases shared with macvlan and vlan
//! are in `stacked`.

use serde_json::{Value, json};

use super::stacked::{self, mac, second_master, stands_on};
use crate::support::attachment::with;
use crate::support::call::Peer;
use crate::support::contract::assert_shown;
use crate::support::failed_add::{Case, assert_fails, assert_refused};
use crate::support::netns::{Lab, OUTSIDE};
use crate::support::networks::bridge::static_ipam;
use crate::support::networks::stacked::{IPVLAN, PEER};
use crate::support::peers::each_case;
use crate::support::snapshot::Watch;
use crate::support::traffic::{Ear, assert_no_ping, assert_pings};

fn the_hardware_address_is_the_master_s(lab: &Lab) {
    let (container, _, result) = lab.added(&IPVLAN.conf());
    assert_eq!(mac(&container, "eth0"), mac(&lab.host, "uplink"));
    assert_eq!(result["interfaces"][0]["mac"], mac(&lab.host, "uplink").as_str());
}

#[test]
fn the_mode_is_l2_unless_another_is_asked_for() {
    let modes = r#"
{} | in: ip -j -d link show eth0 | /0/linkinfo/info_data/mode | "l2"
{"mode": ""} | in: ip -j -d link show eth0 | /0/linkinfo/info_data/mode | "l2"
{"mode": "l2"} | in: ip -j -d link show eth0 | /0/linkinfo/info_data/mode | "l2"
{"mode": "l3"} | in: ip -j -d link show eth0 | /0/linkinfo/info_data/mode | "l3"
{"mode": "l3s"} | in: ip -j -d link show eth0 | /0/linkinfo/info_data/mode | "l3s"
"#;
    IPVLAN.for_each_peer(|lab| assert_shown(lab, &IPVLAN.conf(), modes));
}

/// A layer 3 configuration: routes without a gateway; packets that leave the master follow the
/// host's routes.
fn of_layer_three(mode: &str, number: u8) -> Value {
    let addresses = json!([{"address": format!("10.3{number}.0.7/24")}, {"address": format!("2001:db8:3{number}::7/64")}]);
    let conf =
        static_ipam(&IPVLAN.conf(), addresses, json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]));
    with(&conf, json!({"mode": mode, "name": format!("net{number}")}))
}

/// Two subnets on one master, and an outside host that routes both to the host.
fn containers_of_layer_three_are_routed(lab: &Lab) {
    for mode in ["l3", "l3s"] {
        let (a, b) = (lab.container(), lab.container());
        let before = Watch::start(lab, &[&a, &b]);
        let (first, second) =
            (lab.attach(&a, &of_layer_three(mode, 1)), lab.attach(&b, &of_layer_three(mode, 2)));
        let result = first.add();
        second.add();
        assert_pings(&a, "10.32.0.7");
        assert_pings(&a, "2001:db8:32::7");
        assert_no_ping(&a, OUTSIDE[0]);
        lab.outside.sh(
            "ip route add 10.31.0.0/24 via 198.51.100.1; ip -6 route add 2001:db8:31::/64 via 2001:db8:ffff::1",
        );
        {
            let ear = Ear::listen(&lab.outside);
            OUTSIDE.iter().for_each(|outside| assert_pings(&a, outside));
            assert_eq!(ear.heard(), ["10.31.0.7", "2001:db8:31::7"], "{mode}");
        }
        first.check(&result).ok();
        first.del();
        second.del();
        before.assert_unchanged("ADD");
        lab.outside.sh("ip route del 10.31.0.0/24; ip -6 route del 2001:db8:31::/64");
    }
}

/// The host's packet filter sees packets to a container in mode l3s but not in mode l3.
fn packets_of_l3s_pass_the_host_s_filter(lab: &Lab) {
    lab.outside.sh("ip route add 10.31.0.0/24 via 198.51.100.1");
    lab.host.sh("nft 'add table ip f; add chain ip f input { type filter hook input priority 0; }; add rule ip f input ip daddr 10.31.0.7 drop'");
    for mode in ["l3", "l3s"] {
        let (container, attachment, _) = lab.added(&of_layer_three(mode, 1));
        let answers = if mode == "l3" { assert_pings } else { assert_no_ping };
        answers(&container, OUTSIDE[0]);
        attachment.del();
    }
}

// --- chained ---

/// A configuration with a previous result: an interface of the host, perhaps with addresses for the
/// container.
fn chained(previous: Value) -> Value {
    let previous = with(&json!({"cniVersion": "1.0.0"}), previous);
    with(&IPVLAN.conf(), json!({"master": null, "ipam": null, "prevResult": previous}))
}

/// The result of a plugin that names the uplink.
fn uplink() -> Value {
    json!({"interfaces": [{"name": "uplink"}], "ips": [{"address": "10.10.0.7/24"}]})
}

#[test]
fn the_master_is_the_interface_of_the_previous_plugin() {
    let given = json!({
        "ips": [{"address": "10.10.0.7/24", "gateway": "10.10.0.1", "interface": 0}],
        "routes": [{"dst": "10.99.0.0/16"}],
    });
    let previous = json!({"interfaces": [{"name": "second", "mac": "02:00:00:00:00:01"}]});
    let conf = chained(with(&given, previous));
    IPVLAN.for_each_peer(|lab| {
        second_master(lab);
        lab.host.sh("ip route add default via 198.51.100.2"); // not consulted
        lab.outside.sh("ip addr del 10.10.0.1/24 dev uplink; ip addr add 10.10.0.1/24 dev second");
        let (container, attachment, before) = lab.watched(&conf);
        let result = attachment.add();
        assert!(stands_on(lab, &container, "second"));
        let own =
            json!({"name": "eth0", "mac": mac(&container, "eth0"), "sandbox": container.netns});
        let expected = with(&given, json!({"cniVersion": "1.0.0", "interfaces": [own]}));
        assert_eq!(result, expected);
        assert_eq!(container.addresses("eth0"), ["10.10.0.7/24"]);
        assert_eq!(container.json("ip -j route show 10.99.0.0/16")[0]["gateway"], "10.10.0.1");
        assert_pings(&container, PEER[0]);
        if lab.peer == Peer::Ours {
            attachment.check(&result).ok(); // the reference's CHECK needs `master`
        }
        // The specification passes the final result to DEL.
        attachment.call("DEL", Some(&result)).run().ok();
        before.assert_unchanged("ADD");
        attachment.call("DEL", Some(&result)).run().ok();
    });
}

#[test]
fn dns_of_the_previous_result_is_kept_unless_the_network_has_it() {
    let dns = json!({"nameservers": ["192.0.2.53"]});
    let (previous, own) =
        (with(&uplink(), json!({"dns": dns})), json!({"search": ["net.example"]}));
    IPVLAN.for_ours(|lab| {
        for (changes, expected) in [(json!({}), &dns), (json!({"dns": own}), &own)] {
            let (_, attachment, result) = lab.added(&with(&chained(previous.clone()), changes));
            assert_eq!(result["dns"], *expected);
            attachment.del();
        }
    });
}

#[test]
fn ipam_and_master_go_before_the_previous_result() {
    let own = json!({"master": "second", "ipam": IPVLAN.conf()["ipam"]});
    let conf = with(&chained(uplink()), own);
    IPVLAN.for_each_peer(|lab| {
        second_master(lab);
        let (container, attachment, _) = lab.added(&conf);
        assert!(stands_on(lab, &container, "second"));
        assert_eq!(container.addresses("eth0"), ["10.10.0.2/24"]);
        attachment.del();
    });
}

#[test]
fn a_previous_result_without_a_single_interface_names_no_master() {
    let inside = json!({"name": "eth0", "sandbox": "/run/netns/x"});
    let interfaces =
        [json!(null), json!([]), json!([{"name": ""}]), json!([{"name": "uplink"}, inside])];
    IPVLAN.for_each_peer(|lab| {
        lab.host.sh("ip route add default via 198.51.100.2"); // not consulted
        for interfaces in &interfaces {
            let previous = with(&uplink(), json!({"interfaces": interfaces}));
            let case = Case::new("the refused ADD", json!({}), 7, "master: ");
            assert_fails(lab, &chained(previous), &case.reference_leaves_nothing());
        }
    });
}

/// Neither IPAM nor a previous plugin provides an address, and ipvlan has no layer 2 of its own.
fn addresses_are_required(lab: &Lab) {
    let previous = with(&uplink(), json!({"ips": null}));
    for conf in [with(&IPVLAN.conf(), json!({"ipam": null})), chained(previous)] {
        assert_refused(lab, &conf, 7, "ipam.type: ");
    }
}

// --- ADD that fails ---

/// The reference accepts any MTU: see tests/differences.
#[test]
fn an_mtu_that_the_master_has_not_is_refused() {
    stacked::failing_mtu()
        .iter()
        .for_each(|case| IPVLAN.for_ours(|lab| assert_fails(lab, &IPVLAN.conf(), case)));
}

/// Two containers on one master cannot share an address in mode l2 or l3: the kernel could not
/// choose the receiver of a packet.
fn an_address_of_another_container_of_the_master_is_refused(lab: &Lab) {
    lab.added(&IPVLAN.address("10.10.0.7/24"));
    assert_refused(lab, &IPVLAN.address("10.10.0.7/24"), 102, "10.10.0.7");
}

stacked::tests_of! { IPVLAN:
    the_master_is_the_link_of_the_default_route
    the_master_is_that_of_the_first_of_several_next_hops
    two_containers_of_one_master_talk
}

each_case! { |case| IPVLAN.for_each_peer(case);
    the_hardware_address_is_the_master_s
    containers_of_layer_three_are_routed
    packets_of_l3s_pass_the_host_s_filter
    addresses_are_required
    an_address_of_another_container_of_the_master_is_refused
}
