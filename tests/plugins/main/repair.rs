//! bridge, ptp and host-local: what `net sync` makes again on the host while the container stays as
//! it is.

use serde_json::{Value, json};

use super::bridge::vlan::filters_vlans;
use crate::support::attachment::{for_ours, with};
use crate::support::netns::Lab;
use crate::support::synced::{Synced, attach};

/// A network of both families with every task of the host.
fn network(plugin: &str) -> Value {
    let ranges = json!([[{"subnet": "10.47.0.0/24"}], [{"subnet": "fd00:47::/64"}]]);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    json!({"type": plugin, "ipMasq": true, "ipMasqBackend": "nftables",
           "ipam": {"type": "host-local", "ranges": ranges, "routes": routes}})
}

fn bridge(changes: Value) -> Value {
    let keys =
        json!({"bridge": "pods0", "isGateway": true, "macspoofchk": true, "hairpinMode": true});
    with(&with(&network("bridge"), keys), changes)
}

/// The container reaches its gateways.
#[track_caller]
fn assert_reaches_gateways(synced: &Synced<'_>) {
    for gateway in ["10.47.0.1", "fd00:47::1"] {
        synced.container.sh(&format!("ping -c 1 -W 2 {gateway}"));
    }
}

/// The name of the host's end.
fn host_end(lab: &Lab) -> String {
    let listed = lab.host.sh("ip -br link show type veth | grep -v uplink");
    listed.split('@').next().unwrap().to_owned()
}

/// Its interface is a port of the bridge itself, which a deletion of the bridge leaves behind.
#[test]
fn the_gateway_of_a_vlan_is_reached_again() {
    for_ours("bridge", |lab| {
        if !filters_vlans(lab) {
            return;
        }
        let synced = attach(lab, &[bridge(json!({"vlan": 100}))], "");
        assert_reaches_gateways(&synced);
        let peer = "$(ip -br link show master pods0 type veth | cut -d@ -f1 | while read l; do \
                    [ -e /sys/class/net/pods0.100 ] && [ $(cat /sys/class/net/$l/iflink) = \
                    $(cat /sys/class/net/pods0.100/ifindex) ] && echo $l; done)";
        for fault in
            ["ip link del pods0", "ip link set $peer nomaster", "bridge vlan del dev $peer vid 100"]
        {
            eprintln!("{fault}"); // shown when the case fails
            let is_new = |fact: &str| fact.contains("pods0") || fact.contains("ifindex");
            let make = || drop(lab.host.sh(&format!("peer={peer}; {fault}")));
            synced.assert_repaired_but(make, &["give 10.47.0.1/24"], is_new);
            assert_reaches_gateways(&synced);
        }
        synced.del();
    });
}

/// A route of others to the container's address is for a person to judge.
#[test]
fn a_host_route_of_others_is_told_and_stays() {
    for_ours("ptp", |lab| {
        let synced = attach(lab, &[network("ptp")], "");
        let link = host_end(lab);
        lab.host.sh(&format!("ip route del 10.47.0.2 dev {link}; ip route add 10.47.0.2 dev lo"));
        for options in ["--dry-run", ""] {
            let outcome = synced.net(&format!("sync pods {options}"));
            assert_eq!(outcome.status, 1, "{outcome:?}");
            assert!(outcome.stderr.contains("routes 10.47.0.2 to another link"), "{outcome:?}");
        }
        assert!(lab.host.sh("ip route show 10.47.0.2").contains("dev lo"));
        synced.del();
    });
}

/// Two containers with one address are for a person to part.
#[test]
fn a_lease_of_another_container_stays() {
    for_ours("ptp", |lab| {
        let synced = attach(lab, &[network("ptp")], "");
        lab.host.sh("printf 'other\\r\\neth0' >/var/lib/cni/networks/pods/10.47.0.2");
        let outcome = synced.net("sync pods");
        assert_eq!(outcome.status, 1, "{outcome:?}");
        assert!(outcome.stderr.contains("10.47.0.2 is leased to other by now"), "{outcome:?}");
        let lease = lab.host.sh("cat /var/lib/cni/networks/pods/10.47.0.2");
        assert_eq!(lease, "other\r\neth0");
    });
}
