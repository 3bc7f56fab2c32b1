//! vlan: links that tag frames leaving through their master; the cases shared with macvlan and
//! ipvlan are in `stacked`.

use serde_json::json;

use super::stacked::mac;
use crate::support::attachment::{ips, with};
use crate::support::contract::assert_shown;
use crate::support::failed_add::assert_refused;
use crate::support::netns::Lab;
use crate::support::networks::stacked::{PEER, VLAN, hasty_container};
use crate::support::peers::each_case;
use crate::support::traffic::{assert_no_ping, assert_pings};

/// The outside peer and the container reach each other only in the container's VLAN.
fn frames_carry_the_tag(lab: &Lab) {
    let container = lab.container();
    lab.attach(&container, &VLAN.conf()).add();
    assert_eq!(mac(&container, "eth0"), mac(&lab.host, "uplink"), "it is the master's");
    assert_pings(&container, PEER[0]);
    // The same subnet on the same wire, untagged and with another tag: with arp_ignore only the
    // link that has the address answers.
    lab.outside.sh("echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore; ip link add link uplink name uplink.101 up type vlan id 101");
    lab.outside
        .sh("ip addr add 10.10.0.98/24 dev uplink; ip addr add 10.10.0.99/24 dev uplink.101");
    assert_no_ping(&container, "10.10.0.98");
    assert_no_ping(&container, "10.10.0.99");
    lab.outside
        .sh("ip addr del 10.10.0.98/24 dev uplink; ip addr add 10.10.0.98/24 dev uplink.100");
    assert_pings(&container, "10.10.0.98");
    // The container sends nothing untagged: it does not reach an address that the host reaches
    // untagged.
    assert_pings(&lab.host, crate::support::netns::OUTSIDE[0]);
    // Route it on the link, not through a gateway.
    container.sh(&format!("ip route replace {} dev eth0", crate::support::netns::OUTSIDE[0]));
    assert_no_ping(&container, crate::support::netns::OUTSIDE[0]);
}

/// A trunk is a wire: containers at both ends reach each other if they have the same VLAN ID.
fn two_containers_of_one_vlan_talk_over_the_trunk(lab: &Lab) {
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
}

#[test]
fn the_number_is_0_to_4094() {
    let numbers = r#"
{"vlanId": null} | in: ip -j -d link show eth0 | /0/linkinfo/info_data/id | 0
{"vlanId": 0} | in: ip -j -d link show eth0 | /0/linkinfo/info_data/id | 0
{"vlanId": 1} | in: ip -j -d link show eth0 | /0/linkinfo/info_data/id | 1
{"vlanId": 4094} | in: ip -j -d link show eth0 | /0/linkinfo/info_data/id | 4094
{"vlanId": 4094} | in: ip -j -d link show eth0 | /0/linkinfo/info_data/protocol | "802.1Q"
"#;
    VLAN.for_each_peer(|lab| assert_shown(lab, &VLAN.conf(), numbers));
}

/// A master has each VLAN ID once.
fn a_number_that_is_taken_is_refused_and_the_other_goes_on(lab: &Lab) {
    let first = hasty_container(lab);
    let attachment = lab.attach(&first, &VLAN.conf());
    let result = attachment.add();
    assert_refused(lab, &VLAN.conf(), 102, "vlanId: 100");
    attachment.check(&result).ok();
    assert_pings(&first, PEER[0]);
}

#[test]
fn check_compares_an_mtu_that_was_asked_for() {
    VLAN.for_ours(|lab| {
        let (container, attachment, result) = lab.added(&with(&VLAN.conf(), json!({"mtu": 1400})));
        attachment.check(&result).ok();
        container.sh("ip link set eth0 mtu 1300");
        attachment.check(&result).fails(103, "current value is 1300");
    });
}

each_case! { |case| VLAN.for_each_peer(case);
    frames_carry_the_tag
    two_containers_of_one_vlan_talk_over_the_trunk
    a_number_that_is_taken_is_refused_and_the_other_goes_on
}
