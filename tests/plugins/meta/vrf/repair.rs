//! vrf: what `net sync` leaves. What it makes again is in plugins::parts.

use serde_json::json;

use crate::support::attachment::for_ours;
use crate::support::networks::vrf::{has_vrf, master, network};
use crate::support::synced::attach;

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
