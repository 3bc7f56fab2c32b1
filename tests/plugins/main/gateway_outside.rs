//! IPAM plugins accept a gateway outside its subnet: without a route to it the error names the
//! field and a remedy, and with the remedy the network works.

use serde_json::{Value, json};

use crate::support::attachment::{for_each_peer, for_ours, with};
use crate::support::netns::Lab;
use crate::support::networks::{bridge, host_device};
use crate::support::snapshot::Watch;

/// The plugins that set routes through a gateway and work on every kernel.
const PLUGINS: [&str; 4] = ["bridge", "macvlan", "host-device", "tap"];

fn network(plugin: &str, ipam: &Value) -> Value {
    let conf = json!({"cniVersion": "1.0.0", "name": "net1", "type": plugin, "master": "uplink", "device": "dev0", "ipam": ipam});
    if plugin == "bridge" { with(&conf, json!({"bridge": "br0"})) } else { conf }
}

fn prepare(lab: &Lab, plugin: &str) {
    if plugin == "host-device" {
        host_device::device(lab);
    }
}

/// `ipam`, and the expected text of the error about its field.
fn cases() -> Vec<(Value, &'static str)> {
    let (routes, v6) = (json!([{"dst": "0.0.0.0/0"}]), json!([{"dst": "::/0"}]));
    let host_local = |ranges: Value, routes: &Value| json!({"type": "host-local", "ranges": ranges, "routes": routes});
    vec![
        (
            host_local(json!([[{"subnet": "10.10.0.0/24", "gateway": "10.88.0.1"}]]), &routes),
            "ipam.ranges[0][0].gateway: 10.88.0.1 is not in 10.10.0.0/24, expected an address of the subnet, or \
             {\"dst\": \"10.88.0.1/32\", \"gw\": \"0.0.0.0\", \"scope\": 253} before the other routes",
        ),
        (
            host_local(json!([[{"subnet": "2001:db8:10::/64", "gateway": "2001:db8:88::1"}]]), &v6),
            "ipam.ranges[0][0].gateway: 2001:db8:88::1 is not in 2001:db8:10::/64, expected an address of the subnet, or one \
             of fe80::/10",
        ),
        (
            json!({"type": "host-local", "subnet": "10.10.0.0/24", "gateway": "10.88.0.1", "routes": routes}),
            "ipam.gateway: 10.88.0.1 is not in 10.10.0.0/24",
        ),
        (
            json!({"type": "static", "addresses": [{"address": "10.10.0.2/24", "gateway": "10.88.0.1"}], "routes": routes}),
            "ipam.addresses[0].gateway: 10.88.0.1 is not in 10.10.0.0/24",
        ),
        (
            json!({"type": "static", "addresses": [{"address": "10.10.0.2/24"}],
                "routes": [{"dst": "0.0.0.0/0", "gw": "10.88.0.1"}]}),
            "ipam.routes[0].gw: 10.88.0.1 is not in 10.10.0.0/24",
        ),
    ]
}

#[test]
fn gateway_outside_its_subnet_is_named_by_its_field() {
    for plugin in PLUGINS {
        for (ipam, names) in cases() {
            for_ours(plugin, |lab| {
                prepare(lab, plugin);
                let container = lab.container();
                let before = Watch::start(lab, &[&container]);
                let error = lab.attach(&container, &network(plugin, &ipam)).try_add().err();
                assert_eq!(error.code, 100, "{plugin}: {error:?}");
                assert!(
                    error.msg.contains("unreachable") || error.msg.contains("no route to host"),
                    "{error:?}"
                );
                assert!(error.details.contains(names), "{plugin}: {error:?}");
                before.assert_unchanged("the refused ADD");
            });
        }
    }
}

/// The gateway is in its subnet and the failure has another cause: the error does not mention the
/// gateway.
#[test]
fn gateway_that_cannot_be_blamed_is_not_named() {
    for_ours("bridge", |lab| {
        let routes = json!([{"dst": "10.99.0.0/16", "gw": "10.10.0.9", "scope": 254}]);
        let conf = with(&bridge::conf(), json!({"ipam": {"routes": routes}}));
        let outcome = lab.attach(&lab.container(), &conf).try_add();
        assert!(!outcome.err().details.contains("is not in"), "{outcome:?}");
    });
}

/// The remedy that the error proposes.
#[test]
fn gateway_outside_its_subnet_works_as_the_error_says() {
    let v4 = json!([{"dst": "10.88.0.1/32", "gw": "0.0.0.0", "scope": 253}, {"dst": "0.0.0.0/0"}]);
    let v6 = json!([{"dst": "::/0"}]);
    let cases = [("", "10.10.0.0/24", "10.88.0.1", v4), ("-6", "2001:db8:10::/64", "fe80::88", v6)];
    for plugin in PLUGINS {
        for (family, subnet, gateway, routes) in &cases {
            for_each_peer(plugin, |lab| {
                prepare(lab, plugin);
                let ranges = json!([[{"subnet": subnet, "gateway": gateway}]]);
                let ipam = json!({"type": "host-local", "ranges": ranges, "routes": routes});
                let container = lab.container();
                lab.attach(&container, &network(plugin, &ipam)).add();
                let default = container.sh(&format!("ip {family} route show default"));
                assert!(
                    default.starts_with(&format!("default via {gateway} dev eth0")),
                    "{plugin}: {default}"
                );
            });
        }
    }
}
