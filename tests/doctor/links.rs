//! D3xx: faults of links, and of what plugins have done.

use serde_json::{Value, json};

use super::site::{Site, bridge};
use crate::support::attachment::skip;

const SUBNET: &str = "10.181.1.0/24";

/// The host's end of the only port.
const END: &str = "$(ip -o link show master pods0 | head -1 | sed 's/.*: \\(veth[^@:]*\\).*/\\1/')";

#[test]
fn faults_of_the_host_s_links_are_found_and_fixed() {
    let site = Site::with_bridge(SUBNET);
    let _container = site.attached("pods");
    for (fault, code) in [
        ("ip link set pods0 down".to_owned(), "D302"),
        (format!("ip link set {END} nomaster"), "D311"),
        (format!("ip link set {END} down"), "D313"),
        ("ip link del pods0".to_owned(), "D301"),
    ] {
        let finding = site.finds_and_fixes(&fault, code);
        assert_eq!(finding["severity"], "error", "{finding}");
    }
}

#[test]
fn faults_of_the_container_s_interface_are_found_and_fixed() {
    let site = Site::with_bridge(SUBNET);
    let container = site.attached("pods");
    for (fault, code) in [
        ("ip link set eth0 mtu 4000", "D320"),
        ("ip link set eth0 down", "D314"),
        ("ip link set eth0 address 02:00:00:00:00:99", "D316"),
        ("ip link del eth0", "D310"),
    ] {
        let inside = format!("nsenter --net={} {fault}", container.netns);
        site.finds_and_fixes(&inside, code);
    }
}

#[test]
fn a_host_s_end_elsewhere_is_missing() {
    let site = Site::with_bridge(SUBNET);
    let _container = site.attached("pods");
    let elsewhere = site.lab.container();
    site.finds_and_fixes(&format!("ip link set {END} netns {}", elsewhere.netns), "D312");
}

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

#[test]
fn an_mtu_of_the_bridge_below_its_ports_is_found_and_fixed() {
    let site = Site::with_bridge(SUBNET);
    let _container = site.attached("pods");
    site.finds_and_fixes("ip link set pods0 mtu 1400", "D321");
}

#[test]
fn one_mac_address_of_two_containers_is_found() {
    let site = Site::with_bridge(SUBNET);
    let (first, second) = (site.attached("pods"), site.attached("pods"));
    let mac = first.sh("ip -o link show eth0 | sed 's/.*ether \\([^ ]*\\).*/\\1/'");
    let fault = format!("nsenter --net={} ip link set eth0 address {}", second.netns, mac.trim());
    let finding = site.finds(&fault, "D322");
    assert!(finding["evidence"].as_str().unwrap().contains(mac.trim()), "{finding}");
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

/// The network of a bridge and another plugin, with a container.
fn chained(plugin: serde_json::Value, options: &str) -> Site {
    let site = Site::empty();
    site.configure("pods", &json!([bridge("pods0", SUBNET), plugin]));
    let container = Box::leak(Box::new(site.lab.container()));
    let output = site.run(&format!("net add pods {} {options}", container.netns));
    assert!(output.status.success(), "{output:?}");
    site
}

#[test]
fn published_ports_that_are_gone_are_found_and_fixed() {
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    chained(portmap, "-p 8080:80").finds_and_fixes("nft flush ruleset", "D331");
}

#[test]
fn limits_that_are_gone_are_found_and_fixed() {
    let limits = json!({"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000});
    chained(limits, "").finds_and_fixes(&format!("tc qdisc del dev {END} root"), "D332");
}

#[test]
fn rules_of_the_firewall_that_are_gone_are_found_and_fixed() {
    let firewall = json!({"type": "firewall", "backend": "nftables"});
    let site = Site::empty();
    site.lab.host.sh("iptables -P FORWARD DROP");
    site.configure("pods", &json!([bridge("pods0", SUBNET), firewall]));
    let _container = site.attached("pods");
    site.finds_and_fixes("iptables -F CNI-FORWARD", "D333");
}

#[test]
fn a_port_s_flag_that_was_changed_is_what_check_reports() {
    let site = Site::empty();
    let mut plugin = bridge("pods0", SUBNET);
    plugin["portIsolation"] = json!(true);
    site.configure("pods", &json!([plugin]));
    let _container = site.attached("pods");
    site.finds_and_fixes(&format!("bridge link set dev {END} isolated off"), "D330");
}

#[test]
fn settings_that_were_changed_in_the_container_are_found() {
    let tuning = json!({"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}});
    let site = Site::empty();
    site.configure("pods", &json!([bridge("pods0", SUBNET), tuning]));
    let container = site.attached("pods");
    let inside = |command: &str| format!("nsenter --net={} {command}", container.netns);
    site.finds_and_fixes(&inside("sysctl -qw net.ipv4.conf.eth0.arp_filter=0"), "D334");
}

#[test]
fn source_routing_that_is_gone_is_found_and_fixed() {
    let site = Site::empty();
    site.configure("pods", &json!([bridge("pods0", SUBNET), {"type": "sbr"}]));
    let container = site.attached("pods");
    site.finds_and_fixes(&format!("nsenter --net={} ip rule flush", container.netns), "D335");
}

#[test]
fn an_interface_outside_of_its_vrf_is_found() {
    let site = Site::empty();
    if !site.lab.host.try_sh("ip link add v0 type vrf table 9 && ip link del v0").status.success() {
        return skip("vrf");
    }
    site.configure("pods", &json!([bridge("pods0", SUBNET), {"type": "vrf", "vrfname": "blue"}]));
    let container = site.attached("pods");
    let fault = format!("nsenter --net={} ip link set eth0 nomaster", container.netns);
    let finding = site.finds(&fault, "D336");
    site.fix(&finding);
    assert_eq!(site.codes(""), [""; 0]);
}
