//! Deliberate differences of masquerading from the reference.

use serde_json::json;

use super::{FAILED, OK, differs};
use crate::plugins::main::bridge::masquerade;
use crate::support::attachment::with;
use crate::support::networks::bridge::{self, static_ipam};
use crate::support::traffic::{Ear, assert_pings_with};

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

/// The reference's DEL also tries iptables. Debian's build treats "Chain … does not exist" of 1.8.9
/// (status 2) as an error, so DEL of a network masqueraded by nf_tables fails on such a host.
#[test]
fn del_of_an_nftables_network_succeeds_beside_iptables() {
    let conf = with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "nftables"}));
    differs("bridge", OK, FAILED, |lab| {
        let attachment = lab.attach(&lab.container(), &conf);
        attachment.add();
        attachment.try_del().status
    });
}

/// Without `ipMasqBackend` ours uses nf_tables and needs no program; the reference uses iptables.
#[test]
fn masquerade_uses_nftables_unless_configured_otherwise() {
    let conf = with(&bridge::conf(), json!({"ipMasq": true}));
    differs("bridge", false, true, |lab| {
        lab.attach(&lab.container(), &conf).add();
        let chains = lab.host.sh("iptables -t nat -S 2>/dev/null");
        chains.contains("MASQUERADE")
    });
}

/// Ours needs one read and one change; the reference starts a program for each rule.
#[test]
fn iptables_rules_of_an_attachment_take_two_programs() {
    let conf = with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "iptables"}));
    differs("bridge", true, false, |lab| {
        lab.host.sh(r#"mkdir /run/counted; for name in iptables iptables-restore; do
            printf '#!/bin/sh\necho >>/run/counted/log\nexec %s "$@"\n' "$(command -v $name)" >/run/counted/$name
            chmod +x /run/counted/$name; done"#);
        let mut call = lab.attach(&lab.container(), &conf).call("ADD", None);
        call.wrapper
            .extend(["sh", "-c", r#"PATH=/run/counted:$PATH exec "$0" "$@""#].map(str::to_owned));
        call.run().ok();
        lab.host.sh("wc -l </run/counted/log").trim().parse::<u32>().unwrap() <= 2
    });
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
