//! D5xx: faults of addresses, leases and ranges that `rows` does not have.

use serde_json::json;

use super::site::{Site, bridge};

const SUBNET: &str = "10.183.1.0/24";
const LEASES: &str = "/var/lib/cni/networks/pods";

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
