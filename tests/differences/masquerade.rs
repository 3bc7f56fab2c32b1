//! Deliberate differences of masquerading from the reference.

use serde_json::json;

use super::{FAILED, OK, differ, differs, network};
use crate::plugins::main::bridge::masquerade;
use crate::support::attachment::with;
use crate::support::networks::bridge::{self, static_ipam};
use crate::support::traffic::{Ear, assert_pings_with};

/// Debian's build treats "Chain … does not exist" of iptables 1.8.9 (status 2) as an error.
const ROWS: &str = r#"
tries iptables in DEL of an nftables network, too | {"ipMasq": true, "ipMasqBackend": "nftables"} | add; try DEL | 0 | 1
uses iptables unless configured otherwise | {"ipMasq": true} | add; iptables -t nat -S|grep -o -m1 MASQUERADE |  | MASQUERADE
starts a program for each rule of iptables | {"ipMasq": true, "ipMasqBackend": "iptables"} | mkdir /run/counted; for name in iptables iptables-restore; do printf '#!/bin/sh\necho >>/run/counted/log\nexec %s "$@"\n' $(command -v $name) >/run/counted/$name; chmod +x /run/counted/$name; done; PATH=/run/counted:$PATH; add; [ $(wc -l </run/counted/log) -gt 2 ] || echo two | two
"#;

#[test]
fn masquerades_differ_where_the_table_says_so() {
    differ("bridge", ROWS, network);
}

/// The reference names the iptables chain by the container, not by the interface: DEL of one
/// attachment removes the rules of the other, and then fails.
#[test]
fn del_of_one_attachment_keeps_the_iptables_rules_of_the_other() {
    differs("bridge", true, false, |lab| {
        masquerade::second_attachment_survives_del_of_the_first(lab, Some("iptables"))
    });
}

/// The reference leaves the rules of the first ADD's addresses, which another container may get.
#[test]
fn add_removes_iptables_rules_of_an_earlier_add_without_del() {
    differs("bridge", true, false, masquerade::add_takes_the_rules_of_a_lost_one_with_it);
}

/// Two addresses of one family in two subnets: the reference's iptables chain masquerades traffic
/// to the second subnet.
#[test]
fn neighbours_in_a_second_subnet_see_the_container_s_address() {
    let conf = |last: u8| {
        static_ipam(
            &with(
                &bridge::conf(),
                json!({"isGateway": null, "ipMasq": true, "ipMasqBackend": "iptables"}),
            ),
            json!([{"address": format!("10.10.0.{last}/24")}, {"address": format!("10.20.0.{last}/24")}]),
            json!([{"dst": "0.0.0.0/0", "gw": "10.10.0.1"}]),
        )
    };
    // The packet to the far end of the second subnet must pass the host, so the host has that
    // address on another link.
    differs("bridge", vec!["10.20.0.7".to_owned()], vec!["10.30.0.1".to_owned()], |lab| {
        let container = lab.container();
        lab.attach(&container, &conf(7)).add();
        lab.host
            .sh("ip addr add 10.10.0.1/24 dev br0; ip addr add 10.20.0.1/24 dev br0; sysctl -qw net.ipv4.ip_forward=1");
        let far = lab.container();
        lab.host.sh(&format!(
            "ip link add far type veth peer name far netns {}",
            far.netns.trim_start_matches("/run/netns/")
        ));
        lab.host.sh("ip link set far up; ip route add 10.20.0.200 dev far; ip addr add 10.30.0.1/24 dev far");
        far.sh(
            "ip link set far up; ip addr add 10.20.0.200/32 dev far; ip route add 10.30.0.1 dev far; ip route add default via 10.30.0.1",
        );
        container.sh("ip route add 10.20.0.200 via 10.20.0.1");
        let ear = Ear::listen(&far);
        assert_pings_with(&container, "10.20.0.200", "-I 10.20.0.7");
        ear.heard()
    });
}

/// Two networks with the same subnet give one address to two containers. The set has one element
/// for it, and it belongs to the last container. The reference has a rule for each.
#[test]
fn an_address_in_two_networks_is_masqueraded_for_the_last() {
    let conf = |network: &str, bridge: &str| {
        let changes =
            json!({"name": network, "bridge": bridge, "ipMasq": true, "ipMasqBackend": "nftables"});
        with(&bridge::conf(), changes)
    };
    differs("bridge", (OK, FAILED), (OK, OK), |lab| {
        lab.hide_iptables();
        let (first, second) = (lab.container(), lab.container());
        let (first, second) =
            (lab.attach(&first, &conf("net1", "br0")), lab.attach(&second, &conf("net2", "br1")));
        let result = first.add();
        second.add();
        let with_both = first.check(&result).status;
        second.del();
        (with_both, first.check(&result).status)
    });
}
