//! Healthy hosts that are unlike the usual one: no finding, with packets neither.

use serde_json::{Value, json};

use super::site::{Site, bridge};
use crate::support::attachment::skip;
use crate::support::traffic::TcpServer;

/// host-local with a default route.
fn ipam(subnet: &str) -> Value {
    let any = if subnet.contains(':') { "::/0" } else { "0.0.0.0/0" };
    json!({"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": any}]})
}

/// Attaches two containers, and finds nothing.
#[track_caller]
fn is_healthy(site: &Site, network: &str) {
    let containers = [site.attached(network), site.attached(network)];
    assert_eq!(site.findings(""), [Value::Null; 0]);
    let findings = site.findings(&containers[0].netns);
    assert_eq!(findings, [Value::Null; 0]);
}

#[test]
fn a_host_with_ipv6_alone() {
    let site = Site::empty();
    let plugin = json!({"type": "bridge", "bridge": "six0", "isDefaultGateway": true, "ipMasq": true,
        "ipam": ipam("fd00:188:1::/64")});
    site.configure("six", &json!([plugin]));
    site.lab.host.sh("ip addr flush dev uplink scope global; ip -6 addr add 2001:db8:ffff::1/64 dev uplink nodad;
        ip -6 route replace default via 2001:db8:ffff::2");
    is_healthy(&site, "six");
}

#[test]
fn a_network_without_a_default_route() {
    let site = Site::empty();
    let mut plugin = bridge("inner0", "10.188.2.0/24");
    plugin["ipam"]["routes"] = json!([]);
    site.configure("inner", &json!([plugin]));
    is_healthy(&site, "inner");
}

#[test]
fn a_pair_with_an_address_of_its_own_alone() {
    let site = Site::empty();
    let ipam = json!({"type": "static", "addresses": [{"address": "10.188.3.2/32", "gateway": "10.188.3.1"}],
        "routes": [{"dst": "0.0.0.0/0"}]});
    site.configure("single", &json!([{"type": "ptp", "ipMasq": true, "ipam": ipam}]));
    let _container = site.attached("single");
    assert_eq!(site.findings(""), [Value::Null; 0]);
}

#[test]
fn a_macvlan_on_a_promiscuous_link() {
    let site = Site::empty();
    let mut ipam = ipam("198.51.100.0/24");
    ipam["ranges"] = json!([[{"subnet": "198.51.100.0/24", "rangeStart": "198.51.100.50",
        "rangeEnd": "198.51.100.60", "gateway": "198.51.100.2"}]]);
    site.configure("flat", &json!([{"type": "macvlan", "master": "uplink", "ipam": ipam}]));
    site.lab.host.sh("ip link set uplink promisc on");
    is_healthy(&site, "flat");
}

#[test]
fn a_container_on_three_networks() {
    let site = Site::empty();
    let mut second = bridge("second0", "10.188.6.0/24");
    second["ipam"]["routes"] = json!([]);
    site.configure("first", &json!([bridge("first0", "10.188.5.0/24")]));
    site.configure("second", &json!([second]));
    let sbr = json!([{"type": "ptp", "ipam": ipam("10.188.7.0/24")}, {"type": "sbr"}]);
    site.configure("third", &sbr);
    let container = site.attached("first");
    site.attach("second", &container, "net1");
    site.attach("third", &container, "net2");
    assert_eq!(site.findings(""), [Value::Null; 0]);
    assert_eq!(site.findings(&container.netns), [Value::Null; 0]);
}

#[test]
fn a_host_with_a_strict_check_of_sources() {
    let site = Site::with_bridge("10.188.8.0/24");
    site.lab
        .host
        .sh("for n in all default uplink; do echo 1 >/proc/sys/net/ipv4/conf/$n/rp_filter; done");
    is_healthy(&site, "pods");
}

#[test]
fn a_bridge_that_filters_vlans() {
    let site = Site::empty();
    let filters = "ip link add f0 type bridge vlan_filtering 1 && ip link del f0";
    if !site.lab.host.try_sh(filters).status.success() {
        return skip("bridge vlan_filtering");
    }
    let plugin = json!({"type": "bridge", "bridge": "trunk0", "vlan": 7,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.188.9.0/24"}]]}});
    site.configure("tagged", &json!([plugin]));
    let _containers = [site.attached("tagged"), site.attached("tagged")];
    assert_eq!(site.findings(""), [Value::Null; 0]);
}

#[test]
fn a_host_with_the_stub_of_systemd_resolved() {
    let site = Site::with_bridge("10.188.10.0/24").with_own_etc();
    site.lab.host.sh("rm -f /etc/resolv.conf; echo 'nameserver 127.0.0.53' >/etc/resolv.conf");
    is_healthy(&site, "pods");
}

/// podman's network of 4.x with CNI: one bridge, four plugins.
#[test]
fn a_host_of_podman() {
    let site = Site::empty();
    let plugin = json!({"type": "bridge", "bridge": "cni-podman0", "isGateway": true, "ipMasq": true,
        "hairpinMode": true, "ipam": ipam("10.188.11.0/24")});
    let list = json!([plugin, {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "firewall"}, {"type": "tuning"}]);
    site.configure("podman", &list);
    let containers = [site.lab.container(), site.lab.container()];
    for (number, container) in containers.iter().enumerate() {
        let id = format!("{number:064x}");
        let line =
            format!("net add podman {} --container-id {id} -p 808{number}:80", container.netns);
        let output = site.run(&line);
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(site.findings(""), [Value::Null; 0]);
    let _served = TcpServer::start(&containers[0], 80);
    assert_eq!(site.findings(&containers[0].netns), [Value::Null; 0]);
}

/// nerdctl names a process, and its ids have a namespace in front.
#[test]
fn a_host_of_nerdctl() {
    let site = Site::empty();
    let plugin = json!({"type": "bridge", "bridge": "nerdctl0", "isGateway": true, "ipMasq": true,
        "hairpinMode": true, "ipam": ipam("10.188.12.0/24")});
    let list = json!([plugin, {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "firewall", "ingressPolicy": "same-bridge"}, {"type": "tuning"}]);
    site.configure("bridge", &list);
    let containers = [site.lab.container_of_process(), site.lab.container_of_process()];
    for (number, container) in containers.iter().enumerate() {
        let id = format!("default-{number:064x}");
        let args = "--args 'IgnoreUnknown=1;NERDCTL_CNI_DHCP_HOSTNAME=web'";
        let output =
            site.run(&format!("net add bridge {} --container-id {id} {args}", container.netns));
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(site.findings(""), [Value::Null; 0]);
}

/// containerd attaches the loopback as well, by a network that no file has, and keeps a record of
/// each.
#[test]
fn a_host_of_containerd() {
    let site = Site::empty();
    let mut plugin = bridge("cni0", "10.188.13.0/24");
    plugin["ipMasq"] = json!(true);
    plugin["promiscMode"] = json!(true);
    let list = json!([plugin, {"type": "portmap", "capabilities": {"portMappings": true}}]);
    site.configure("containerd-net", &list);
    site.configure("cni-loopback", &json!([{"type": "loopback"}]));
    let containers = [site.attached("containerd-net"), site.attached("containerd-net")];
    containers.iter().for_each(|container| site.attach("cni-loopback", container, "lo"));
    site.lab.host.sh("rm /run/net.d/cni-loopback.conflist");
    assert_eq!(site.findings(""), [Value::Null; 0]);
    assert_eq!(site.findings(&containers[0].netns), [Value::Null; 0]);
}
