//! A network of every plugin that this kernel supports, for the contention tests.

use serde_json::{Value, json};

use super::Chain;
use crate::support::attachment::with;
use crate::support::netns::{Container, Lab};
use crate::support::networks::bandwidth::bandwidth;
use crate::support::networks::bridge::{dual_stack, static_ipam};
use crate::support::networks::firewall::firewall;
use crate::support::networks::portmap::portmap;
use crate::support::networks::tuning::tuning;

/// A container and the networks that it can be attached to, each with a name for messages.
pub struct Member<'a> {
    pub networks: Vec<(&'static str, Chain<'a>)>,
    _container: Container,
}

/// The optional features of this kernel.
pub struct Kernel {
    kinds: Vec<&'static str>,
    can_limit: bool,
    can_tap: bool,
}

impl Kernel {
    pub fn of(lab: &Lab) -> Kernel {
        let can = |line: &str| lab.host.try_sh(line).status.success();
        let has = |kind: &&str| {
            can(&format!("ip link add link uplink name probe type {kind} && ip link del probe"))
        };
        Kernel {
            kinds: ["ipvlan", "vlan id 7", "dummy", "vrf table 77", "bond"]
                .into_iter()
                .filter(has)
                .collect(),
            can_limit: can(
                "ip link add probe type ifb && tc qdisc add dev probe root tbf rate 1mbit burst 10kb latency 25ms; ip link del probe",
            ),
            can_tap: can("test -c /dev/net/tun"),
        }
    }

    fn has(&self, kind: &str) -> bool {
        self.kinds.iter().any(|known| known.split(' ').next() == Some(kind))
    }
}

/// A network with addresses from a /16 of its own.
fn network(name: &str, kind: &str, net: u8, more: Value) -> Value {
    let ipam = json!({"type": "host-local", "subnet": format!("10.{net}.0.0/16"), "routes": [{"dst": "10.99.0.0/16"}]});
    with(&json!({"name": name, "type": kind, "ipam": ipam}), more)
}

/// A host port for TCP and UDP that no other member uses.
fn ports(number: usize) -> Value {
    let port = |protocol: &str| json!({"hostPort": 20_000 + number, "containerPort": 80, "protocol": protocol});
    json!([port("tcp"), port("udp")])
}

impl<'a> Member<'a> {
    pub fn new(lab: &'a Lab, kernel: &Kernel, number: usize) -> Member<'a> {
        let container = lab.container();
        let sysctls = || tuning(json!({"sysctl": {"net.core.somaxconn": "517"}, "mtu": 1400}));
        let gateway = json!({"isDefaultGateway": true, "hairpinMode": true, "ipMasq": true});
        let mut whole = vec![
            with(&dual_stack(), gateway.clone()),
            portmap(None, ports(number)),
            firewall(None),
            sysctls(),
        ];
        if kernel.can_limit {
            let rate = 20_000_000;
            whole.push(bandwidth(
                json!({"ingressRate": rate, "ingressBurst": rate, "egressRate": rate, "egressBurst": rate}),
            ));
        }
        let by_iptables = with(&gateway, json!({"bridge": "br2", "ipMasqBackend": "iptables"}));
        let iptables = vec![
            network("by-iptables", "bridge", 72, by_iptables),
            portmap(Some("iptables"), ports(1000 + number)),
            firewall(Some("iptables")),
        ];
        lab.host.sh(&format!("ip link add hd{number} type veth peer name hp{number}"));
        let device =
            json!({"name": "device", "type": "host-device", "device": format!("hd{number}")});
        let address = json!([{"address": format!("10.73.0.{}/24", number + 1)}]);
        let mut networks = vec![
            ("bridge and all that is chained", whole),
            ("bridge by iptables", iptables),
            (
                "ptp, tuning, sbr",
                vec![
                    network("ptp", "ptp", 71, json!({"ipMasq": true})),
                    sysctls(),
                    json!({"type": "sbr"}),
                ],
            ),
            ("macvlan", vec![network("macvlan", "macvlan", 74, json!({"master": "uplink"}))]),
            ("host-device, static", vec![static_ipam(&device, address, json!([]))]),
            ("loopback", vec![json!({"name": "lo", "type": "loopback"})]),
        ];
        if kernel.can_tap {
            networks.push(("tap", vec![network("tap", "tap", 75, json!({}))]));
        }
        for (kind, net, more) in
            [("ipvlan", 76, json!({"master": "uplink"})), ("dummy", 77, json!({}))]
        {
            if kernel.has(kind) {
                networks.push((kind, vec![network(kind, kind, net, more)]));
            }
        }
        if kernel.has("vlan") {
            networks.push((
                "vlan",
                vec![network(
                    "vlan",
                    "vlan",
                    78,
                    json!({"master": "uplink", "vlanId": 100 + number}),
                )],
            ));
        }
        if kernel.has("bond") {
            lab.host.sh(&format!("ip link add ba{number} type veth peer name bb{number}"));
            let links = json!([{"name": format!("ba{number}")}, {"name": format!("bb{number}")}]);
            let more = json!({"mode": "active-backup", "links": links});
            networks.push(("bond", vec![network("bond", "bond", 80, more)]));
        }
        if kernel.has("vrf") {
            let main = network("of-vrf", "ptp", 79, json!({}));
            networks.push(("ptp, vrf", vec![main, json!({"type": "vrf", "vrfname": "blue"})]));
        }
        let networks = networks
            .into_iter()
            .map(|(name, confs)| (name, Chain::new(lab, &container, &confs)))
            .collect();
        Member { networks, _container: container }
    }

    /// The member's networks in rotation.
    pub fn network(&self, number: usize) -> &(&'static str, Chain<'a>) {
        &self.networks[number % self.networks.len()]
    }

    /// Runs ADD and DEL of each network once.
    pub fn warm_up(&self) {
        for (name, chain) in &self.networks {
            let result = chain.add().unwrap_or_else(|e| panic!("{name}: {e}"));
            chain.del(&result).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}
