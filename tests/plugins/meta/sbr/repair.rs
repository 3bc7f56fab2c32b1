//! sbr: rules and routes that `net sync` adds again.

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::networks::bandwidth;
use crate::support::networks::sbr::second;
use crate::support::synced::attach;

fn sbr(keys: Value) -> Value {
    with(&json!({"type": "sbr"}), keys)
}

/// The gateway of a ptp link is reached by a route of its own, which has to be first.
#[test]
fn rules_and_routes_are_added_again_in_order() {
    for_ours("sbr", |lab| {
        let synced = attach(lab, &[bandwidth::network(), sbr(json!({}))], "");
        let own = synced.ips();
        let fault = || {
            let rules = format!("ip rule del from {}; ip -6 rule del from {}", own[0], own[1]);
            let routes = "ip route flush table 100; ip -6 route flush table 101";
            synced.container.sh(&format!("{rules}; {routes}"));
        };
        let changes = own.iter().zip([100, 101]);
        let changes = changes.map(|(ip, table)| format!("add rule from {ip} to table {table}"));
        let changes: Vec<String> = changes.collect();
        let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
        synced.assert_repaired_but(fault, &changes, |_| false);
    });
}

/// Only the record says where the rule led.
#[test]
fn a_rule_without_a_record_is_for_a_person() {
    for_ours("sbr", |lab| {
        let synced = attach(lab, &[second(), sbr(json!({}))], "");
        let own = synced.ips();
        lab.host.sh("rm /run/cni/sbr/*.json");
        synced.check().ok();
        let fault = format!("ip rule del from {}; ip -6 route del default table 101", own[0]);
        synced.container.sh(&fault);
        let said = synced.check().stderr;
        assert!(
            said.contains(&format!("no rule leads what {} sends to a table", own[0])),
            "{said}"
        );
        assert!(said.contains("no record has the table: attach the container again"), "{said}");
        let outcome = synced.net("sync pods");
        assert_eq!(outcome.status, 1, "{outcome:?}");
        assert!(outcome.stdout.contains("add default route by 2001:db8:20::1"), "{outcome:?}");
        synced.container.sh("ip -6 route flush table 101");
        let said = synced.check().stderr;
        assert!(said.contains("has no route of the interface"), "{said}");
    });
}

#[test]
fn a_rule_to_a_configured_table_is_added_again() {
    for_ours("sbr", |lab| {
        let synced = attach(lab, &[second(), sbr(json!({"table": 70}))], "");
        let own = synced.ips();
        let fault = || {
            synced.container.sh(&format!("ip rule del from {} table 70", own[0]));
        };
        let change = format!("add rule from {} to table 70", own[0]);
        synced.assert_repaired_but(fault, &[&change], |_| false);
    });
}
