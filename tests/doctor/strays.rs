//! What something other than the plugins did to the node and to containers.

use serde_json::{Value, json};

use super::rows::each_is_found;
use super::site::{Site, bridge};
use crate::support::attachment::skip;

/// As in `rows`: what the node has for others, or lacks.
const ON_NODE: &str = r#"
ip addr add 10.96.6.2/32 dev kube-ipvs0 | D511 | 10.96.6.2 is on "kube-ipvs0" of the host | ip addr del 10.96.6.2/32 dev kube-ipvs0
ip addr add 192.0.2.66/32 dev kube-ipvs0 | D512 | hostIP 192.0.2.66 is on "kube-ipvs0" | ip addr del 192.0.2.66/32 dev kube-ipvs0
mkdir -p /etc/kubernetes; : >/etc/kubernetes/kubelet.conf | D214 | whereabouts has "scope": "machine" | rm /etc/kubernetes/kubelet.conf
NETWORK {"type": "bridge", "ipam": {"type": "dhcp"}} | D213 | it does not run: start cni-dhcp.socket | rm /run/net.d/other.conflist
NETWORK {"type": "bridge"}, {"type": "firewall", "backend": "firewalld"} | D213 | is firewalld running? | rm /run/net.d/other.conflist
NETWORK {"type": "flannel"} | D213 | /run/flannel/subnet.env | rm /run/net.d/other.conflist
"#;

#[test]
fn what_the_node_has_for_others_or_lacks_is_found() {
    let site = Site::empty().with_own_etc();
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    site.configure("pods", &json!([bridge("pods0", "10.96.6.0/24"), portmap]));
    let ipam = json!({"type": "whereabouts", "range": "10.96.7.0/24", "scope": "machine"});
    site.configure("cluster", &json!([{"type": "bridge", "bridge": "cluster0", "ipam": ipam}]));
    site.lab.host.sh("ip link add kube-ipvs0 type bridge");
    let container = site.lab.container();
    let output = site.run(&format!("net add pods {} -p 192.0.2.66:8080:80", container.netns));
    assert!(output.status.success(), "{output:?}");
    each_is_found(&site, ON_NODE, |script| match script.strip_prefix("NETWORK ") {
        Some(plugins) => {
            site.configure("other", &serde_json::from_str(&format!("[{plugins}]")).unwrap());
            String::new()
        }
        None => site.lab.host.sh(script),
    });
}

/// STATUS passes while the node's own blocks have free addresses.
#[test]
fn a_daemon_that_does_not_run_and_blocks_of_two_nodes_are_found() {
    let site = Site::empty();
    let ipam = json!({"type": "cluster-local", "subnet": "10.96.0.0/16", "patience": 0});
    site.configure("pods", &json!([{"type": "bridge", "bridge": "pods0", "ipam": ipam}]));
    assert_eq!(site.codes(""), ["D213"], "there is nothing to allocate from");
    let container = site.lab.container();
    assert!(!site.run(&format!("net add pods {}", container.netns)).status.success());
    site.lab.hold("pods", &[("4-0a600008-29", json!({})), ("4-0a600010-29", json!({}))]);
    site.lab.confirm();
    let daemon = site.findings("");
    assert_eq!(site.codes(""), ["D215"]);
    assert!(daemon[0]["evidence"].as_str().unwrap().contains("run the IPAM daemon"), "{daemon:?}");
    for (changes, count) in [(json!({"state": "lost"}), 0), (json!({"contested": true}), 1)] {
        if count == 1 {
            site.attach("pods", &container, "eth0");
        }
        let blocks = [("4-0a600008-29", changes), ("4-0a600010-29", json!({}))];
        site.lab.hold("pods", &blocks);
        let findings = site.findings("");
        let found = findings.iter().find(|finding| finding["code"] == "D216").unwrap();
        let expected = format!("10.96.0.8/29 is another node's, too, and has {count} leases");
        assert_eq!(found["evidence"], expected);
        site.lab.hold("pods", &[("4-0a600008-29", json!({})), ("4-0a600010-29", json!({}))]);
    }
}

/// What a container has of a router, of its own DHCP client and of another attachment is no stray; nor is
/// anything on a network without IPAM, or the gateway on the host's end of ptp.
#[test]
fn what_a_router_or_another_attachment_gave_is_no_stray() {
    let site = Site::with_bridge("10.96.2.0/24");
    let ipam = json!({"type": "host-local", "subnet": "10.96.3.0/24"});
    site.configure("single", &json!([{"type": "ptp", "ipam": ipam}]));
    site.configure("switch", &json!([{"type": "bridge", "bridge": "switch0"}]));
    let container = site.attached("pods");
    site.attach("single", &container, "eth1");
    site.attach("switch", &container, "eth2");
    container.sh("ip addr add 192.0.2.7/24 dev eth0 valid_lft 600 preferred_lft 600
        ip addr add 192.0.2.9/24 dev eth2
        ip route add default via 10.96.2.9 dev eth0 metric 500
        ip route prepend default via 10.96.2.1 dev eth0 proto dhcp");
    assert_eq!(site.findings(""), [Value::Null; 0]);
}

/// Runtimes set up the loopback of pods without a record of it.
#[test]
fn a_loopback_of_a_pod_that_is_down_is_found() {
    let site = Site::with_bridge("10.96.8.0/24");
    let container = site.lab.container();
    container.sh("ip link set lo up");
    let pod = "--args 'IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web'";
    let output = site.run(&format!("net add pods {} {pod}", container.netns));
    assert!(output.status.success(), "{output:?}");
    each_is_found(&site, "ip link set lo down | D315 | \"lo\" |", |script| container.sh(script));
}

#[test]
fn an_uplink_outside_of_the_network_s_vlan_is_found() {
    let site = Site::empty();
    let makes = "ip link add trunk0 up type bridge vlan_filtering 1
        ip link add d0 up master trunk0 type dummy && bridge vlan add dev d0 vid 7";
    if !site.lab.host.try_sh(makes).status.success() {
        return skip("bridge vlan_filtering, and dummy");
    }
    let mut plugin = bridge("trunk0", "10.96.4.0/24");
    plugin["isGateway"] = json!(false);
    plugin["vlan"] = json!(7);
    plugin["ipam"]["routes"] = json!([{"dst": "192.0.2.0/24", "gw": "10.96.4.1"}]);
    site.configure("tagged", &json!([plugin]));
    let _containers = [site.attached("tagged"), site.attached("tagged")];
    let add = "bridge vlan add dev d0 vid 7";
    let row = format!("bridge vlan del dev d0 vid 7 | D306 | d0 is not in VLAN 7 | {add}");
    each_is_found(&site, &row, |script| site.lab.host.sh(script));
}

/// The record of a living container: its fix leaves nothing, and a container of a runtime is left to it.
#[test]
fn a_torn_record_of_a_living_container_is_one_finding() {
    let site = Site::empty();
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    site.configure("pods", &json!([bridge("pods0", "10.96.5.0/24"), portmap]));
    let container = site.lab.container();
    let add = |options: &str| {
        let output = site.run(&format!("net add pods {} -p 8080:80 {options}", container.netns));
        assert!(output.status.success(), "{output:?}");
    };
    let delete = || site.run(&format!("net del pods {}", container.netns));
    let snapshot = "ip -br link | grep veth; nft list ruleset; ls /var/lib/cni/networks/pods /var/lib/cni/results";
    let tear = "cd /var/lib/cni/results; for f in pods-*; do truncate -s $(($(stat -c %s $f) / 2)) $f; done";
    add("");
    delete();
    let before = site.lab.host.try_sh(snapshot).stdout;
    add("");
    let finding = site.finds(tear, "D181");
    for subject in ["", &container.netns] {
        assert_eq!(site.codes(subject), ["D181"], "{subject}");
    }
    assert_eq!(finding["fix"], format!("sudo cni-multi net del pods {}", container.netns));
    site.fix(&finding);
    assert_eq!(site.findings(""), [Value::Null; 0]);
    assert_eq!(site.lab.host.try_sh(snapshot).stdout, before, "nothing is left");
    add("--container-id 0123456789abcdef");
    let finding = site.finds(tear, "D181");
    let detach = "sudo cni-multi net del pods 0123456789abcdef --container-id 0123456789abcdef";
    let advice = format!("delete container 0123456789ab by its runtime; if it is gone: {detach}");
    assert!(finding["evidence"].as_str().unwrap().ends_with(&advice), "{finding}");
    assert_eq!((site.codes("").len(), &finding["fix"]), (1, &json!("")));
    site.vanish(&container);
    site.fix(&json!({"fix": detach}));
    assert_eq!(site.findings(""), [Value::Null; 0]);
    assert_eq!(site.lab.host.try_sh(snapshot).stdout, before, "nothing is left");
}
