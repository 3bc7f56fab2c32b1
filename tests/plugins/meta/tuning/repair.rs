//! tuning: sysctls that `net sync` sets again, and attributes that it leaves.

use serde_json::json;

use crate::support::attachment::for_ours;
use crate::support::networks::bridge;
use crate::support::networks::tuning::{sysctl, tuning};
use crate::support::synced::attach;

#[test]
fn sysctls_are_set_again() {
    for_ours("tuning", |lab| {
        let settings = json!({"sysctl": {
            "net.core.somaxconn": "517", "net.ipv4.conf.IFNAME.arp_filter": "1",
        }});
        let synced = attach(lab, &[bridge::conf(), tuning(settings)], "");
        let fault = || {
            synced
                .container
                .sh("cd /proc/sys/net; echo 77 >core/somaxconn; echo 0 >ipv4/conf/eth0/arp_filter");
        };
        let changes = [
            "set sysctl net/core/somaxconn to 517",
            "set sysctl net/ipv4/conf/eth0/arp_filter to 1",
        ];
        synced.assert_repaired_but(fault, &changes, |_| false);
        assert_eq!(sysctl(&synced.container, "core/somaxconn"), "517");
    });
}

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
