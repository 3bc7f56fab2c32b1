//! A range set with several subnets on a bridge that is the gateway: once one is full, the next one's
//! gateway is added, and the containers of the full one keep theirs.

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, ips, with};
use crate::support::networks::bridge::conf;
use crate::support::traffic::assert_pings;

/// The first subnet has room for one container.
fn two_subnets() -> Value {
    let sets = json!([[{"subnet": "10.10.0.0/30"}, {"subnet": "10.20.0.0/24"}]]);
    with(&conf(), json!({"isDefaultGateway": true, "ipam": {"subnet": null, "ranges": sets}}))
}

#[test]
fn the_bridge_is_the_gateway_of_each_subnet_of_the_set() {
    for changes in [json!({}), json!({"forceAddress": true})] {
        for_ours("bridge", |lab| {
            let conf = with(&two_subnets(), changes.clone());
            let (first, second) = (lab.container(), lab.container());
            let (one, two) = (lab.attach(&first, &conf), lab.attach(&second, &conf));
            assert_eq!(ips(&one.add()), ["10.10.0.2"]);
            let before = lab.host.addresses("br0");
            let result = two.add();
            assert_eq!(ips(&result), ["10.20.0.2"]);
            assert_eq!(lab.host.addresses("br0"), ["10.10.0.1/30", "10.20.0.1/24"], "{changes}");
            assert_pings(&first, "10.10.0.1");
            assert_pings(&second, "10.20.0.1");
            assert_pings(&second, "10.10.0.2");
            two.check(&result).ok();
            two.del();
            one.del();
            assert_eq!(before, ["10.10.0.1/30"]);
        });
    }
}

/// A runtime may supply the set.
#[test]
fn a_set_of_the_runtime_counts_too() {
    for_ours("bridge", |lab| {
        let conf = two_subnets();
        let sets = conf["ipam"]["ranges"].clone();
        let changes = json!({"ipam": {"ranges": null}, "runtimeConfig": {"ipRanges": sets}});
        let conf = with(&conf, changes);
        lab.attach(&lab.container(), &conf).add();
        assert_eq!(ips(&lab.attach(&lab.container(), &conf).add()), ["10.20.0.2"]);
    });
}

/// `forceAddress` would take the gateway of the containers that are there.
#[test]
fn the_error_advises_force_address_on_an_unused_bridge_only() {
    for_ours("bridge", |lab| {
        let other = with(&conf(), json!({"name": "net2", "ipam": {"subnet": "10.20.0.0/24"}}));
        let first = lab.attach(&lab.container(), &conf());
        first.add();
        let error = lab.attach(&lab.container(), &other).try_add().err();
        assert_eq!(error.code, 102, "{error:?}");
        assert!(
            error.details.contains("10.10.0.1/24") && !error.details.contains("forceAddress"),
            "{error:?}"
        );
        first.del();
        let error = lab.attach(&lab.container(), &other).try_add().err();
        assert!(error.details.contains("forceAddress replaces it"), "{error:?}");
    });
}
