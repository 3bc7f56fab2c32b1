//! sbr: rules and routes that `net sync` adds again.

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::networks::bandwidth;
use crate::support::networks::sbr::{rules, second};
use crate::support::synced::attach;

fn sbr(keys: Value) -> Value {
    with(&json!({"type": "sbr"}), keys)
}

/// The interface's gateway is in its subnet, or reached by a route of its own, as ptp makes it.
#[test]
fn rules_and_routes_are_added_again() {
    for main in [second(), bandwidth::network()] {
        for_ours("sbr", |lab| {
            let synced = attach(lab, &[main.clone(), sbr(json!({}))], "");
            let own = synced.ips();
            let rules_of_own = rules(&synced.container);
            assert_eq!(rules_of_own.len(), 2);
            let rule = format!("add rule from {} to table 100", own[0]);
            let route = "add route ";
            for (fault, change) in [
                (format!("ip rule del from {} table 100", own[0]), rule.as_str()),
                (format!("ip -6 rule del from {} table 101", own[1]), "to table 101"),
            ] {
                synced.assert_repaired_but(
                    || drop(synced.container.sh(&fault)),
                    &[change],
                    |_| false,
                );
            }
            let fault = || {
                drop(synced.container.sh("ip route flush table 100; ip -6 route flush table 101"))
            };
            let before = synced.container.sh("ip route show table 100; ip -6 route show table 101");
            fault();
            let outcome = synced.net("sync pods");
            assert!(outcome.status == 0 && outcome.stdout.contains(route), "{outcome:?}");
            let after = synced.container.sh("ip route show table 100; ip -6 route show table 101");
            assert_eq!(after, before);
            assert_eq!(rules(&synced.container), rules_of_own);
            synced.check().ok();
            assert!(!synced.net("sync pods").stdout.contains(route));
            let only_default = || drop(synced.container.sh("ip route del default table 100"));
            synced.assert_repaired_but(only_default, &["to table 100"], |_| false);
        });
    }
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
