//! Each plugin that makes an interface with each plugin that can follow it: what `net sync` makes
//! again after everything on the host is gone, while the container stays as it is.

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::case;
use crate::support::netns::Lab;
use crate::support::networks::bandwidth::{both, is_able};
use crate::support::networks::stacked::{IPVLAN, MACVLAN, Stacked, VLAN};
use crate::support::networks::tap::makes_taps;
use crate::support::networks::vrf::has_vrf;
use crate::support::peers::tests;
use crate::support::synced::{Synced, attach};

/// The address of every container here.
const IP: &str = "10.10.0.2";
/// Its gateway: the host, or the peer outside on the same network.
const GATEWAY: &str = "10.10.0.1";

/// A plugin that follows another one.
struct Chained {
    conf: Value,
    /// What removes its work in the container.
    fault: &'static str,
    change: &'static str,
}

fn chained(name: &str) -> Chained {
    let (conf, fault, change) = match name {
        "portmap" => (
            json!({"type": "portmap", "capabilities": {"portMappings": true}}),
            "true",
            "publish port 8080/tcp",
        ),
        "firewall" => (
            json!({"type": "firewall", "backend": "nftables"}),
            "true",
            "accept packets of 10.10.0.2",
        ),
        "bandwidth" => (both(), "true", "limit ingress at"),
        "tuning" => (
            json!({"type": "tuning", "sysctl": {"net.core.somaxconn": "517"}}),
            "echo 77 >/proc/sys/net/core/somaxconn",
            "set sysctl net/core/somaxconn to 517",
        ),
        "sbr" => (
            json!({"type": "sbr"}),
            "ip rule del from 10.10.0.2 table 100",
            "add rule from 10.10.0.2 to table 100",
        ),
        "route-override" => (
            json!({"type": "route-override",
                   "addroutes": [{"dst": "192.0.2.0/24", "gw": GATEWAY}]}),
            "ip route del 192.0.2.0/24",
            "add route 192.0.2.0/24 in the container",
        ),
        _ => (
            json!({"type": "vrf", "vrfname": "blue"}),
            "ip link set eth0 nomaster",
            "put \"eth0\" into VRF \"blue\"",
        ),
    };
    Chained { conf, fault, change }
}

/// A network of this plugin.
fn network(keys: Value) -> Value {
    let ipam =
        json!({"type": "host-local", "subnet": "10.10.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]});
    with(&json!({"ipam": ipam}), keys)
}

/// Everything of the host that a network may need is lost, and what a plugin has in the container.
#[track_caller]
fn assert_pair_is_repaired(lab: &Lab, main: &Value, name: &str, has_gateway: bool) {
    let Chained { conf, fault, change } = chained(name);
    let options = if name == "portmap" { "-p 8080:80" } else { "" };
    let synced = attach(lab, &[main.clone(), conf], options);
    eprintln!("{main} and {name}"); // shown when the case fails
    let assert_is_reached = || {
        if has_gateway {
            synced.container.sh(&format!("ping -I eth0 -c 1 -W 2 {GATEWAY}"));
        }
    };
    assert_is_reached();
    let lose = || {
        synced.container.sh(fault);
        lose_all_of_host(&synced);
    };
    let lease = format!("lease {IP} again");
    // A new bridge has another number, and new rules have other handles.
    let new = ["pods0", "ifindex", "accepts4", "0x0"];
    let is_new = |fact: &str| new.iter().any(|word| fact.contains(word));
    synced.assert_repaired_but(lose, &[change, &lease], is_new);
    assert_is_reached();
    synced.del();
}

fn lose_all_of_host(synced: &Synced<'_>) {
    synced.lab.host.sh(&format!(
        "rm /var/lib/cni/networks/pods/{IP}
        iptables -F; iptables -t nat -F; nft flush ruleset
        ip link del pods0 2>/dev/null
        for link in $(ls /sys/class/net | grep ^veth); do
            tc qdisc del dev $link root; tc qdisc del dev $link ingress; ip -4 addr flush dev $link
        done 2>/dev/null
        for link in $(ls /sys/class/net | grep ^bwp); do ip link del $link; done"
    ));
}

/// Runs the case with each plugin that can follow, in a lab of its own.
fn with_each(main: &str, followers: &[&str], case: impl Fn(&Lab, &str)) {
    for follower in case::in_turn(followers, 3) {
        for_ours(main, |lab| {
            let is_in = match *follower {
                "bandwidth" => ["tbf", "ifb", "u32"].iter().all(|part| is_able(lab, part)),
                "vrf" => has_vrf(&lab.container()),
                _ => true,
            };
            if is_in {
                case(lab, follower);
            }
        });
    }
}

const OF_VETH: [&str; 7] =
    ["portmap", "firewall", "bandwidth", "tuning", "sbr", "vrf", "route-override"];
const OF_ANY: [&str; 6] = ["portmap", "firewall", "tuning", "sbr", "vrf", "route-override"];

#[test]
fn bridge_is_repaired_with_each_follower() {
    with_each("bridge", &OF_VETH, |lab, follower| {
        let keys = json!({"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true,
                          "ipMasqBackend": "nftables"});
        assert_pair_is_repaired(lab, &network(keys), follower, true);
    });
}

#[test]
fn ptp_is_repaired_with_each_follower() {
    with_each("ptp", &OF_VETH, |lab, follower| {
        let keys = json!({"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables"});
        assert_pair_is_repaired(lab, &network(keys), follower, true);
    });
}

fn assert_stacked_is_repaired(stacked: &Stacked) {
    with_each(stacked.plugin, &OF_ANY, |lab, follower| {
        if stacked.prepare(lab) {
            assert_pair_is_repaired(lab, &stacked.conf(), follower, true);
        }
    });
}

tests! {
    macvlan_is_repaired_with_each_follower = assert_stacked_is_repaired(&MACVLAN);
    ipvlan_is_repaired_with_each_follower = assert_stacked_is_repaired(&IPVLAN);
    vlan_is_repaired_with_each_follower = assert_stacked_is_repaired(&VLAN);
}

#[test]
fn tap_is_repaired_with_each_follower() {
    with_each("tap", &OF_ANY, |lab, follower| {
        if makes_taps(lab) {
            assert_pair_is_repaired(lab, &network(json!({"type": "tap"})), follower, false);
        }
    });
}
