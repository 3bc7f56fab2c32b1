//! Each plugin that makes an interface with each plugin that can follow it: what `net sync` makes
//! again after everything on the host is gone, while the container stays as it is.

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::case;
use crate::support::netns::Lab;
use crate::support::networks::bandwidth::is_able;
use crate::support::networks::stacked::{IPVLAN, MACVLAN, Stacked, VLAN};
use crate::support::networks::tap::makes_taps;
use crate::support::networks::vrf::has_vrf;
use crate::support::peers::tests;
use crate::support::synced::{Synced, attach};
use crate::support::table::cells;

/// The address of every container here.
const IP: &str = "10.10.0.2";
/// Its gateway: the host, or the peer outside on the same network.
const GATEWAY: &str = "10.10.0.1";

/// Plugins that follow another one: what removes their work in the container, the change that makes it again, and the
/// configuration.
const FOLLOWERS: &str = r#"
portmap | true | publish port 8080/tcp | {"capabilities": {"portMappings": true}}
firewall | true | accept packets of 10.10.0.2 | {"backend": "nftables"}
bandwidth | true | limit ingress at | {"ingressRate": 20000000, "ingressBurst": 2000000, "egressRate": 20000000, "egressBurst": 2000000}
tuning | echo 77 >/proc/sys/net/core/somaxconn | set sysctl net/core/somaxconn to 517 | {"sysctl": {"net.core.somaxconn": "517"}}
sbr | ip rule del from 10.10.0.2 table 100 | add rule from 10.10.0.2 to table 100 | {}
route-override | ip route del 192.0.2.0/24 | add route 192.0.2.0/24 in the container | {"addroutes": [{"dst": "192.0.2.0/24", "gw": "10.10.0.1"}]}
vrf | ip link set eth0 nomaster | put "eth0" into VRF "blue" | {"vrfname": "blue"}
"#;

/// A network of this plugin.
fn network(plugin: &str, keys: Value) -> Value {
    let ipam =
        json!({"type": "host-local", "subnet": "10.10.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]});
    with(&json!({"type": plugin, "ipam": ipam}), keys)
}

/// Everything of the host that a network may need is lost, and what a plugin has in the container.
#[track_caller]
fn assert_pair_is_repaired(lab: &Lab, main: &Value, follower: [&str; 4], has_gateway: bool) {
    let [name, fault, change, keys] = follower;
    let conf = with(&json!({"type": name}), serde_json::from_str(keys).unwrap());
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
fn with_each(main: &str, case: impl Fn(&Lab, [&str; 4])) {
    let mut followers: Vec<[&str; 4]> = cells(FOLLOWERS);
    let has_pair = ["bridge", "ptp"].contains(&main);
    followers.retain(|[name, ..]| has_pair || *name != "bandwidth");
    for follower in case::in_turn(followers, 3) {
        for_ours(main, |lab| {
            let is_in = match follower[0] {
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

fn assert_stacked_is_repaired(stacked: &Stacked) {
    with_each(stacked.plugin, |lab, follower| {
        if stacked.prepare(lab) {
            assert_pair_is_repaired(lab, &stacked.conf(), follower, true);
        }
    });
}

fn assert_is_repaired(main: &Value, has_gateway: bool) {
    let plugin = main["type"].as_str().unwrap();
    with_each(plugin, |lab, follower| {
        if plugin != "tap" || makes_taps(lab) {
            assert_pair_is_repaired(lab, main, follower, has_gateway);
        }
    });
}

fn masqueraded(keys: Value) -> Value {
    with(&json!({"ipMasq": true, "ipMasqBackend": "nftables"}), keys)
}

tests! {
    bridge_is_repaired_with_each_follower = {
        let keys = masqueraded(json!({"bridge": "pods0", "isGateway": true}));
        assert_is_repaired(&network("bridge", keys), true)
    };
    ptp_is_repaired_with_each_follower =
        assert_is_repaired(&network("ptp", masqueraded(json!({}))), true);
    macvlan_is_repaired_with_each_follower = assert_stacked_is_repaired(&MACVLAN);
    ipvlan_is_repaired_with_each_follower = assert_stacked_is_repaired(&IPVLAN);
    vlan_is_repaired_with_each_follower = assert_stacked_is_repaired(&VLAN);
    tap_is_repaired_with_each_follower = assert_is_repaired(&network("tap", json!({})), false);
}
