//! bridge: next hops of routes, and gateways of range sets, that IPAM gives.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, ips, with};
use crate::support::failed_add::assert_refused;
use crate::support::netns::Namespace;
use crate::support::networks::bridge::{conf, dual_stack};
use crate::support::traffic::assert_pings;

fn with_routes(routes: Value) -> Value {
    with(&dual_stack(), json!({"cniVersion": "1.1.0", "ipam": {"routes": routes}}))
}

/// The next hops of the one route to a destination.
fn hops(container: &Namespace, dst: &str) -> Vec<String> {
    let family = if dst.contains(':') { 6 } else { 4 };
    let found = container.json(&format!("ip -{family} -j route show {dst}"));
    assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
    let hops = found[0]["nexthops"].as_array().cloned().unwrap_or(vec![found[0].clone()]);
    let gateways = hops.iter().map(|hop| hop["gateway"].as_str().unwrap().to_owned());
    BTreeSet::from_iter(gateways).into_iter().collect()
}

#[test]
fn a_route_with_several_next_hops_is_one_in_both_families() {
    let conf = with_routes(json!([
        {"dst": "10.99.0.0/16", "gws": ["10.10.0.8", "10.10.0.9"]},
        {"dst": "2001:db8:99::/48", "gw": "2001:db8:10::7", "gws": ["2001:db8:10::8", "2001:db8:10::7"]},
        {"dst": "10.98.0.0/16", "gws": ["10.10.0.8"]},
    ]));
    for_ours("bridge", |lab| {
        let (container, attachment, result) = lab.added(&conf);
        assert!(!result.to_string().contains("gws"), "{result}");
        assert_eq!(hops(&container, "10.99.0.0/16"), ["10.10.0.8", "10.10.0.9"]);
        assert_eq!(hops(&container, "2001:db8:99::/48"), ["2001:db8:10::7", "2001:db8:10::8"]);
        assert_eq!(hops(&container, "10.98.0.0/16"), ["10.10.0.8"]);
        attachment.check(&result).ok();
        let mut told = result;
        told["routes"][0]["gws"] = json!(["10.10.0.8", "10.10.0.9"]);
        attachment.check(&told).ok();
        container.sh("ip route replace 10.99.0.0/16 via 10.10.0.8");
        attachment.check(&told).fails(103, "via 10.10.0.8 via 10.10.0.9 not found");
        attachment.del();
    });
}

#[test]
fn next_hops_that_no_kernel_takes_are_refused_with_their_place() {
    for (hop, code, names) in [
        ("fe80::1", 7, "routes[0].gws[1]: it is not of the family"),
        ("hello", 7, "invalid IP address: hello"),
        ("10.88.0.1", 100, "ipam.routes[0].gws[1]: 10.88.0.1 is not in"),
    ] {
        for_ours("bridge", |lab| {
            let conf = with_routes(json!([{"dst": "10.99.0.0/16", "gws": ["10.10.0.8", hop]}]));
            assert_refused(lab, &conf, code, names);
        });
    }
}

// --- a range set with several subnets: once one is full, the next one's gateway is added ---

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
            let (first, one, result) = lab.added(&conf);
            assert_eq!(ips(&result), ["10.10.0.2"]);
            assert_eq!(lab.host.addresses("br0"), ["10.10.0.1/30"]);
            let (second, two, result) = lab.added(&conf);
            assert_eq!(ips(&result), ["10.20.0.2"]);
            assert_eq!(lab.host.addresses("br0"), ["10.10.0.1/30", "10.20.0.1/24"], "{changes}");
            assert_pings(&first, "10.10.0.1");
            assert_pings(&second, "10.20.0.1");
            assert_pings(&second, "10.10.0.2");
            two.check_and_del(&result);
            one.del();
        });
    }
}

/// A runtime may supply the set.
#[test]
fn a_set_of_the_runtime_counts_too() {
    for_ours("bridge", |lab| {
        let sets = two_subnets()["ipam"]["ranges"].clone();
        let changes = json!({"ipam": {"ranges": null}, "runtimeConfig": {"ipRanges": sets}});
        let conf = with(&two_subnets(), changes);
        lab.added(&conf);
        assert_eq!(ips(&lab.added(&conf).2), ["10.20.0.2"]);
    });
}

/// `forceAddress` would take the gateway of the containers that are there.
#[test]
fn the_error_advises_force_address_on_an_unused_bridge_only() {
    for_ours("bridge", |lab| {
        let other = with(&conf(), json!({"name": "net2", "ipam": {"subnet": "10.20.0.0/24"}}));
        let (_, first, _) = lab.added(&conf());
        let error = lab.place(&other).1.try_add().fails(102, "10.10.0.1/24");
        assert!(!error.details.contains("forceAddress"), "{error:?}");
        first.del();
        lab.place(&other).1.try_add().fails(102, "forceAddress replaces it");
    });
}
