//! UDP flows have no end: conntrack remembers the last translation and sends the next packet there,
//! so ADD and DEL must delete stale entries.

use super::*;
use crate::plugins::meta::portmap::abandoned::alone;

fn dns() -> Value {
    json!([{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}])
}

fn two() -> Value {
    json!([dns()[0], with(&dns()[0], json!({"hostPort": 5355}))])
}

/// Makes the kernel keep a translation for every flow, as on a host that masquerades anything.
fn remember_flows(lab: &Lab) {
    lab.host.sh(
        "nft add table inet others; for hook in prerouting output; do \
         nft add chain inet others $hook \"{ type nat hook $hook priority 0; }\"; nft add rule inet others $hook ct state new counter; done",
    );
}

/// How many conntrack entries there are for a port of the host.
fn flows(lab: &Lab, port: u16) -> usize {
    let list = format!(
        "for f in ipv4 ipv6; do conntrack -L -f $f -p udp --orig-port-dst {port} 2>/dev/null; done"
    );
    lab.host.sh(&list).lines().count()
}

/// The answers to a client outside and one on the host, which always send from the same port; v4
/// and v6.
fn answers(lab: &Lab, port: u16) -> [Option<String>; 4] {
    let ask = |from, family: usize| ask_by_udp(from, &at(UPLINK[family], port));
    [ask(&lab.outside, 0), ask(&lab.outside, 1), ask(&lab.host, 0), ask(&lab.host, 1)]
}

fn served() -> [Option<String>; 4] {
    [OUTSIDE[0], OUTSIDE[1], UPLINK[0], UPLINK[1]].map(|seen| Some(seen.to_owned()))
}

const NOBODY: [Option<String>; 4] = [None, None, None, None];

/// How many UDP flows remain after ADD, the clients' requests and DEL.
pub fn flows_after_del(lab: &Lab) -> usize {
    remember_flows(lab);
    let chain = publish(lab, Some("nftables"), dns());
    let _server = UdpServer::start(&chain.container, 53);
    assert_eq!(answers(lab, 5353), served());
    assert_eq!(flows(lab, 5353), 4);
    chain.del();
    flows(lab, 5353)
}

/// How many flows to the same port of another machine remain after ADD.
pub fn flows_to_others_after_add(lab: &Lab) -> usize {
    remember_flows(lab);
    for to in OUTSIDE {
        assert_eq!(ask_by_udp(&lab.host, &at(to, 5353)), None, "nobody serves there");
    }
    assert_eq!(flows(lab, 5353), 2);
    publish(lab, Some("nftables"), dns());
    flows(lab, 5353)
}

/// A flow left by DEL would still reach the old container, which runs and keeps its address, although its port is closed
/// or another container's now. The reference leaves it until the next ADD.
#[test]
fn a_client_reaches_the_port_s_new_container_and_not_the_old() {
    for_each_backend(|lab, backend| {
        remember_flows(lab);
        for bare in [false, true].into_iter().filter(|bare| !bare || lab.peer == Peer::Ours) {
            let old = publish(lab, backend, dns());
            let server = UdpServer::start(&old.container, 53);
            assert_eq!(answers(lab, 5353), served());
            if bare {
                old.bare().del();
            } else {
                old.del();
            }
            if lab.peer == Peer::Ours {
                assert_eq!(flows(lab, 5353), 0, "{backend:?}, bare: {bare}");
                assert_eq!(answers(lab, 5353), NOBODY, "{backend:?}, bare: {bare}");
            }
            drop(server);
            let new = publish(lab, backend, dns());
            let _server = UdpServer::start(&new.container, 53);
            assert_eq!(answers(lab, 5353), served(), "{backend:?}");
            new.del_all();
            old.main.del();
        }
    });
}

/// One conntrack dump serves all ports of a container. A client that sent before ADD is served after it, and flows to
/// other ports are kept.
#[test]
fn flows_to_each_of_several_ports_are_forgotten() {
    for_ours_with_each_backend(|lab, backend| {
        remember_flows(lab);
        let chain = lab.chain(&network(), &portmap(backend, two()));
        let _server = UdpServer::start(&chain.container, 53);
        let remembered = || [5353, 5354, 5355].map(|port| flows(lab, port));
        for port in [5353, 5354, 5355] {
            assert_eq!(answers(lab, port), NOBODY);
        }
        assert_eq!(remembered(), [4, 4, 4]);
        chain.add();
        assert_eq!(remembered(), [0, 4, 0], "{backend:?}: ADD");
        assert_eq!([answers(lab, 5353), answers(lab, 5355)], [served(), served()]);
        chain.del();
        assert_eq!(remembered(), [0, 4, 0], "{backend:?}: DEL");
    });
}

/// ADD closes all ports of the container that is gone, and opens one of them.
#[test]
fn flows_of_a_container_that_is_gone_are_forgotten() {
    for_ours_with_each_backend(|lab, backend| {
        remember_flows(lab);
        let gone = lab.chain_added(&alone(8), &portmap(backend, two()));
        let server = UdpServer::start(&gone.container, 53);
        assert_eq!([answers(lab, 5353), answers(lab, 5355)], [served(), served()]);
        drop(server);
        gone.main.del();
        assert_ne!(flows(lab, 5355), 0);
        let next = lab.chain_added(&alone(8), &portmap(backend, dns()));
        assert_eq!([flows(lab, 5353), flows(lab, 5355)], [0, 0], "{backend:?}");
        let _server = UdpServer::start(&next.container, 53);
        assert_eq!([answers(lab, 5353), answers(lab, 5355)], [served(), NOBODY], "{backend:?}");
    });
}

/// Only flows to the host's own addresses, or to those of hostIP, belong to a mapping; a container's flow to a name
/// server elsewhere has the same port. From Linux 6.11 on, the kernel deletes flows to single addresses by a filter;
/// portmap lists the flows to a prefix that an administrator has made the host's own.
#[test]
fn flows_to_each_address_of_a_mapping_are_forgotten() {
    let own = ["127.0.0.1", "127.0.0.53", UPLINK[0], UPLINK[1]];
    let (prefixed, at_uplink) = ([&own[..], &["10.66.1.1"]].concat(), [own[0], own[2]]);
    let cases: [(&[&str], Value, usize); 4] = [
        (&own, Value::Null, 0),
        (&OUTSIDE, Value::Null, 2),
        (&at_uplink, json!(UPLINK[0]), 1),
        (&prefixed, Value::Null, 0),
    ];
    for_ours_with_each_backend(|lab, backend| {
        remember_flows(lab);
        for (asked, host_ip, left) in &cases {
            if asked.contains(&"10.66.1.1") {
                lab.host.sh("ip route add local 10.66.0.0/16 dev lo");
            }
            for to in *asked {
                assert_eq!(ask_by_udp(&lab.host, &at(to, 5353)), None, "nobody serves there");
            }
            assert_eq!(flows(lab, 5353), asked.len());
            let chain = publish(lab, backend, json!([with(&dns()[0], json!({"hostIP": host_ip}))]));
            assert_eq!(flows(lab, 5353), *left, "{backend:?}: ADD after {asked:?}");
            chain.del();
            assert_eq!(flows(lab, 5353), *left, "{backend:?}: DEL after {asked:?}");
            chain.main.del();
            lab.host.sh("conntrack -F 2>/dev/null");
        }
    });
}
