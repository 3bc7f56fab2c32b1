//! D3xx: faults of links that `rows` does not have.

use serde_json::{Value, json};

use super::site::Site;
use crate::support::attachment::skip;

const SUBNET: &str = "10.181.1.0/24";

/// A process in the container chooses the ifindexes of both ends of a pair.
#[test]
fn a_link_that_a_container_names_is_not_its_other_end() {
    let site = Site::with_bridge(SUBNET);
    let container = site.attached("pods");
    let [other, third] = [(); 2].map(|()| site.lab.container());
    site.lab.host.sh(&format!(
        "ip link add docker1 up type veth peer name eth0 netns {}; nsenter --net={0} ip link set eth0 up",
        other.netns
    ));
    let mac = container.sh("ip -o link show eth0 | sed 's/.*ether \\([^ ]*\\).*/\\1/'");
    let fault = format!(
        "cd /sys/class/net/docker1; victim=$(cat ifindex); far=$(cat iflink)
        nsenter --net={} sh -c \"ip link del eth0; ip link add name eth0 index $far address {} \
            type veth peer name x index $victim netns {}\"",
        container.netns,
        mac.trim(),
        third.netns
    );
    site.finds(&fault, "D312");
    let of_other = |finding: &Value| finding.to_string().contains("docker1");
    assert!(!site.findings("").iter().any(of_other), "{:#?}", site.findings(""));
}

/// A network of a link on the host's `lower0`. The other end of that pair is `far0`.
fn on_lower(kind: &str) -> Option<Site> {
    let site = Site::empty();
    let makes =
        "ip link add lower0 type veth peer name far0; ip link set lower0 up; ip link set far0 up";
    site.lab.host.sh(makes);
    let probe = if kind == "vlan" { "vlan id 9" } else { kind };
    let script = format!("ip link add link lower0 name p0 type {probe} && ip link del p0");
    if !site.lab.host.try_sh(&script).status.success() {
        skip(kind);
        return None;
    }
    let ipam = json!({"type": "host-local", "subnet": SUBNET});
    let mut plugin = json!({"type": kind, "master": "lower0", "ipam": ipam});
    if kind == "vlan" {
        plugin["vlanId"] = json!(7);
    }
    site.configure("pods", &json!([plugin]));
    Some(site)
}

#[test]
fn a_lower_link_that_is_down_or_gone_is_found() {
    for kind in ["macvlan", "ipvlan", "vlan"] {
        let Some(site) = on_lower(kind) else { continue };
        let _container = site.attached("pods");
        site.finds_and_fixes("ip link set lower0 down", "D212");
        site.finds("ip link set far0 down", "D305");
        site.lab.host.sh("ip link set far0 up");
        site.finds("ip link del lower0", "D310");
    }
}

/// A pod's author chooses the interface's name and the arguments, and root pastes the fix.
#[test]
fn words_of_others_are_quoted_in_fixes() {
    let site = Site::with_bridge("10.182.9.0/24");
    let container = site.lab.container();
    let words = r"--ifname 'a;>pwned' --args 'IgnoreUnknown=1;X=it'\''s;Y=$(touch /run/pwned)'";
    let output = site.run(&format!("net add pods {} {words}", container.netns));
    assert!(output.status.success(), "{output:?}");
    let fault = format!("nsenter --net={} ip link del 'a;>pwned'", container.netns);
    site.finds_and_fixes(&fault, "D310");
    site.lab.host.sh("[ ! -e pwned ] && [ ! -e /run/pwned ]");
}
