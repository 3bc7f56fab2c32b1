//! bridge: routes of the IPAM plugin with several next hops.

use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::netns::Namespace;
use crate::support::networks::bridge::dual_stack;

fn with_routes(routes: Value) -> Value {
    with(&dual_stack(), json!({"cniVersion": "1.1.0", "ipam": {"routes": routes}}))
}

/// The next hops of the one route to a destination.
fn hops(container: &Namespace, dst: &str) -> Vec<String> {
    let family = if dst.contains(':') { 6 } else { 4 };
    let found = container.json(&format!("ip -{family} -j route show {dst}"));
    assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
    let hops = found[0]["nexthops"].as_array().cloned().unwrap_or(vec![found[0].clone()]);
    let mut hops: Vec<String> =
        hops.iter().map(|hop| hop["gateway"].as_str().unwrap().to_owned()).collect();
    hops.sort();
    hops
}

#[test]
fn a_route_with_several_next_hops_is_one_in_both_families() {
    for_ours("bridge", |lab| {
        let container = lab.container();
        let conf = with_routes(json!([
            {"dst": "10.99.0.0/16", "gws": ["10.10.0.8", "10.10.0.9"]},
            {"dst": "2001:db8:99::/48", "gw": "2001:db8:10::7", "gws": ["2001:db8:10::8", "2001:db8:10::7"]},
            {"dst": "10.98.0.0/16", "gws": ["10.10.0.8"]},
        ]));
        let attachment = lab.attach(&container, &conf);
        let result = attachment.add();
        assert!(!result.to_string().contains("gws"), "{result}");
        assert_eq!(hops(&container, "10.99.0.0/16"), ["10.10.0.8", "10.10.0.9"]);
        assert_eq!(hops(&container, "2001:db8:99::/48"), ["2001:db8:10::7", "2001:db8:10::8"]);
        assert_eq!(hops(&container, "10.98.0.0/16"), ["10.10.0.8"]);
        attachment.check(&result).ok();
        let mut told = result.clone();
        told["routes"][0]["gws"] = json!(["10.10.0.8", "10.10.0.9"]);
        attachment.check(&told).ok();
        container.sh("ip route replace 10.99.0.0/16 via 10.10.0.8");
        let error = attachment.check(&told).err();
        assert!(error.text().contains("via 10.10.0.8 via 10.10.0.9 not found"), "{error:?}");
        attachment.del();
    });
}

#[test]
fn next_hops_that_no_kernel_takes_are_refused_with_their_place() {
    for (hops, names) in [
        (json!(["10.10.0.8", "fe80::1"]), "routes[0].gws[1]: it is not of the family"),
        (json!(["10.10.0.8", "hello"]), "invalid IP address: hello"),
        (json!(["10.10.0.8", "10.88.0.1"]), "ipam.routes[0].gws[1]: 10.88.0.1 is not in"),
    ] {
        for_ours("bridge", |lab| {
            let conf = with_routes(json!([{"dst": "10.99.0.0/16", "gws": hops}]));
            let error = lab.attach(&lab.container(), &conf).try_add().err();
            assert!(error.text().contains(names), "{error:?}");
        });
    }
}
