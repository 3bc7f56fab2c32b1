//! D2xx: faults of the node that `rows` does not have.

use serde_json::json;

use super::site::{Site, bridge};
use crate::support::attachment::skip;

/// The first link that the kernel cannot make, of those that a plugin makes.
fn missing_kind(site: &Site) -> Option<&'static str> {
    let creations = [
        ("ipvlan", "link uplink type ipvlan"),
        ("macvlan", "link uplink type macvlan"),
        ("vlan", "link uplink type vlan id 5"),
        ("dummy", "type dummy"),
        ("vrf", "type vrf table 5"),
    ];
    let is_missing = |creation: &&(&str, &str)| {
        let line = format!("ip link add probe0 {} && ip link del probe0", creation.1);
        !site.lab.host.try_sh(&line).status.success()
    };
    creations.iter().find(is_missing).map(|(kind, _)| *kind)
}

#[test]
fn a_module_that_the_kernel_lacks_is_found() {
    let site = Site::with_bridge("10.180.6.0/24");
    let Some(kind) = missing_kind(&site) else { return skip("a kernel without some link") };
    let ipam = json!({"type": "static", "addresses": [{"address": "10.180.6.9/32"}]});
    let mut plugins = json!([{"type": kind, "master": "uplink", "vlanId": 5, "ipam": ipam}]);
    if kind == "vrf" {
        plugins = json!([bridge("pods1", "10.181.6.0/24"), {"type": "vrf", "vrfname": "red"}]);
    }
    assert_eq!(site.codes(""), [""; 0]);
    site.configure("other", &plugins);
    let findings = site.findings("");
    let finding = findings.iter().find(|it| it["code"] == "D210").unwrap();
    let fix = finding["fix"].as_str().unwrap();
    assert!(fix.starts_with("sudo modprobe ") && fix.contains(&kind.replace("vlan", "")), "{fix}");
}

#[test]
fn a_full_file_system_and_one_without_inodes_are_found() {
    let site = Site::with_bridge("10.180.7.0/24");
    let dir = "/var/lib/cni/networks";
    let fill = format!(
        "mkdir -p -m 755 {dir}; mount -t tmpfs -o size=256k,mode=755 lab {dir}
         head -c 250k /dev/zero >{dir}/last_reserved_ip.9 || true"
    );
    let finding = site.finds(&fill, "D230");
    assert!(finding["evidence"].as_str().unwrap().contains(dir), "{finding}");
    site.lab.host.sh(&format!("rm {dir}/last_reserved_ip.9"));
    site.finds(&format!("mount -t tmpfs -o nr_inodes=1,mode=755 lab {dir}"), "D230");
}

/// The settings of connection tracking belong to the first namespace of the machine, so other values
/// are shown in their place.
#[test]
fn a_full_table_of_connections_is_found() {
    for (count, code) in [("262144", "D250"), ("250000", "D251")] {
        let site = Site::with_bridge("10.180.15.0/24");
        let dir = "/proc/sys/net/netfilter";
        if !site.lab.host.try_sh(&format!("test -e {dir}/nf_conntrack_count")).status.success() {
            return skip("connection tracking");
        }
        site.finds(
            &format!(
                "echo {count} >/run/count; echo 262144 >/run/max
                 mount --bind /run/count {dir}/nf_conntrack_count
                 mount --bind /run/max {dir}/nf_conntrack_max"
            ),
            code,
        );
        site.lab.host.sh(&format!("echo 17 >/run/count; cat {dir}/nf_conntrack_count"));
        assert_eq!(site.codes(""), [""; 0]);
    }
}

#[test]
fn both_variants_of_iptables_are_found() {
    let site = Site::with_bridge("10.180.16.0/24");
    let legacy = "iptables-legacy -t filter -A FORWARD -j ACCEPT";
    if !site.lab.host.try_sh(legacy).status.success() {
        return skip("iptables-legacy");
    }
    let finding = site.finds("iptables-nft -t filter -A FORWARD -j ACCEPT", "D260");
    assert_eq!(finding["severity"], "warning");
    for empty in ["iptables-legacy -t filter -F", "iptables-nft -t filter -F"] {
        site.lab.host.sh(empty);
        assert_eq!(site.codes(""), [""; 0], "{empty}: a table without rules");
        site.lab.host.sh(&empty.replace("-F", "-A FORWARD -j ACCEPT"));
        assert_eq!(site.codes(""), ["D260"], "{empty}");
    }
}

#[test]
fn what_gone_containers_have_left_is_found_and_fixed() {
    let site = Site::with_bridge("10.180.18.0/24");
    let container = site.attached("pods");
    assert_eq!(site.codes(""), [""; 0]);
    site.vanish(&container);
    let findings = site.findings("");
    let finding = findings.iter().find(|it| it["code"] == "D270").unwrap();
    assert_eq!((&finding["scope"], &finding["network"]), (&json!("network"), &json!("pods")));
    site.fix(finding);
    assert_eq!(site.codes(""), [""; 0]);
}

#[test]
fn a_strict_source_check_of_a_second_network_is_found_and_fixed() {
    let site = Site::with_bridge("10.180.19.0/24");
    let mut second = bridge("more0", "10.181.19.0/24");
    second["ipam"]["routes"] = json!([]);
    site.configure("more", &json!([second]));
    let container = site.attached("pods");
    site.attach("more", &container, "net1");
    let name = container.netns.rsplit('/').next().unwrap();
    let strict = format!(
        "ip netns exec {name} sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.net1.rp_filter="
    );
    site.lab.host.sh(&format!("{strict}2"));
    let finding = site.finds_and_fixes(&format!("{strict}1"), "D280");
    assert_eq!(finding["ifname"], "net1");
}

#[test]
fn a_lower_link_that_is_missing_or_down_is_found_and_fixed() {
    let site = Site::with_bridge("10.180.23.0/24");
    let ipam = json!({"type": "static", "addresses": [{"address": "10.180.24.9/32"}]});
    site.lab.host.sh("ip link add low0 type bridge; ip link set low0 up");
    site.configure("stacked", &json!([{"type": "macvlan", "master": "low0", "ipam": ipam}]));
    let others: Vec<String> = site.codes("");
    if others == ["D210"] {
        return skip("macvlan");
    }
    let finding = site.finds_and_fixes("ip link set low0 down", "D212");
    assert_eq!((&finding["scope"], &finding["network"]), (&json!("network"), &json!("stacked")));
    // Before Linux 6.2 only a link that is down can be renamed.
    site.finds("ip link set low0 down; ip link set low0 name low1", "D211");
}

/// The chains that the reference's bridge makes with `ipMasq`, of a container without a record.
#[test]
fn chains_of_the_reference_are_found_and_fixed() {
    let site = Site::empty();
    let mut plugin = bridge("pods0", "10.180.24.0/24");
    (plugin["ipMasq"], plugin["ipMasqBackend"]) = (json!(true), json!("iptables"));
    site.configure("pods", &json!([plugin]));
    let container = site.attached("pods");
    let left = site.lab.host.sh("iptables-save -t nat");
    assert!(left.contains("CNI-"), "{left}");
    assert_eq!(site.codes(""), [""; 0]);
    site.lab.host.sh("rm -r /var/lib/cni/results /var/lib/cni/networks/pods");
    site.vanish(&container);
    let findings = site.findings("");
    let finding = findings.iter().find(|it| it["code"] == "D270").expect("the chain is found");
    assert!(finding["evidence"].to_string().contains("CNI-"), "{finding}");
    site.fix(finding);
    assert!(!site.lab.host.sh("iptables-save -t nat").contains("CNI-"));
    assert_eq!(site.codes(""), [""; 0]);
}
