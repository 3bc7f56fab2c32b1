//! vlan: links that tag frames leaving through their master; the cases shared with macvlan and
//! ipvlan are in `stacked`.

use serde_json::json;

use super::stacked::{
    self, del_after_the_master, del_spares_an_interface_of_another_kind, eth0, mac,
    neighbours_are_told,
};
use crate::support::attachment::{ips, with};
use crate::support::broken::Break;
use crate::support::call::Peer;
use crate::support::contract::{MainPlugin, contract};
use crate::support::failed_add::Case;
use crate::support::networks::stacked::{PEER, VLAN, hasty_container};
use crate::support::snapshot::Watch;
use crate::support::traffic::{assert_no_ping, assert_pings};

#[test]
fn the_contract_of_main_plugins_is_kept() {
    contract(&MainPlugin { name: "vlan", conf: VLAN.conf(), prepare: |lab| VLAN.prepare(lab) });
}

#[test]
fn the_peer_is_reached_and_del_leaves_nothing() {
    stacked::the_peer_is_reached_and_del_leaves_nothing(&VLAN);
}

#[test]
fn the_result_says_what_the_kernel_has() {
    stacked::the_result_says_what_the_kernel_has(&VLAN);
}

#[test]
fn every_version_gets_a_result_of_its_shape() {
    stacked::every_version_gets_a_result_of_its_shape(&VLAN);
}

#[test]
fn dns_of_the_network_replaces_that_of_ipam_as_a_whole() {
    stacked::dns_of_the_network_replaces_that_of_ipam_as_a_whole(&VLAN);
}

#[test]
fn dns_of_the_network_is_in_the_result() {
    stacked::dns_of_the_network_is_in_the_result(&VLAN);
}

#[test]
fn the_mtu_is_given_or_the_master_s() {
    stacked::the_mtu_is_given_or_the_master_s(&VLAN);
}

#[test]
fn the_host_may_have_an_interface_of_the_same_name() {
    stacked::the_host_may_have_an_interface_of_the_same_name(&VLAN);
}

#[test]
fn the_master_may_be_named_by_an_alternative_name() {
    stacked::the_master_may_be_named_by_an_alternative_name(&VLAN);
}

#[test]
fn the_master_is_looked_for_where_link_in_container_says() {
    stacked::the_master_is_looked_for_where_link_in_container_says(&VLAN);
}

#[test]
fn ipv6_addresses_can_be_used_when_add_returns() {
    stacked::ipv6_addresses_can_be_used_when_add_returns(&VLAN);
}

#[test]
fn a_duplicate_ipv6_address_is_refused() {
    stacked::a_duplicate_ipv6_address_is_refused(&VLAN);
}

#[test]
fn del_with_a_stale_netns_file_leaves_nothing() {
    stacked::del_with_a_stale_netns_file_leaves_nothing(&VLAN);
}

#[test]
fn del_takes_any_configuration() {
    stacked::del_takes_any_configuration(&VLAN);
}

#[test]
fn gc_frees_what_no_runtime_knows_any_more() {
    stacked::gc_frees_what_no_runtime_knows_any_more(&VLAN);
}

#[test]
fn add_on_a_full_subnet_fails_and_nothing_has_changed() {
    stacked::add_on_a_full_subnet_fails_and_nothing_has_changed(&VLAN);
}

/// The outside peer and the container reach each other only in the container's VLAN.
#[test]
fn frames_carry_the_tag() {
    VLAN.for_each_peer(|lab| {
        let container = lab.container();
        lab.attach(&container, &VLAN.conf()).add();
        assert_pings(&container, PEER[0]);
        // The same subnet on the same wire, untagged and with another tag: with arp_ignore only the
        // link that has the address answers.
        lab.outside.sh("echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore; ip link add link uplink name uplink.101 up type vlan id 101");
        lab.outside.sh("ip addr add 10.10.0.98/24 dev uplink; ip addr add 10.10.0.99/24 dev uplink.101");
        assert_no_ping(&container, "10.10.0.98");
        assert_no_ping(&container, "10.10.0.99");
        lab.outside.sh("ip addr del 10.10.0.98/24 dev uplink; ip addr add 10.10.0.98/24 dev uplink.100");
        assert_pings(&container, "10.10.0.98");
        // The container sends nothing untagged: it does not reach an address that the host reaches
        // untagged.
        assert_pings(&lab.host, crate::support::netns::OUTSIDE[0]);
        // Route it on the link, not through a gateway.
        container.sh(&format!("ip route replace {} dev eth0", crate::support::netns::OUTSIDE[0]));
        assert_no_ping(&container, crate::support::netns::OUTSIDE[0]);
    });
}

/// A trunk is a wire: containers at both ends reach each other if they have the same VLAN ID.
#[test]
fn two_containers_of_one_vlan_talk_over_the_trunk() {
    VLAN.for_each_peer(|lab| {
        lab.host.sh("ip link add trunk0 up type veth peer name trunk1; ip link set trunk1 up");
        let attach = |master: &str, id: u16| {
            let container = hasty_container(lab);
            let conf = with(&VLAN.dual_stack(), json!({"master": master, "vlanId": id}));
            let addresses = ips(&lab.attach(&container, &conf).add());
            (container, addresses)
        };
        let (a, _) = attach("trunk0", 100);
        let (_b, same) = attach("trunk1", 100);
        let (_c, other) = attach("trunk1", 200);
        same.iter().for_each(|ip| assert_pings(&a, ip));
        other.iter().for_each(|ip| assert_no_ping(&a, ip));
    });
}

#[test]
fn the_number_is_0_to_4094() {
    VLAN.for_each_peer(|lab| {
        for (changes, expected) in [
            (json!({"vlanId": null}), 0),
            (json!({"vlanId": 0}), 0),
            (json!({"vlanId": 1}), 1),
            (json!({"vlanId": 4094}), 4094),
        ] {
            let container = lab.container();
            let attachment = lab.attach(&container, &with(&VLAN.conf(), changes));
            let result = attachment.add();
            let data = &eth0(&container)["linkinfo"]["info_data"];
            assert_eq!((&data["id"], &data["protocol"]), (&json!(expected), &json!("802.1Q")));
            assert_eq!(mac(&container, "eth0"), mac(&lab.host, "uplink"), "it is the master's");
            attachment.check(&result).ok();
            attachment.del();
        }
    });
}

/// A master has each VLAN ID once.
#[test]
fn a_number_that_is_taken_is_refused_and_the_other_goes_on() {
    VLAN.for_each_peer(|lab| {
        let first = hasty_container(lab);
        let attachment = lab.attach(&first, &VLAN.conf());
        let result = attachment.add();
        let second = lab.container();
        let before = Watch::start(lab, &[&first, &second]);
        let error = lab.attach(&second, &VLAN.conf()).try_add().err();
        if lab.peer == Peer::Ours {
            assert_eq!(error.code, 102, "{error:?}");
            assert!(error.text().contains("vlanId: 100"), "{error:?}");
            before.assert_unchanged("the failed ADD");
        }
        attachment.check(&result).ok();
        assert_pings(&first, PEER[0]);
    });
}

/// The reference does not set the sysctls: see tests/differences.
#[test]
fn a_new_container_is_announced_to_neighbours() {
    VLAN.for_ours(|lab| neighbours_are_told(lab, &VLAN));
}

/// The reference's DEL fails: see tests/differences.
#[test]
fn del_after_the_master_is_gone_leaves_nothing() {
    VLAN.for_ours(|lab| assert_eq!(del_after_the_master(lab, &VLAN), 0));
}

#[test]
fn del_spares_what_is_no_vlan() {
    VLAN.for_ours(|lab| assert!(del_spares_an_interface_of_another_kind(lab, &VLAN)));
}

#[test]
fn status_tells_that_no_container_could_be_attached() {
    stacked::status_tells_that_no_container_could_be_attached(&VLAN, false);
}

#[test]
fn check_finds_what_has_changed() {
    let own = vec![
        Break::mac_changed(),
        Break::new("replaced by another VLAN", "ip link del eth0", "200").host(
            "ip link add link uplink name other type vlan id 200 && ip link set other netns $container name eth0 && \
             ip -n $container link set eth0 up && ip -n $container addr add 10.10.0.2/24 dev eth0 && \
             ip -n $container addr add 2001:db8:10::2/64 dev eth0 nodad && \
             ip -n $container route add default via 10.10.0.1 && ip -n $container route add default via 2001:db8:10::1",
        ),
    ];
    stacked::check_finds_what_has_changed(&VLAN, own);
}

#[test]
fn check_compares_an_mtu_that_was_asked_for() {
    let conf = with(&VLAN.dual_stack(), json!({"mtu": 1400}));
    VLAN.for_each_peer(|lab| {
        stacked::check_finds(
            lab,
            &conf,
            &Break::new("mtu changed", "ip link set eth0 mtu 1300", "current value is 1300"),
        )
    });
}

#[test]
fn check_compares_the_master() {
    VLAN.for_ours(|lab| assert_eq!(stacked::check_with_another_master(lab, &VLAN), 1));
}

fn failing() -> Vec<Case> {
    let cases = vec![
        Case::new("no master", json!({"master": null}), 7, "master: ").reference_leaves_nothing(),
        Case::new("no master, but a default route", json!({"master": null}), 7, "master: ")
            .host("ip route add default via 198.51.100.2")
            .reference_leaves_nothing(),
        Case::new("master empty", json!({"master": ""}), 7, "master: ").reference_leaves_nothing(),
        Case::new("number too large", json!({"vlanId": 4095}), 7, "vlanId: 4095")
            .reference_leaves_nothing(),
        Case::new("number much too large", json!({"vlanId": 5000}), 7, "vlanId: 5000")
            .reference_leaves_nothing(),
        Case::new("number negative", json!({"vlanId": -1}), 7, "vlanId: -1")
            .reference_leaves_nothing(),
        Case::new("number of a wrong type", json!({"vlanId": "100"}), 6, "vlanId")
            .reference_leaves_nothing(),
        Case::new("number taken on the host", json!({}), 102, "vlanId: 100")
            .host("ip link add link uplink name taken type vlan id 100")
            .reference_leaves_nothing(),
        Case::new("no IPAM", json!({"ipam": null}), 7, "ipam.type: "),
    ];
    cases.into_iter().chain(stacked::failing_mtu()).collect()
}

#[test]
fn add_fails_and_nothing_has_changed() {
    stacked::add_fails_and_nothing_has_changed(&VLAN, failing());
}
