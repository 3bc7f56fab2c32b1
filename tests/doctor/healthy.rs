//! Healthy hosts that are unlike the usual one: no finding, with packets neither.

use serde_json::{Value, json};

use super::site::{Site, bridge};
use crate::support::attachment::skip;
use crate::support::extent::is_emulated;
use crate::support::table::cells;
use crate::support::traffic::TcpServer;

/// What is unlike the usual; a script that the kernel must be able to run; a script of the host; options of `net add` and of
/// `doctor`; and the plugins. BRIDGE is a bridge that is a gateway, IPAM host-local with a default route, PORTS portmap.
const HEALTHY: &str = r#"
IPv6 alone | true | ip addr flush dev uplink scope global; ip -6 addr add 2001:db8:ffff::1/64 dev uplink nodad; ip -6 route replace default via 2001:db8:ffff::2 |  |  | {"type": "bridge", "bridge": "six0", "isDefaultGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "fd00:188:1::/64"}]], "routes": [{"dst": "::/0"}]}}
no default route | true | true |  |  | {BRIDGE, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.188.2.0/24"}]]}}
a pair with an address of its own alone | true | true |  |  | {"type": "ptp", "ipMasq": true, "ipam": {"type": "static", "addresses": [{"address": "10.188.3.2/32", "gateway": "10.188.3.1"}], "routes": [{"dst": "0.0.0.0/0"}]}}
a macvlan on a promiscuous link | true | ip link set uplink promisc on |  |  | {"type": "macvlan", "master": "uplink", "ipam": {"type": "host-local", "ranges": [[{"subnet": "198.51.100.0/24", "rangeStart": "198.51.100.50", "rangeEnd": "198.51.100.60", "gateway": "198.51.100.2"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
a strict check of sources | true | for n in all default uplink; do echo 1 >/proc/sys/net/ipv4/conf/$n/rp_filter; done |  |  | {BRIDGE, IPAM}
the stub of systemd-resolved | true | mkdir /run/etc; cp -a /etc/. /run/etc 2>/dev/null; mount --bind /run/etc /etc; rm -f /etc/resolv.conf; echo 'nameserver 127.0.0.53' >/etc/resolv.conf |  |  | {BRIDGE, IPAM}
a bridge that filters VLANs | ip link add f0 type bridge vlan_filtering 1 && ip link del f0 | true |  | --no-packets | {"type": "bridge", "bridge": "trunk0", "vlan": 7, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.188.9.0/24"}]]}}
podman | true | true | -p 8080:80 |  | {BRIDGE, "ipMasq": true, "hairpinMode": true, IPAM}, PORTS, {"type": "firewall"}, {"type": "tuning"}
every plugin behind a bridge | true | true | -p 8080:80 |  | {BRIDGE, "ipMasq": true, IPAM}, PORTS, {"type": "firewall", "backend": "nftables"}, {"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 800000}, {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}, "mtu": 1400}
both families | true | true |  |  | {"type": "bridge", "bridge": "dual0", "isDefaultGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.184.1.0/24"}], [{"subnet": "fd00:184::/64"}]]}}, PORTS, {"type": "firewall", "ingressPolicy": "same-bridge"}, {"type": "bandwidth", "capabilities": {"bandwidth": true}}
a pair | true | true |  |  | {"type": "ptp", "ipMasq": true, IPAM}, PORTS
masquerading by iptables | true | true |  |  | {BRIDGE, "ipMasq": true, "ipMasqBackend": "iptables", IPAM}
a bridge that is no gateway | true | true |  |  | {"type": "bridge", "bridge": "lone0", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.184.5.0/24"}]]}}
macvlan | true | ip link add lower0 up type veth peer name far0; ip link set far0 up |  | --no-packets | {"type": "macvlan", "master": "lower0", IPAM}
ipvlan | ip link add link uplink name p0 type ipvlan && ip link del p0 | ip link add lower0 up type veth peer name far0; ip link set far0 up |  | --no-packets | {"type": "ipvlan", "master": "lower0", IPAM}
vlan | ip link add link uplink name p0 type vlan id 9 && ip link del p0 | ip link add lower0 up type veth peer name far0; ip link set far0 up |  | --no-packets | {"type": "vlan", "master": "lower0", "vlanId": 7, IPAM}
"#;

/// host-local with a default route.
fn ipam(subnet: &str) -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]})
}

#[test]
fn healthy_hosts_have_no_finding() {
    for [what, needs, script, options, packets, plugins] in cells(HEALTHY) {
        if needs == "true" && is_emulated() {
            continue; // it has run on the ordinary kernel
        }
        let site = Site::empty();
        if !site.lab.host.try_sh(needs).status.success() {
            skip(needs);
            continue;
        }
        site.lab.host.sh(script);
        let plugins = plugins
            .replace("BRIDGE", r#""type": "bridge", "bridge": "pods0", "isGateway": true"#)
            .replace("IPAM", &format!("\"ipam\": {}", ipam("10.188.1.0/24")))
            .replace("PORTS", r#"{"type": "portmap", "capabilities": {"portMappings": true}}"#);
        site.configure("pods", &serde_json::from_str(&format!("[{plugins}]")).unwrap());
        let first = site.lab.container();
        let output = site.run(&format!("net add pods {} {options}", first.netns));
        assert!(output.status.success(), "{what}: {output:?}");
        let _served = (!options.is_empty()).then(|| TcpServer::start(&first, 80));
        let is_for_one = ["static", "vlanId"].iter().any(|word| plugins.contains(word));
        let _second = (!is_for_one).then(|| site.attached("pods"));
        for subject in ["", &format!("{} {packets}", first.netns)] {
            assert_eq!(site.findings(subject), [Value::Null; 0], "{what} {subject}");
        }
    }
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
    let _process = site.lab.container_of_process();
    assert_eq!(site.findings(""), [Value::Null; 0]);
    assert_eq!(site.findings(&container.netns), [Value::Null; 0]);
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
