//! route-override: the routes and gateways of earlier plugins are replaced.

use super::*;
use crate::support::networks::route_override::every_key;
use crate::support::synced::attach;

/// A bridge that is the default gateway of both families, and has a route to another network.
fn network() -> Value {
    let routes = json!([{"dst": "10.77.0.0/16", "gw": "10.10.0.1"}]);
    let more = json!({"cniVersion": "1.1.0", "isDefaultGateway": true, "ipam": {"routes": routes}});
    with(&bridge::dual_stack(), more)
}

fn override_of(keys: Value) -> Value {
    with(&json!({"type": "route-override"}), keys)
}

/// Runs a case of ours with a container on the network, and the plugin behind it.
fn overriding(keys: Value, case: impl Fn(&Lab, &Container, &Chained<'_>)) {
    for_ours("route-override", |lab| {
        let chain = lab.chain(&network(), &override_of(keys.clone()));
        case(lab, &chain.container, &chain);
    });
}

/// The routes of a table as `ip` shows them, sorted; without those that the kernel makes itself.
fn routes(container: &Namespace, family: u8, table: &str) -> Vec<String> {
    let shown = container.sh(&format!("ip -{family} route show table {table} 2>/dev/null || true"));
    let made = shown.lines().filter(|line| !line.contains("proto kernel"));
    let mut routes: Vec<String> = made.map(|line| line.trim().to_owned()).collect();
    routes.sort();
    routes
}

fn destinations(result: &Value) -> Vec<&str> {
    let routes = result["routes"].as_array().map(Vec::as_slice).unwrap_or_default();
    routes.iter().map(|route| route["dst"].as_str().unwrap()).collect()
}

#[test]
fn routes_are_replaced_with_all_that_they_have() {
    overriding(every_key(), |_, container, plugin| {
        let result = plugin.add();
        let expected = [
            "192.0.2.0/24 via 10.10.0.1 dev eth0 metric 50 mtu 1400 advmss 1300",
            "203.0.113.0/24 dev eth0 scope link",
        ];
        assert_eq!(routes(container, 4, "main"), expected);
        assert_eq!(routes(container, 4, "300"), ["198.51.100.0/24 via 10.10.0.1 dev eth0"]);
        let v6 = "2001:db8:ffff::/64 via 2001:db8:10::1 dev eth0 metric 1024 pref medium";
        assert_eq!(routes(container, 6, "main"), [v6]);
        assert_eq!(result["routes"], every_key()["addroutes"]);
        for ip in result["ips"].as_array().unwrap() {
            assert!(ip.get("gateway").is_none(), "{result:#}");
        }
        plugin.check(&result).ok();
        plugin.main.check(&result).ok();
    });
}

/// The kernel reports such a route without a gateway.
#[test]
fn a_route_by_0_0_0_0_is_one_of_the_link() {
    let keys = json!({"addroutes": [{"dst": "192.0.2.0/24", "gw": "0.0.0.0", "scope": 253}]});
    overriding(keys, |_, container, plugin| {
        let result = plugin.add();
        assert!(routes(container, 4, "main").contains(&"192.0.2.0/24 dev eth0 scope link".into()));
        plugin.check(&result).ok();
        assert_eq!(plugin.add(), result, "a repeated ADD");
    });
}

/// The wish behind most uses: a second network that leads to a few destinations only.
#[test]
fn packets_take_the_replaced_routes() {
    overriding(json!({"flushgateway": true}), |lab, container, gone| {
        lab.outside.sh("ip route add 10.10.0.0/24 via 198.51.100.1");
        assert_pings(container, "198.51.100.2");
        gone.add();
        assert_no_ping(container, "198.51.100.2");
        let back = json!({"addroutes": [{"dst": "198.51.100.0/24", "gw": "10.10.0.1"}]});
        gone.also(&override_of(back)).add();
        assert_pings(container, "198.51.100.2");
    });
}

#[test]
fn a_deleted_route_leaves_result_and_kernel_alike() {
    let listed = ["10.77.0.0/16", "10.78.0.0/16", "10.79.0.1/16"];
    let keys = json!({"delroutes": listed.map(|dst| json!({"dst": dst}))});
    overriding(keys, |_, container, plugin| {
        // No earlier result has the first two.
        container.sh("ip route add 10.78.0.0/16 via 10.10.0.1; ip route add 10.79.0.0/16 dev eth0
            ip route add 10.77.0.0/16 via 10.10.0.1 table 300");
        let result = plugin.add();
        assert_eq!(routes(container, 4, "main"), ["default via 10.10.0.1 dev eth0"]);
        assert_eq!(routes(container, 4, "300").len(), 1, "the main table is meant");
        assert!(!destinations(&result).contains(&"10.77.0.0/16"), "{result:#}");
        plugin.check(&result).ok();
    });
}

/// The original's result then has no routes, though those of other tables stay in the kernel.
#[test]
fn a_flush_keeps_what_leads_to_the_links_subnets() {
    overriding(json!({"flushroutes": true}), |_, container, plugin| {
        container.sh("ip route add 10.79.0.0/16 dev eth0; ip route add 10.80.0.0/16 via 10.10.0.1");
        let kernel_s = || container.sh("ip route; ip -6 route").matches("proto kernel").count();
        let before = kernel_s();
        let result = plugin.add();
        assert_eq!(routes(container, 4, "main"), ["10.79.0.0/16 dev eth0 scope link"]);
        assert_eq!(routes(container, 6, "main"), [""; 0]);
        assert_eq!((kernel_s(), destinations(&result)), (before, vec![]));
        assert_eq!(result["ips"][0]["gateway"], "10.10.0.1", "flushgateway is another key");
        plugin.check(&result).ok();
    });
}

#[test]
fn arguments_replace_keys_and_lists_as_a_whole() {
    let keys = json!({
        "flushgateway": true,
        "delroutes": [{"dst": "10.77.0.0/16"}],
        "addroutes": [{"dst": "192.0.2.0/24", "gw": "10.10.0.1"}],
        "args": {"cni": {
            "flushgateway": false, "delroutes": [], "skipcheck": true,
            "addroutes": [{"dst": "192.0.3.0/24", "gw": "10.10.0.1"}],
            "ips": ["10.10.0.9"],
        }},
    });
    overriding(keys, |_, container, plugin| {
        let result = plugin.add();
        let expected = ["10.77.0.0/16", "192.0.3.0/24", "default"];
        let expected = expected.map(|dst| format!("{dst} via 10.10.0.1 dev eth0"));
        assert_eq!(routes(container, 4, "main"), expected);
        container.sh("ip route del 192.0.3.0/24");
        plugin.check(&result).ok();
        let checking = (**plugin).clone().conf(json!({"args": {"cni": {"skipcheck": false}}}));
        checking.check(&result).fails(103, "");
    });
}

/// The original crashes.
#[test]
fn what_crashes_the_original_has_an_answer() {
    overriding(json!({"args": {}, "flushgateway": true}), |lab, container, plugin| {
        let alone = in_network(lab, &override_of(json!({})));
        let error = alone.try_add().fails(7, "");
        assert_eq!(error.msg, "Required prevResult missing");
        plugin.add();
        assert_eq!(routes(container, 4, "main").len(), 1);
        let route = json!({"addroutes": [{"dst": "192.0.2.0/24", "gw": "10.10.0.1"}],
            "prevResult": {"interfaces": null}});
        (**plugin).clone().conf(route).add();
        let added = "192.0.2.0/24 via 10.10.0.1 dev eth0".to_owned();
        assert!(routes(container, 4, "main").contains(&added));
    });
}

#[test]
fn a_failure_is_an_error_and_is_undone() {
    let far = json!({"dst": "192.0.3.0/24", "gw": "172.31.0.1"});
    let keys = json!({"flushroutes": true, "flushgateway": true,
        "addroutes": [{"dst": "192.0.2.0/24", "gw": "10.10.0.1", "mtu": 1400}, far]});
    overriding(json!({}), |lab, container, plugin| {
        let names = "add route 192.0.3.0/24 via 172.31.0.1";
        assert_fails_at(lab, container, plugin, &Case::new("too far", keys.clone(), 100, names));
    });
}

#[test]
fn a_route_that_is_there_is_no_error_and_another_is() {
    let same = json!({"dst": "10.77.0.0/16", "gw": "10.10.0.1"});
    overriding(json!({"addroutes": [same]}), |_, container, plugin| {
        let before = routes(container, 4, "main");
        plugin.add();
        plugin.add();
        assert_eq!(routes(container, 4, "main"), before);
        let with_other = |other: Value| json!({"addroutes": [with(&same, other)]});
        for other in [json!({"mtu": 1300}), json!({"gw": "10.10.0.9"})] {
            let other = plugin.also(&override_of(with_other(other)));
            other.try_add().fails(102, "add route 10.77.0.0/16");
        }
        assert_eq!(routes(container, 4, "main"), before);
        let replacing = with(
            &with_other(json!({"mtu": 1300})),
            json!({"delroutes": [{"dst": "10.77.0.0/16"}]}),
        );
        plugin.also(&override_of(replacing)).add();
        assert!(routes(container, 4, "main")[0].ends_with("mtu 1300"));
    });
}

/// The original looks routes up: it cannot miss a removed one beside a default route, and compares
/// only the gateway of an added one.
#[test]
fn check_compares_exact_routes() {
    let cases = broken::rows(
        r#"
route gone | ip route del 192.0.2.0/24 | 192.0.2.0/24 via 10.10.0.1
other mtu | ip route replace 192.0.2.0/24 via 10.10.0.1 metric 50 mtu 1500 | 192.0.2.0/24
route of a table gone | ip route del table 300 198.51.100.0/24 | 198.51.100.0/24
default route back | ip route add default via 10.10.0.1 | route is not removed: 0.0.0.0/0 via 10.10.0.1
v6 default route back | ip -6 route add default via 2001:db8:10::1 | route is not removed: ::/0
deleted route back | ip route add 10.77.0.0/16 via 10.10.0.1 | route is not removed: 10.77.0.0/16
"#,
    );
    for case in &cases {
        overriding(every_key(), |lab, container, plugin| {
            assert_check_finds(lab, container, plugin, case);
        });
    }
}

#[test]
fn a_repair_adds_lost_routes_and_deletes_none() {
    for_ours("route-override", |lab| {
        let synced = attach(lab, &[network(), every_key()], "");
        for (fault, change) in [
            ("ip route del 192.0.2.0/24", "add route 192.0.2.0/24 in the container"),
            ("ip route flush table 300", "add route 198.51.100.0/24 in the container"),
            ("ip -6 route del 2001:db8:ffff::/64", "add route 2001:db8:ffff::/64 in the container"),
        ] {
            let make = || drop(synced.container.sh(fault));
            synced.assert_repaired_but(make, &[change], |_| false);
        }
        synced.container.sh("ip route add default via 10.10.0.1");
        assert_eq!(synced.net("sync pods --dry-run").status, 0);
        assert_ne!(synced.check().status, 0, "it is left to the user");
        synced.del();
    });
}

/// The routes leave each interface; the first gets the new ones.
#[test]
fn each_interface_of_the_result_is_flushed() {
    let default = json!([{"dst": "0.0.0.0/0", "gw": "10.10.0.1"}]);
    overriding(json!({"flushgateway": true, "addroutes": default}), |_, container, plugin| {
        container.sh("ip link add other type veth peer name far; ip link set other up; ip link set far up; \
             ip addr add 10.66.0.2/24 dev other; ip route add default via 10.66.0.1 dev other metric 9");
        let mut both = (**plugin).clone();
        let other = json!({"name": "other", "sandbox": container.netns});
        both.conf["prevResult"]["interfaces"].as_array_mut().unwrap().push(other);
        both.add();
        assert_eq!(container.sh("ip route show default").trim(), "default via 10.10.0.1 dev eth0");
    });
}

#[test]
fn a_route_with_several_next_hops_is_added_checked_and_repaired() {
    for_ours("route-override", |lab| {
        let hops = json!(["10.10.0.8", "10.10.0.9"]);
        let keys = json!({"addroutes": [{"dst": "192.0.2.0/24", "gws": hops}]});
        let synced = attach(lab, &[network(), override_of(keys)], "");
        let shown = || synced.container.sh("ip route show 192.0.2.0/24");
        assert_eq!(shown().matches("nexthop via 10.10.0.").count(), 2, "{}", shown());
        synced.check().ok();
        let fault = || drop(synced.container.sh("ip route del 192.0.2.0/24"));
        synced.assert_repaired_but(fault, &["add route 192.0.2.0/24"], |_| false);
        synced.container.sh("ip route replace 192.0.2.0/24 via 10.10.0.8");
        let error = synced.check().stderr;
        let expected = "route is not as it was added: 192.0.2.0/24 via 10.10.0.8 via 10.10.0.9";
        assert!(error.contains(expected), "{error}");
    });
}
