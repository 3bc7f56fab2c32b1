//! D2xx: faults of the node.

use serde_json::json;

use super::site::Site;

#[test]
fn forwarding_that_is_off_is_found_and_fixed() {
    let site = Site::with_bridge("10.180.1.0/24");
    let container = site.attached("pods");
    let finding = site.finds_and_fixes("echo 0 >/proc/sys/net/ipv4/ip_forward", "D220");
    assert_eq!(finding["scope"], "node");
    assert_eq!(site.codes(&container.netns), [""; 0]);
}

#[test]
fn ipv6_forwarding_that_is_off_is_found_and_fixed() {
    let site = Site::empty();
    let mut plugin = super::site::bridge("pods0", "fd00:180::/64");
    plugin["ipam"]["routes"] = json!([{"dst": "::/0"}]);
    site.configure("pods", &json!([plugin]));
    let _container = site.attached("pods");
    site.finds_and_fixes("echo 0 >/proc/sys/net/ipv6/conf/all/forwarding", "D221");
}
