//! What the main plugins do alike.

use serde_json::{Value, json};

use crate::support::attachment::{for_each_peer, for_ours, with};
use crate::support::contract::assert_dns_of_network_or_ipam;
use crate::support::failed_add::assert_refused;
use crate::support::netns::Lab;
use crate::support::networks::bridge::static_ipam;
use crate::support::networks::{bridge, host_device, ptp};
use crate::support::subject::in_a_lab;

#[test]
fn dns_of_the_network_replaces_that_of_ipam_as_a_whole() {
    let address = json!([{"address": "10.10.0.7/24", "gateway": "10.10.0.1"}]);
    for base in [with(&bridge::conf(), json!({"isGateway": null})), ptp::conf()] {
        let fixed = static_ipam(&base, address.clone(), json!([]));
        let plugin = base["type"].as_str().unwrap();
        for_each_peer(plugin, |lab| assert_dns_of_network_or_ipam(lab, &fixed));
    }
    // The reference has the DNS of the network alone, or that of IPAM: see tests/differences.
    for plugin in ["macvlan", "ipvlan", "vlan", "host-device", "dummy", "tap", "ovs"] {
        in_a_lab(plugin, |lab, subject| {
            let network = with(&subject.plugins[0], json!({"name": "net1"}));
            assert_dns_of_network_or_ipam(lab, &static_ipam(&network, address.clone(), json!([])));
            if ["host-device", "tap"].contains(&plugin) {
                let dns = json!({"domain": "net.example"});
                let alone = json!({"cniVersion": "0.4.0", "ipam": null, "dns": dns});
                let (_, attachment, result) = lab.added(&with(&network, alone));
                assert_eq!(result["dns"], dns);
                attachment.del();
            }
        });
    }
}

// --- `acceptRA` ---

const CONNECTED: [&str; 8] =
    ["bridge", "ptp", "macvlan", "ipvlan", "vlan", "host-device", "bond", "ovs"];

#[test]
fn the_interface_has_the_key_s_setting() {
    let settings = [(json!(false), "0\n"), (json!(true), "2\n"), (json!(null), "1\n")];
    for (plugin, (wanted, value)) in
        CONNECTED.iter().flat_map(|it| settings.iter().map(move |of| (it, of)))
    {
        in_a_lab(plugin, |lab, subject| {
            let container = lab.container();
            let attachment = subject.attach(lab, &container).remove(0);
            let attachment = attachment.conf(json!({"acceptRA": wanted}));
            let result = attachment.add();
            let setting = container.sh("cat /proc/sys/net/ipv6/conf/eth0/accept_ra");
            assert_eq!(setting, *value, "{plugin}: {wanted}");
            attachment.check(&result).ok();
            if wanted == false {
                container.sh("echo 1 >/proc/sys/net/ipv6/conf/eth0/accept_ra");
                attachment.check(&result).fails(103, "accept_ra of \"eth0\" is 1, expected 0");
            }
            attachment.del();
        });
    }
}

// --- a gateway outside its subnet: without a route to it the error names the field and a remedy ---

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
    let host_local = |range: Value, routes: &Value| json!({"type": "host-local", "ranges": [[range]], "routes": routes});
    let fixed = |address: Value, route: Value| json!({"type": "static", "addresses": [address], "routes": [route]});
    vec![
        (
            host_local(json!({"subnet": "10.10.0.0/24", "gateway": "10.88.0.1"}), &routes),
            "ipam.ranges[0][0].gateway: 10.88.0.1 is not in 10.10.0.0/24, expected an address of the subnet, or \
             {\"dst\": \"10.88.0.1/32\", \"gw\": \"0.0.0.0\", \"scope\": 253} before the other routes",
        ),
        (
            host_local(json!({"subnet": "2001:db8:10::/64", "gateway": "2001:db8:88::1"}), &v6),
            "ipam.ranges[0][0].gateway: 2001:db8:88::1 is not in 2001:db8:10::/64, expected an address of the subnet, or one \
             of fe80::/10",
        ),
        (
            json!({"type": "host-local", "subnet": "10.10.0.0/24", "gateway": "10.88.0.1", "routes": routes}),
            "ipam.gateway: 10.88.0.1 is not in 10.10.0.0/24",
        ),
        (
            fixed(json!({"address": "10.10.0.2/24", "gateway": "10.88.0.1"}), routes[0].clone()),
            "ipam.addresses[0].gateway: 10.88.0.1 is not in 10.10.0.0/24",
        ),
        (
            fixed(
                json!({"address": "10.10.0.2/24"}),
                json!({"dst": "0.0.0.0/0", "gw": "10.88.0.1"}),
            ),
            "ipam.routes[0].gw: 10.88.0.1 is not in 10.10.0.0/24",
        ),
    ]
}

#[test]
fn gateway_outside_its_subnet_is_named_by_its_field() {
    for (plugin, (ipam, names)) in
        PLUGINS.iter().flat_map(|it| cases().into_iter().map(move |case| (it, case)))
    {
        for_ours(plugin, |lab| {
            prepare(lab, plugin);
            let conf = network(plugin, &ipam);
            let error = lab.place(&conf).1.try_add().err();
            let is_told =
                ["unreachable", "no route to host"].iter().any(|it| error.msg.contains(it));
            assert!(is_told, "{error:?}");
            assert_refused(lab, &conf, 100, names);
        });
    }
}

/// The gateway is in its subnet and the failure has another cause: the error does not mention the
/// gateway.
#[test]
fn gateway_that_cannot_be_blamed_is_not_named() {
    let routes = json!([{"dst": "10.99.0.0/16", "gw": "10.10.0.9", "scope": 254}]);
    let conf = with(&bridge::conf(), json!({"ipam": {"routes": routes}}));
    for_ours("bridge", |lab| {
        let outcome = lab.place(&conf).1.try_add();
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
                let (container, ..) = lab.added(&network(plugin, &ipam));
                let default = container.sh(&format!("ip {family} route show default"));
                let expected = format!("default via {gateway} dev eth0");
                assert!(default.starts_with(&expected), "{plugin}: {default}");
            });
        }
    }
}
