//! tuning: attributes that `net sync` leaves. The table of parts has the sysctls that it sets again.

use serde_json::json;

use crate::support::attachment::for_ours;
use crate::support::networks::bridge;
use crate::support::networks::tuning::tuning;
use crate::support::synced::attach;

#[test]
fn attributes_of_the_interface_stay() {
    for_ours("tuning", |lab| {
        let synced =
            attach(lab, &[bridge::conf(), tuning(json!({"mtu": 1400, "promisc": true}))], "");
        synced.container.sh("ip link set eth0 mtu 1300 promisc off");
        let outcome = synced.net("sync pods");
        assert_eq!(outcome.status, 0, "{outcome:?}");
        let link = synced.container.link("eth0").unwrap();
        assert_eq!((&link["mtu"], &link["promiscuity"]), (&json!(1300), &json!(0)));
        assert!(synced.check().status != 0, "CHECK reports what the repair leaves");
    });
}
