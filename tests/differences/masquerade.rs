//! Chapter "Masquerading" of docs/differences.md.

use serde_json::json;

use super::{FAILED, OK, differs};
use crate::plugins::main::bridge::{self, static_ipam};
use crate::support::attachment::with;
use crate::support::netns::Lab;
use crate::support::traffic::{Ear, assert_pings_with};

/// The iptables chain has the name of the container, not of the interface: DEL of one takes the
/// other's rules along, and then fails.
#[test]
fn del_of_one_attachment_keeps_the_iptables_rules_of_the_other() {
    differs(
        "bridge",
        |lab| {
            bridge::masquerade::second_attachment_survives_del_of_the_first(lab, Some("iptables"))
        },
        true,
        false,
    );
}

#[test]
fn an_add_takes_the_iptables_rules_of_one_that_had_no_del_with_it() {
    differs("bridge", bridge::masquerade::add_takes_the_rules_of_a_lost_one_with_it, true, false);
}

/// The reference's DEL tries iptables too. Of 1.8.9's "Chain … does not exist" (status 2) Debian's
/// build makes an error, so DEL of a network that nf_tables masquerades fails on such a host.
#[test]
fn del_of_an_nftables_network_succeeds_where_iptables_is_installed() {
    let conf = with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "nftables"}));
    let observe = |lab: &Lab| {
        let attachment = lab.attach(&lab.container(), &conf);
        attachment.add();
        attachment.try_del().status
    };
    differs("bridge", observe, OK, FAILED);
}

/// Without `ipMasqBackend` ours uses nf_tables, and needs no program for it; the reference uses
/// iptables.
#[test]
fn masquerade_is_done_by_nftables_unless_the_user_says_otherwise() {
    let conf = with(&bridge::conf(), json!({"ipMasq": true}));
    let observe = |lab: &Lab| {
        lab.attach(&lab.container(), &conf).add();
        let chains = lab.host.sh("iptables -t nat -S 2>/dev/null");
        chains.contains("MASQUERADE")
    };
    differs("bridge", observe, false, true);
}

/// One look and one change, where the reference starts a program for each rule.
#[test]
fn iptables_rules_of_an_attachment_take_two_programs() {
    let conf = with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "iptables"}));
    let observe = |lab: &Lab| {
        lab.host.sh(r#"mkdir /run/counted; for name in iptables iptables-restore; do
            printf '#!/bin/sh\necho >>/run/counted/log\nexec %s "$@"\n' "$(command -v $name)" >/run/counted/$name
            chmod +x /run/counted/$name; done"#);
        let mut call = lab.attach(&lab.container(), &conf).call("ADD", None);
        call.wrapper
            .extend(["sh", "-c", r#"PATH=/run/counted:$PATH exec "$0" "$@""#].map(str::to_owned));
        call.run().ok();
        lab.host.sh("wc -l </run/counted/log").trim().parse::<u32>().unwrap() <= 2
    };
    differs("bridge", observe, true, false);
}

/// Two addresses of one family in two subnets: the reference's iptables chain masquerades what goes
/// to the second subnet.
#[test]
fn neighbours_in_a_second_subnet_see_the_container_s_own_address() {
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
    // The packet to the second subnet's far end has to pass the host: the host has that address on
    // another link.
    let observe = |lab: &Lab| {
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
    };
    differs("bridge", observe, vec!["10.20.0.7".to_owned()], vec!["10.30.0.1".to_owned()]);
}

/// Two networks with one subnet give one address to two containers: there is one element for it,
/// and it is the last one's.
#[test]
fn an_address_in_two_networks_is_masqueraded_for_the_last() {
    let conf = |network: &str, bridge: &str| {
        let changes =
            json!({"name": network, "bridge": bridge, "ipMasq": true, "ipMasqBackend": "nftables"});
        with(&bridge::conf(), changes)
    };
    let observe = |lab: &Lab| {
        lab.hide_iptables();
        let (first, second) = (lab.container(), lab.container());
        let (first, second) =
            (lab.attach(&first, &conf("net1", "br0")), lab.attach(&second, &conf("net2", "br1")));
        let result = first.add();
        second.add();
        let with_both = first.check(&result).status;
        second.del();
        (with_both, first.check(&result).status)
    };
    differs("bridge", observe, (OK, FAILED), (OK, OK));
}
