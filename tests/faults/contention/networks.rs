//! The networks of the random lives, as far as this kernel has them, for the contention tests.

use serde_json::Value;

use crate::faults::lives::networks::{Able, Driver, Network, of_modules, usual};
use crate::support::list::List;
use crate::support::netns::{Container, Lab};

/// A container and the networks that it can be attached to, each with a name for messages.
pub struct Member<'a> {
    pub networks: Vec<(String, List<'a>)>,
    _container: Container,
}

/// The optional features of this kernel.
pub struct Kernel {
    able: Able,
    lacks: Vec<&'static str>,
}

impl Kernel {
    pub fn of(lab: &Lab) -> Kernel {
        let can = |line: &str| lab.host.try_sh(line).status.success();
        let lacks = |kind: &&str| {
            !can(&format!("ip link add link uplink name probe type {kind} && ip link del probe"))
        };
        let limits = "ip link add probe type ifb && tc qdisc add dev probe root tbf rate 1mbit burst 10kb latency 25ms; ip link del probe";
        let able = Able { taps: can("test -c /dev/net/tun"), limits: can(limits), leases: false };
        let kinds = ["ipvlan", "vlan id 7", "dummy", "vrf table 77", "bond"].into_iter();
        Kernel { able, lacks: kinds.filter(lacks).collect() }
    }

    fn has(&self, network: &Network) -> bool {
        let is_lacking = |plugin: &Value| {
            let kinds = self.lacks.iter().filter_map(|kind| kind.split(' ').next());
            kinds.into_iter().any(|kind| plugin["type"] == kind)
        };
        !network.plugins.iter().any(is_lacking) && network.plugins[0]["vlan"].is_null()
    }
}

impl<'a> Member<'a> {
    pub fn new(lab: &'a Lab, kernel: &Kernel, number: usize) -> Member<'a> {
        let container = lab.container();
        let of_modules = of_modules(Driver::Plugins, &[number]);
        let all = usual(Driver::Plugins, &[number], &kernel.able).into_iter().chain(of_modules);
        let networks = all.filter(|network| kernel.has(network)).enumerate();
        let chain = |(nth, network): (usize, Network)| {
            network.make_ready(lab);
            let capabilities = network.capabilities(number, nth);
            let confs = network.plugins.iter().map(|plugin| network.derive(plugin, &capabilities));
            let ifname = network.ifname.unwrap_or("eth0");
            let plugins = confs.map(|conf| lab.attach(&container, &conf).ifname(ifname));
            let list = List(plugins.collect());
            (network.name, list)
        };
        Member { networks: networks.map(chain).collect(), _container: container }
    }

    /// The member's networks in rotation.
    pub fn network(&self, number: usize) -> &(String, List<'a>) {
        &self.networks[number % self.networks.len()]
    }

    /// Runs ADD and DEL of each network once.
    pub fn warm_up(&self) {
        for (name, chain) in &self.networks {
            eprintln!("{name}:"); // shown when the case fails
            chain.del(&chain.add());
        }
    }
}
