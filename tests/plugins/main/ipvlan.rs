//! ipvlan: links with the hardware address of their master; the cases shared with macvlan and vlan
//! are in `stacked`.

use serde_json::{Value, json};

use super::stacked::{self, mac, second_master, stands_on};
use crate::support::attachment::with;
use crate::support::call::Peer;
use crate::support::contract::assert_shown;
use crate::support::failed_add::assert_fails;
use crate::support::netns::OUTSIDE;
use crate::support::networks::bridge::static_ipam;
use crate::support::networks::stacked::{IPVLAN, PEER};
use crate::support::snapshot::Watch;
use crate::support::traffic::{Ear, assert_no_ping, assert_pings};

#[test]
fn the_hardware_address_is_the_master_s() {
    IPVLAN.for_each_peer(|lab| {
        let container = lab.container();
        let result = lab.attach(&container, &IPVLAN.conf()).add();
        assert_eq!(mac(&container, "eth0"), mac(&lab.host, "uplink"));
        assert_eq!(result["interfaces"][0]["mac"], mac(&lab.host, "uplink").as_str());
    });
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
#[test]
fn containers_of_layer_three_are_routed() {
    IPVLAN.for_each_peer(|lab| {
        for mode in ["l3", "l3s"] {
            let (a, b) = (lab.container(), lab.container());
            let before = Watch::start(lab, &[&a, &b]);
            let (first, second) = (lab.attach(&a, &of_layer_three(mode, 1)), lab.attach(&b, &of_layer_three(mode, 2)));
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
    });
}

/// The host's packet filter sees packets to a container in mode l3s but not in mode l3.
#[test]
fn packets_of_l3s_pass_the_host_s_filter() {
    IPVLAN.for_each_peer(|lab| {
        lab.outside.sh("ip route add 10.31.0.0/24 via 198.51.100.1");
        lab.host.sh("nft 'add table ip f; add chain ip f input { type filter hook input priority 0; }; add rule ip f input ip daddr 10.31.0.7 drop'");
        for (mode, passes) in [("l3", true), ("l3s", false)] {
            let container = lab.container();
            let attachment = lab.attach(&container, &of_layer_three(mode, 1));
            attachment.add();
            if passes {
                assert_pings(&container, OUTSIDE[0]);
            } else {
                assert_no_ping(&container, OUTSIDE[0]);
            }
            attachment.del();
        }
    });
}

// --- chained ---

/// A configuration with a previous result: an interface of the host, perhaps with addresses for the
/// container.
fn chained(previous: Value) -> Value {
    let previous = with(&json!({"cniVersion": "1.0.0"}), previous);
    with(&IPVLAN.conf(), json!({"master": null, "ipam": null, "prevResult": previous}))
}

#[test]
fn the_master_is_the_interface_of_the_previous_plugin() {
    let previous = json!({
        "interfaces": [{"name": "second", "mac": "02:00:00:00:00:01"}],
        "ips": [{"address": "10.10.0.7/24", "gateway": "10.10.0.1", "interface": 0}],
        "routes": [{"dst": "10.99.0.0/16"}],
    });
    IPVLAN.for_each_peer(|lab| {
        second_master(lab);
        lab.host.sh("ip route add default via 198.51.100.2"); // not consulted
        lab.outside.sh("ip addr del 10.10.0.1/24 dev uplink; ip addr add 10.10.0.1/24 dev second");
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let attachment = lab.attach(&container, &chained(previous.clone()));
        let result = attachment.add();
        assert!(stands_on(lab, &container, "second"));
        let expected = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "mac": mac(&container, "eth0"), "sandbox": container.netns}],
            "ips": [{"address": "10.10.0.7/24", "gateway": "10.10.0.1", "interface": 0}],
            "routes": [{"dst": "10.99.0.0/16"}],
        });
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
    let previous = json!({
        "interfaces": [{"name": "uplink"}], "ips": [{"address": "10.10.0.7/24"}], "dns": {"nameservers": ["192.0.2.53"]},
    });
    IPVLAN.for_ours(|lab| {
        for (changes, expected) in [
            (json!({}), json!({"nameservers": ["192.0.2.53"]})),
            (json!({"dns": {"search": ["net.example"]}}), json!({"search": ["net.example"]})),
        ] {
            let attachment =
                lab.attach(&lab.container(), &with(&chained(previous.clone()), changes));
            assert_eq!(attachment.add()["dns"], expected);
            attachment.del();
        }
    });
}

#[test]
fn ipam_and_master_go_before_the_previous_result() {
    let previous =
        json!({"interfaces": [{"name": "uplink"}], "ips": [{"address": "10.10.0.7/24"}]});
    IPVLAN.for_each_peer(|lab| {
        second_master(lab);
        let ipam = IPVLAN.conf()["ipam"].clone();
        let container = lab.container();
        let attachment = lab.attach(
            &container,
            &with(&chained(previous.clone()), json!({"master": "second", "ipam": ipam})),
        );
        attachment.add();
        assert!(stands_on(lab, &container, "second"));
        assert_eq!(container.addresses("eth0"), ["10.10.0.2/24"]);
        attachment.del();
    });
}

#[test]
fn a_previous_result_without_a_single_interface_names_no_master() {
    let ips = json!([{"address": "10.10.0.7/24"}]);
    let cases = [
        json!({"ips": ips}),
        json!({"ips": ips, "interfaces": []}),
        json!({"ips": ips, "interfaces": [{"name": ""}]}),
        json!({"ips": ips, "interfaces": [{"name": "uplink"}, {"name": "eth0", "sandbox": "/run/netns/x"}]}),
    ];
    IPVLAN.for_each_peer(|lab| {
        lab.host.sh("ip route add default via 198.51.100.2"); // not consulted
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        for previous in &cases {
            let error = lab.attach(&container, &chained(previous.clone())).try_add().err();
            if lab.peer == Peer::Ours {
                assert_eq!(error.code, 7, "{previous}: {error:?}");
                assert!(error.text().contains("master: "), "{previous}: {error:?}");
            }
            before.assert_unchanged("the refused ADD");
        }
    });
}

/// Neither IPAM nor a previous plugin provides an address, and ipvlan has no layer 2 of its own.
#[test]
fn addresses_are_required() {
    IPVLAN.for_each_peer(|lab| {
        let previous = json!({"interfaces": [{"name": "uplink"}]});
        for conf in [with(&IPVLAN.conf(), json!({"ipam": null})), chained(previous)] {
            let container = lab.container();
            let before = Watch::start(lab, &[&container]);
            let error = lab.attach(&container, &conf).try_add().err();
            if lab.peer == Peer::Ours {
                assert_eq!(error.code, 7, "{error:?}");
                assert!(error.text().contains("ipam.type: "), "{error:?}");
                before.assert_unchanged("the refused ADD");
            }
        }
    });
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
#[test]
fn an_address_of_another_container_of_the_master_is_refused() {
    IPVLAN.for_each_peer(|lab| {
        lab.attach(&lab.container(), &IPVLAN.address("10.10.0.7/24")).add();
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let error = lab.attach(&container, &IPVLAN.address("10.10.0.7/24")).try_add().err();
        if lab.peer == Peer::Ours {
            assert_eq!(error.code, 102, "{error:?}");
            assert!(error.text().contains("10.10.0.7"), "{error:?}");
            before.assert_unchanged("the failed ADD");
        }
    });
}

stacked::tests_of! { IPVLAN:
    the_master_is_the_link_of_the_default_route
    the_master_is_that_of_the_first_of_several_next_hops
    the_default_route_is_the_container_s_where_the_master_is
    two_containers_of_one_master_talk
}
