//! D5xx: faults of addresses, leases and ranges that `rows` does not have.

use serde_json::{Value, json};

use super::site::{Site, bridge};
use crate::support::traffic::TcpServer;

const SUBNET: &str = "10.183.1.0/24";
const LEASES: &str = "/var/lib/cni/networks/pods";

#[test]
fn one_address_of_two_containers_is_found() {
    let site = Site::with_bridge(SUBNET);
    let (_first, second) = (site.attached("pods"), site.attached("pods"));
    let fault = format!("nsenter --net={} ip addr add 10.183.1.2/24 dev eth0", second.netns);
    let finding = site.finds_and_fixes(&fault, "D503");
    assert!(finding["evidence"].as_str().unwrap().ends_with(" have 10.183.1.2"), "{finding}");
}

/// As containerd attaches every pod to `lo`.
#[test]
fn addresses_of_lo_may_be_those_of_every_container() {
    let site = Site::empty();
    site.configure("cni-loopback", &json!([{"type": "loopback"}]));
    let _containers = [site.attached_to_lo(), site.attached_to_lo()];
    assert_eq!(site.codes(""), [""; 0]);
}

/// A network of these addresses.
fn with_range(first: &str, last: &str) -> Site {
    let site = Site::empty();
    let mut plugin = bridge("pods0", SUBNET);
    plugin["ipam"]["ranges"] = json!([[{"subnet": SUBNET, "rangeStart": first, "rangeEnd": last}]]);
    site.configure("pods", &json!([plugin]));
    site
}

#[test]
fn a_full_range_is_found() {
    let site = with_range("10.183.1.10", "10.183.1.11");
    let _first = site.attached("pods");
    assert_eq!(site.codes(""), [""; 0]);
    let _second = site.attached("pods");
    let findings = site.findings("");
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((&findings[0]["code"], &findings[0]["scope"]), (&"D520".into(), &"network".into()));
}

#[test]
fn leases_of_nobody_that_fill_a_range_are_found_and_fixed() {
    let site = with_range("10.183.1.210", "10.183.1.219");
    let _container = site.attached("pods");
    let fault = format!(
        "for n in 1 2 3 4 5 6 7 8; do printf 'gone\\r\\neth0' >{LEASES}/10.183.1.21$n; touch -d yesterday {LEASES}/10.183.1.21$n; done"
    );
    let finding = site.finds(&fault, "D521");
    assert!(finding["evidence"].as_str().unwrap().starts_with("9 of 10 "), "{finding}");
    site.fix(&finding);
    assert_eq!(site.codes(""), [""; 0]);
}

/// Its addresses are of no other test: GC spares an address that a container anywhere has.
#[test]
fn a_lease_that_is_another_s_is_found_and_fixed() {
    let site = Site::with_bridge("10.183.7.0/24");
    let _container = site.attached("pods");
    let fault = format!("printf 'other\\r\\neth0' >{LEASES}/10.183.7.2");
    let finding = site.finds(&fault, "D523");
    site.fix(&finding);
    let left = site.findings("");
    assert_eq!((left.len(), &left[0]["code"]), (1, &"D270".into()), "the other's lease: {left:?}");
    site.fix(&left[0]);
    assert_eq!(site.codes(""), [""; 0]);
}

#[test]
fn a_gateway_that_does_not_answer_is_found_by_packets() {
    let site = Site::with_bridge(SUBNET);
    let container = site.attached("pods");
    let name = &container.netns;
    let without = format!("{name} --no-packets");
    assert_eq!(site.codes(name), [""; 0]);
    site.lab.host.sh("ip link set pods0 arp off");
    assert_eq!((site.codes(&without), site.codes(name)), (vec![], vec!["D530".to_owned()]));
    // A host that answers nothing for itself, and passes packets, is healthy.
    site.lab.host.sh("ip link set pods0 arp on; nft 'add table inet f; add chain inet f input { type filter hook input priority 0; };
        add rule inet f input icmp type echo-request drop'");
    assert_eq!(site.codes(name), [""; 0]);
}

/// Whether the kernel has links of this kind. A link with macvlan has no ipvlan.
fn has_kind(site: &Site, kind: &str) -> bool {
    let (lower, options) = match kind {
        "ipvlan" => ("lower1", kind),
        "vlan" => ("lower0", "vlan id 9"),
        _ => ("lower0", kind),
    };
    let script = format!("ip link add link {lower} name p0 type {options} && ip link del p0");
    matches!(kind, "bridge" | "ptp") || site.lab.host.try_sh(&script).status.success()
}

/// Containers of chains of every kind have no finding.
#[test]
fn healthy_chains_have_no_finding() {
    let ipam = |number: u8| {
        json!({"type": "host-local", "subnet": format!("10.183.{number}.0/24"),
            "routes": [{"dst": "0.0.0.0/0"}]})
    };
    let mut all = bridge("pods0", SUBNET);
    all["ipMasq"] = json!(true);
    let lists = [
        json!([all, {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall", "backend": "nftables"},
            {"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000},
            {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}, "mtu": 1400}]),
        json!([{"type": "ptp", "ipMasq": true, "ipam": ipam(2)}]),
        json!([{"type": "macvlan", "master": "lower0", "ipam": ipam(3)}]),
        json!([{"type": "ipvlan", "master": "lower1", "ipam": ipam(4)}]),
        json!([{"type": "vlan", "master": "lower0", "vlanId": 7, "ipam": ipam(5)}]),
    ];
    let site = Site::empty();
    site.lab.host.sh("for n in 0 1; do ip link add lower$n up type veth peer name far$n; ip link set far$n up; done");
    let mut containers = vec![];
    for (number, list) in lists.iter().enumerate() {
        let kind = list[0]["type"].as_str().unwrap();
        if !has_kind(&site, kind) {
            crate::support::attachment::skip(kind);
            continue;
        }
        let name = format!("net{number}");
        site.configure(&name, list);
        containers.push(site.lab.container());
        let netns = &containers.last().unwrap().netns;
        let port = if number == 0 { "-p 8080:80" } else { "" };
        let output = site.run(&format!("net add {name} {netns} {port}"));
        assert!(output.status.success(), "{name}: {output:?}");
        let _served = (number == 0).then(|| TcpServer::start(containers.last().unwrap(), 80));
        // Nobody is the gateway beyond lower0 and lower1.
        let packets = if list[0]["master"].is_null() { "" } else { " --no-packets" };
        assert_eq!(site.findings(&format!("{netns}{packets}")), [Value::Null; 0], "{name}");
    }
    assert_eq!(site.findings(""), [Value::Null; 0]);
}
