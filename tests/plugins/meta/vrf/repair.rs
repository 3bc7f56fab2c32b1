//! vrf: an interface that `net sync` puts into its VRF again.

use serde_json::json;

use crate::support::attachment::for_ours;
use crate::support::networks::vrf::{has_vrf, master, network};
use crate::support::synced::attach;

/// A VRF that was deleted has another hardware address afterwards, and another number in the record.
fn is_of_vrf(fact: &str) -> bool {
    fact.contains("\"ifname\":\"blue\"") || fact.contains("/run/cni/vrf/")
}

#[test]
fn the_interface_is_in_its_vrf_again() {
    for_ours("vrf", |lab| {
        if !has_vrf(&lab.container()) {
            return;
        }
        let vrf = json!({"type": "vrf", "vrfname": "blue"});
        let synced = attach(lab, &[network(1, 2), vrf], "");
        has_vrf(&synced.container);
        for (fault, change) in [
            ("ip link set eth0 nomaster", "put \"eth0\" into VRF \"blue\""),
            ("ip link del blue", "put \"eth0\" into VRF \"blue\""),
            ("ip link set blue down", "set VRF \"blue\" up"),
            ("ip route del 10.77.0.0/16 table 1", "add route 10.77.0.0/16 to table 1"),
        ] {
            eprintln!("{fault}"); // shown when the case fails
            let make = || drop(synced.container.sh(fault));
            synced.assert_repaired_but(make, &[change], is_of_vrf);
            assert_eq!(master(&synced.container, "eth0"), "blue");
        }
        synced.del();
        assert!(synced.container.link("blue").is_none());
    });
}

/// The master of the container's own choice stays.
#[test]
fn another_master_stays() {
    for_ours("vrf", |lab| {
        if !has_vrf(&lab.container()) {
            return;
        }
        let vrf = json!({"type": "vrf", "vrfname": "blue"});
        let synced = attach(lab, &[network(1, 2), vrf], "");
        synced.container.sh("ip link add red type vrf table 66; ip link set eth0 master red");
        let outcome = synced.net("sync pods");
        assert_eq!(outcome.status, 1, "{outcome:?}");
        assert!(format!("{outcome:?}").contains("already a master"), "{outcome:?}");
        assert_eq!(master(&synced.container, "eth0"), "red");
    });
}
