//! What something other than the plugins did to links, addresses, routes and records of a container: one
//! finding each, and none after its fix.

use serde_json::{Value, json};

use super::site::{Site, bridge};
use crate::support::attachment::skip;

/// What is done on the host or, after `in:`, in the container; the code; of the evidence; and what
/// mends it, empty if the finding's fix does. `$end` is the host's end.
const FAULTS: &str = r#"
in: ip link set eth0 down | D314 | interface "eth0" of the container is down |
in: ip link set lo down | D315 | interface "lo" of the container is down |
bridge link set dev $end isolated on | D330 | isolated true |
in: ip addr add 10.96.1.77/24 dev eth0 | D507 | "eth0" has 10.96.1.77/24, which no plugin gave | in: ip addr del 10.96.1.77/24 dev eth0
in: ip addr add 192.0.2.8/32 dev eth0; ip addr add 192.0.2.9/32 dev eth0 | D507 | has 192.0.2.8/32 and 1 more, which | in: ip addr del 192.0.2.8/32 dev eth0; ip addr del 192.0.2.9/32 dev eth0
in: ip addr add fd00:96:1::77/64 dev eth0 nodad | D507 | fd00:96:1::77/64 | in: ip addr del fd00:96:1::77/64 dev eth0
in: ip route prepend default via 10.96.1.250 | D508 | by 10.96.1.250 goes before the recorded one by 10.96.1.1 |
in: ip route prepend default dev eth0 | D508 | without a gateway goes before the recorded one by 10.96.1.1 |
ip addr add 169.254.7.7/16 dev $end scope link | D509 | has 169.254.7.7/16, which no plugin gave |
ip addr add 192.0.2.5/24 dev $end valid_lft 600 preferred_lft 600 | D509 | 192.0.2.5/24 |
ip addr add 192.0.2.5/24 dev $end; ip route prepend default via 192.0.2.1 dev $end | D510 | has the default route and 192.0.2.5/24 |
"#;

#[test]
fn what_no_plugin_did_is_found_and_mended() {
    let site = Site::empty();
    site.configure("pods", &json!([bridge("pods0", "10.96.1.0/24")]));
    site.configure("cni-loopback", &json!([{"type": "loopback"}]));
    let container = site.attached("pods");
    site.attach("cni-loopback", &container, "lo");
    site.lab.host.sh("ip addr add 10.96.1.250/32 dev uplink"); // a gateway that exists
    let run = |script: &str| match script.strip_prefix("in: ") {
        Some(script) => container.sh(script),
        None => site.lab.host.sh(&format!("end=$(ls /sys/class/net/pods0/brif); {script}")),
    };
    each_is_found(&site, FAULTS, run);
}

/// The same of the node.
const ON_NODE: &str = r#"
ip addr add 10.96.6.2/32 dev kube-ipvs0 | D511 | 10.96.6.2 is on "kube-ipvs0" of the host | ip addr del 10.96.6.2/32 dev kube-ipvs0
ip addr add 192.0.2.66/32 dev kube-ipvs0 | D512 | hostIP 192.0.2.66 is on "kube-ipvs0" | ip addr del 192.0.2.66/32 dev kube-ipvs0
mkdir -p /etc/kubernetes; : >/etc/kubernetes/kubelet.conf | D214 | whereabouts has no /etc/cni-multi/ipam.json | rm /etc/kubernetes/kubelet.conf
NETWORK {"type": "bridge", "ipam": {"type": "dhcp"}} | D213 | it does not run: start cni-dhcp.socket | rm /run/net.d/other.conflist
NETWORK {"type": "bridge"}, {"type": "firewall", "backend": "firewalld"} | D213 | is firewalld running? | rm /run/net.d/other.conflist
NETWORK {"type": "flannel"} | D213 | /run/flannel/subnet.env | rm /run/net.d/other.conflist
"#;

#[test]
fn what_the_node_has_for_others_or_lacks_is_found() {
    let site = Site::empty().with_own_etc();
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    site.configure("pods", &json!([bridge("pods0", "10.96.6.0/24"), portmap]));
    let ipam = json!({"type": "whereabouts", "range": "10.96.7.0/24"});
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

/// Before each row of the table there is no finding, after its fault exactly one, and none after that
/// is mended.
fn each_is_found(site: &Site, faults: &str, run: impl Fn(&str) -> String) {
    for line in faults.lines().filter(|line| !line.is_empty()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!(site.findings(""), [Value::Null; 0], "before {line}");
        run(cells[0]);
        let found = site.findings("");
        assert_eq!(found.len(), 1, "{line}: {found:#?}");
        let text = |key: &str| found[0][key].as_str().unwrap();
        assert_eq!(text("code"), cells[1], "{line}: {found:#?}");
        assert!(text("evidence").contains(cells[2]), "{line}: {found:#?}");
        assert_eq!(text("fix").is_empty(), !cells[3].is_empty(), "{line}: {found:#?}");
        if cells[3].is_empty() {
            site.fix(&found[0]);
        } else {
            run(cells[3]);
        }
    }
    assert_eq!(site.findings(""), [Value::Null; 0]);
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
    let row = format!("bridge vlan del dev d0 vid 7 | D306 | d0 is not in VLAN 7: {add} | {add}");
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
