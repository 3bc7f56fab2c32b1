//! All containers of a node start at once, each with addresses, masquerading, published ports and
//! firewall rules.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Instant;

use serde_json::{Value, json};

use super::{in_turns, long_or_short};
use crate::faults::table::tell;
use crate::support::attachment::{for_ours, ips, with};
use crate::support::call::Outcome;
use crate::support::list::List;
use crate::support::netns::{Container, Lab, UPLINK};
use crate::support::networks::firewall::{DROPPING, firewall};
use crate::support::networks::portmap::{at, network, portmap, without_bridge_netfilter};
use crate::support::snapshot::Watch;
use crate::support::traffic::{TcpServer, UdpServer, ask_by_udp, assert_masqueraded, connect};

/// The number of runtimes that start at the same time.
const AT_A_TIME: usize = 20;

/// Every `SAMPLE`-th container is tested with packets.
const SAMPLE: usize = 20;

/// The first of the container's two host ports.
fn host_port(number: usize) -> u16 {
    20_000 + 2 * u16::try_from(number).unwrap()
}

/// Two container ports, each published for TCP and UDP.
fn confs(number: usize, backend: &str) -> [Value; 3] {
    let mapping = |nth: u16, protocol: &str| json!({"hostPort": host_port(number) + nth, "containerPort": 80 + nth, "protocol": protocol});
    let mappings =
        json!([mapping(0, "tcp"), mapping(1, "tcp"), mapping(0, "udp"), mapping(1, "udp")]);
    let main = with(&network(), json!({"ipMasq": true, "ipMasqBackend": backend}));
    [main, portmap(Some(backend), mappings), firewall(Some(backend))]
}

/// A host with policy drop: only traffic that a plugin allows passes.
struct Crowd<'a> {
    containers: Vec<Container>,
    chains: Vec<List<'a>>,
}

impl<'a> Crowd<'a> {
    fn new(lab: &'a Lab, backend: &str, size: usize) -> Crowd<'a> {
        lab.host.sh("echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");
        lab.host.sh(DROPPING);
        without_bridge_netfilter(lab);
        let containers: Vec<_> = (0..size).map(|_| lab.container()).collect();
        let chain = |(number, container)| List::of(lab, container, &confs(number, backend));
        let chains = containers.iter().enumerate().map(chain).collect();
        Crowd { containers, chains }
    }

    /// Does something with each, many at a time.
    fn each<T: Send>(&self, work: impl Fn(&List<'a>, usize) -> T + Sync) -> Vec<T> {
        in_turns(self.chains.len(), AT_A_TIME, |number| work(&self.chains[number], number))
    }

    /// Both ports answer over TCP and UDP from this container alone, and the container reaches the
    /// outside.
    fn assert_works(&self, lab: &Lab, number: usize, result: &Value) {
        let container = &self.containers[number];
        ips(result).iter().for_each(|ip| assert_masqueraded(lab, container, ip));
        for nth in [0, 1] {
            let _servers =
                (TcpServer::start(container, 80 + nth), UdpServer::start(container, 80 + nth));
            for own in UPLINK {
                let port = at(own, host_port(number) + nth);
                assert!(connect(&lab.host, &port).is_some(), "{port} does not answer by TCP");
                assert!(ask_by_udp(&lab.host, &port).is_some(), "{port} does not answer by UDP");
            }
        }
    }
}

/// Creates what stays on the host by contract after the first ADD.
fn warm_up(lab: &Lab, backend: &str) {
    let container = lab.container();
    let chain = List::of(lab, &container, &confs(9999, backend));
    chain.del(&chain.add());
}

fn all_are_served_and_nothing_is_left(backend: &str, size: usize) {
    for_ours("portmap", |lab| {
        let crowd = Crowd::new(lab, backend, size);
        warm_up(lab, backend);
        let before = Watch::start(lab, &[&crowd.containers[0], &crowd.containers[size - 1]]);

        let started = Instant::now();
        let results: Result<Vec<Value>, Outcome> =
            crowd.each(|chain, _| chain.try_add()).into_iter().collect();
        let added = started.elapsed();
        let results = results.unwrap();
        let addresses: BTreeSet<String> = results.iter().flat_map(ips).collect();
        assert_eq!(addresses.len(), 2 * size, "each has its own address of both families");
        (0..size)
            .step_by(SAMPLE)
            .chain([size - 1])
            .for_each(|number| crowd.assert_works(lab, number, &results[number]));
        let checked = crowd.each(|chain, number| chain.try_check(&results[number]));
        assert_eq!(checked, vec![Ok(()); size]);

        let started = Instant::now();
        let deleted = crowd.each(|chain, number| chain.try_del(&results[number]));
        assert_eq!(deleted, vec![Ok(()); size]);
        let [add, del] =
            [added, started.elapsed()].map(|took| format!("{:.1}", took.as_secs_f64()));
        // The failures of ADD and DEL, and addresses assigned twice: none, as asserted above.
        let row: [&dyn Display; 9] = [&"ours", &backend, &size, &AT_A_TIME, &add, &0, &del, &0, &0];
        tell("contention", &row);
        before.assert_unchanged("the crowd");
    });
}

/// Without a container before them, all of the crowd create the shared chains.
#[test]
fn shared_chains_of_iptables_are_jumped_to_once() {
    for_ours("portmap", |lab| {
        let crowd = Crowd::new(lab, "iptables", AT_A_TIME);
        crowd.each(|chain, _| chain.add());
        // PREROUTING and OUTPUT jump to the chain of ports.
        for (table, chain, jumps) in [("nat", "CNI-HOSTPORT-DNAT", 2), ("filter", "CNI-FORWARD", 1)]
        {
            let rules = lab.host.sh(&format!("iptables-save -t {table}"));
            assert_eq!(rules.matches(&format!("-j {chain}")).count(), jumps, "{rules}");
        }
    });
}

#[test]
fn hundreds_with_nftables_are_served_and_leave_nothing() {
    all_are_served_and_nothing_is_left("nftables", long_or_short(200, 60));
}

#[test]
fn hundreds_with_iptables_are_served_and_leave_nothing() {
    all_are_served_and_nothing_is_left("iptables", long_or_short(200, 40));
}
