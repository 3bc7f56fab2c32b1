//! ipvlan: links with the hardware address of their master; the cases shared with macvlan and vlan
//! are in `stacked`.

use serde_json::{Value, json};

use super::stacked::{
    self, del_after_the_master, del_spares_an_interface_of_another_kind, eth0, mac,
    neighbours_are_told, second_master, stands_on,
};
use crate::support::attachment::with;
use crate::support::broken::Break;
use crate::support::call::Peer;
use crate::support::contract::{MainPlugin, contract};
use crate::support::failed_add::{Case, assert_fails};
use crate::support::netns::{Lab, OUTSIDE};
use crate::support::networks::bridge::static_ipam;
use crate::support::networks::stacked::{IPVLAN, PEER};
use crate::support::snapshot::Watch;
use crate::support::traffic::{Ear, assert_no_ping, assert_pings, assert_two_containers_talk};

#[test]
fn the_contract_of_main_plugins_is_kept() {
    contract(&MainPlugin {
        name: "ipvlan",
        conf: IPVLAN.conf(),
        prepare: |lab| IPVLAN.prepare(lab),
    });
}

#[test]
fn the_peer_is_reached_and_del_leaves_nothing() {
    stacked::the_peer_is_reached_and_del_leaves_nothing(&IPVLAN);
}

#[test]
fn the_result_says_what_the_kernel_has() {
    stacked::the_result_says_what_the_kernel_has(&IPVLAN);
}

#[test]
fn every_version_gets_a_result_of_its_shape() {
    stacked::every_version_gets_a_result_of_its_shape(&IPVLAN);
}

#[test]
fn dns_of_the_network_replaces_that_of_ipam_as_a_whole() {
    stacked::dns_of_the_network_replaces_that_of_ipam_as_a_whole(&IPVLAN);
}

#[test]
fn dns_of_the_network_is_in_the_result() {
    stacked::dns_of_the_network_is_in_the_result(&IPVLAN);
}

#[test]
fn the_mtu_is_given_or_the_master_s() {
    stacked::the_mtu_is_given_or_the_master_s(&IPVLAN);
}

#[test]
fn the_host_may_have_an_interface_of_the_same_name() {
    stacked::the_host_may_have_an_interface_of_the_same_name(&IPVLAN);
}

#[test]
fn the_master_may_be_named_by_an_alternative_name() {
    stacked::the_master_may_be_named_by_an_alternative_name(&IPVLAN);
}

#[test]
fn the_master_is_looked_for_where_link_in_container_says() {
    stacked::the_master_is_looked_for_where_link_in_container_says(&IPVLAN);
}

#[test]
fn ipv6_addresses_can_be_used_when_add_returns() {
    stacked::ipv6_addresses_can_be_used_when_add_returns(&IPVLAN);
}

#[test]
fn a_duplicate_ipv6_address_is_refused() {
    stacked::a_duplicate_ipv6_address_is_refused(&IPVLAN);
}

#[test]
fn del_with_a_stale_netns_file_leaves_nothing() {
    stacked::del_with_a_stale_netns_file_leaves_nothing(&IPVLAN);
}

#[test]
fn del_takes_any_configuration() {
    stacked::del_takes_any_configuration(&IPVLAN);
}

#[test]
fn gc_frees_what_no_runtime_knows_any_more() {
    stacked::gc_frees_what_no_runtime_knows_any_more(&IPVLAN);
}

#[test]
fn add_on_a_full_subnet_fails_and_nothing_has_changed() {
    stacked::add_on_a_full_subnet_fails_and_nothing_has_changed(&IPVLAN);
}

#[test]
fn the_master_is_the_link_of_the_default_route() {
    stacked::the_master_is_the_link_of_the_default_route(&IPVLAN);
}

#[test]
fn the_master_is_that_of_the_first_of_several_next_hops() {
    stacked::the_master_is_that_of_the_first_of_several_next_hops(&IPVLAN);
}

#[test]
fn the_default_route_is_the_container_s_where_the_master_is() {
    stacked::the_default_route_is_the_container_s_where_the_master_is(&IPVLAN);
}

#[test]
fn two_containers_of_one_master_talk() {
    IPVLAN.for_each_peer(|lab| assert_two_containers_talk(lab, &IPVLAN.dual_stack()));
}

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
    let cases = [
        (json!({}), "l2"),
        (json!({"mode": ""}), "l2"),
        (json!({"mode": "l2"}), "l2"),
        (json!({"mode": "l3"}), "l3"),
        (json!({"mode": "l3s"}), "l3s"),
    ];
    IPVLAN.for_each_peer(|lab| {
        for (changes, expected) in &cases {
            let container = lab.container();
            let attachment = lab.attach(&container, &with(&IPVLAN.conf(), changes.clone()));
            let result = attachment.add();
            assert_eq!(eth0(&container)["linkinfo"]["info_data"]["mode"], *expected);
            attachment.check(&result).ok();
            attachment.del();
        }
    });
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

// --- DEL, STATUS, CHECK ---

#[test]
fn a_new_container_is_announced_to_neighbours() {
    IPVLAN.for_each_peer(|lab| neighbours_are_told(lab, &IPVLAN));
}

#[test]
fn del_after_the_master_is_gone_leaves_nothing() {
    IPVLAN.for_each_peer(|lab| assert_eq!(del_after_the_master(lab, &IPVLAN), 0));
}

#[test]
fn del_spares_what_is_no_ipvlan() {
    IPVLAN.for_ours(|lab| assert!(del_spares_an_interface_of_another_kind(lab, &IPVLAN)));
}

#[test]
fn status_tells_that_no_container_could_be_attached() {
    stacked::status_tells_that_no_container_could_be_attached(&IPVLAN, true);
}

#[test]
fn check_finds_what_has_changed() {
    let own = vec![
        Break::new("mode changed", "ip link set eth0 type ipvlan mode l3", "mode"),
        Break::new("mac changed", "true", "eth0")
            .host("ip link set uplink address 02:00:00:00:00:01"),
    ];
    stacked::check_finds_what_has_changed(&IPVLAN, own);
}

/// CHECK without `master` after an ADD without it. The reference fails: see tests/differences.
fn check_without_master(lab: &Lab) -> i32 {
    lab.host.sh("ip route add default via 198.51.100.2");
    let attachment = lab.attach(&lab.container(), &with(&IPVLAN.conf(), json!({"master": null})));
    let result = attachment.add();
    attachment.check(&result).status
}

#[test]
fn check_needs_no_master() {
    IPVLAN.for_ours(|lab| assert_eq!(check_without_master(lab), 0));
}

#[test]
fn check_compares_the_master() {
    IPVLAN.for_ours(|lab| assert_eq!(stacked::check_with_another_master(lab, &IPVLAN), 1));
}

// --- ADD that fails ---

fn failing() -> Vec<Case> {
    vec![
        Case::new("mode unknown", json!({"mode": "nonsense"}), 7, "mode: \"nonsense\"")
            .reference_leaves_nothing(),
        Case::new("mode of another plugin", json!({"mode": "bridge"}), 7, "mode: \"bridge\"")
            .reference_leaves_nothing(),
        Case::new("mode of a wrong type", json!({"mode": 2}), 6, "mode").reference_leaves_nothing(),
        Case::new("a macvlan is on the master", json!({}), 100, "uplink")
            .host("ip link add link uplink name other type macvlan")
            .reference_leaves_nothing(),
        Case::new("the master is a port of a bridge", json!({}), 100, "uplink")
            .host("ip link add br0 type bridge; ip link set uplink master br0")
            .reference_leaves_nothing(),
    ]
}

#[test]
fn add_fails_and_nothing_has_changed() {
    stacked::add_fails_and_nothing_has_changed(&IPVLAN, failing());
}

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
