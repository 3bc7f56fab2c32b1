//! sbr: rules and routes that `net sync` adds again.

use super::*;
use crate::support::synced::attach;

/// The gateway of a ptp link is reached by a route of its own, which has to be first.
#[test]
fn rules_and_routes_are_added_again_in_order() {
    let both = "ip rule del from V4; ip -6 rule del from V6; ip route flush table 100; ip -6 route flush table 101";
    let made = ["add rule from V4 to table 100", "add rule from V6 to table 101"];
    let (fixed, its) = ("ip rule del from V4 table 70", "add rule from V4 to table 70");
    for (main, keys, fault, changes) in [
        (bandwidth::network(), json!({}), both, &made[..]),
        (second(), json!({"table": 70}), fixed, &[its]),
    ] {
        for_ours("sbr", |lab| {
            let sbr = with(&json!({"type": "sbr"}), keys.clone());
            let synced = attach(lab, &[main.clone(), sbr], "");
            let own = synced.ips();
            let text = |text: &str| text.replace("V4", &own[0]).replace("V6", &own[1]);
            let changes: Vec<String> = changes.iter().map(|change| text(change)).collect();
            let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
            let fault = || drop(synced.container.sh(&text(fault)));
            synced.assert_repaired_but(fault, &changes, |_| false);
        });
    }
}

/// Only the record says where the rule led.
#[test]
fn a_rule_without_a_record_is_for_a_person() {
    for_ours("sbr", |lab| {
        let synced = attach(lab, &[second(), json!({"type": "sbr"})], "");
        let own = synced.ips();
        lab.host.sh("rm /run/cni/sbr/*.json");
        synced.check().ok();
        let fault = format!("ip rule del from {}; ip -6 route del default table 101", own[0]);
        synced.container.sh(&fault);
        let said = synced.check().stderr;
        let no_rule = format!("no rule leads what {} sends to a table", own[0]);
        for words in [&no_rule, "no record has the table: attach the container again"] {
            assert!(said.contains(words), "{said}");
        }
        let outcome = synced.net("sync pods");
        assert_eq!(outcome.status, 1, "{outcome:?}");
        assert!(outcome.stdout.contains("add default route by 2001:db8:20::1"), "{outcome:?}");
        synced.container.sh("ip -6 route flush table 101");
        let said = synced.check().stderr;
        assert!(said.contains("has no route of the interface"), "{said}");
    });
}
