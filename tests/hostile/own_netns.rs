//! CNI_NETNS that is the host's own namespace, by any path: no plugin changes the host.
//! `protocol::own_netns` tests the error's text and the reference.

use serde_json::{Value, json};

use crate::docs;
use crate::support::attachment::for_ours;
use crate::support::snapshot::Watch;

fn conf(plugin: &str) -> Value {
    let interfaces = json!([{"name": "br0"}, {"name": "eth0", "sandbox": "/run/netns/host"}]);
    json!({
        "cniVersion": "1.1.0", "name": "net1", "type": plugin, "master": "uplink", "device": "eth1", "vlanId": 7, "bridge": "br0",
        "vrfname": "red", "sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"}, "mtu": 1300, "mac": "02:00:00:00:00:42", "ingressRate": 1_000_000,
        "ingressBurst": 1_000_000, "ipam": {"type": "static", "addresses": [{"address": "10.10.0.2/24"}]},
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]},
        "prevResult": {"cniVersion": "1.1.0", "interfaces": interfaces, "ips": [{"address": "10.10.0.2/24", "interface": 1}]},
    })
}

/// A host with an interface of the container's name that has an address, a rule and a route.
const HOST: &str = "ip link add eth0 type veth peer name eth1; ip addr add 10.10.0.2/24 dev eth0; ip link set eth0 up; ip link set eth1 up; \
    ip rule add from 10.10.0.2 table 100; ip route add 10.99.0.0/16 dev eth0 table 100; touch /run/netns/host; \
    mount --bind /proc/self/ns/net /run/netns/host; ln -s /run/netns/host /run/link";

#[test]
fn nothing_is_done_to_the_host_in_place_of_a_container() {
    for_ours("bridge", |lab| {
        lab.host.sh(HOST);
        let container = lab.container();
        let before = Watch::start(lab, &[]);
        for [plugin, _, _] in docs::plugins() {
            let holder = format!("/proc/{}/ns/net", lab.pid());
            for path in [
                "/proc/self/ns/net",
                "/proc/thread-self/ns/net",
                &holder,
                "/run/netns/host",
                "/run/link",
                "/run/../run/netns/host",
            ] {
                let at = lab.attach(&container, &conf(&plugin)).netns(Some(path));
                for command in ["ADD", "DEL"] {
                    let error = at.call(command, None).run().err();
                    assert_eq!(error.code, 8, "{plugin} {command} {path}: {error:?}");
                }
                at.call("CHECK", None).run(); // CHECK changes nothing, so it may succeed
            }
        }
        before.assert_unchanged("every plugin was pointed at the host");
    });
}
