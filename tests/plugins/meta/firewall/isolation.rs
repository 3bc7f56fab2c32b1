//! ingressPolicy: which containers reach each other, and which clients reach a published port.

use super::*;
use crate::support::networks::portmap;
use crate::support::networks::portmap::without_bridge_netfilter;

pub fn policy(backend: Option<&str>, policy: &str) -> Value {
    with(&firewall(backend), json!({"ingressPolicy": policy}))
}

/// A network on another bridge.
pub fn other_network() -> Value {
    let ranges = json!([[{"subnet": "10.10.2.0/24"}], [{"subnet": "2001:db8:10:2::/64"}]]);
    with(&network(), json!({"name": "net2", "bridge": "br2", "ipam": {"ranges": ranges}}))
}

/// One ping in each family; both families must agree.
fn passes(from: &Namespace, to: &[String]) -> bool {
    let one = |ip: &String| {
        (0..2).any(|_| from.try_sh(&format!("ping -n -q -c1 -W0.6 {ip}")).status.success())
    };
    let [v4, v6] = [one(&to[0]), one(&to[1])];
    assert_eq!(v4, v6, "{to:?}: IPv4 and IPv6 differ");
    v4
}

/// Which directions do not pass: between two containers of one bridge, one of another bridge, the host and the outside.
fn closed_ways(lab: &Lab, chained: &Value) -> Vec<&'static str> {
    route_from_outside(lab);
    // Packets within a bridge pass the rules only with br_netfilter, where the kernel has it.
    without_bridge_netfilter(lab);
    let [one, neighbour] = [(); 2].map(|()| admit(lab, chained));
    let stranger = lab.chain_added(&other_network(), chained);
    let ways: [(&str, &Namespace, Vec<String>); 7] = [
        ("to a neighbour", &one.container, neighbour.ips()),
        ("to a stranger", &one.container, stranger.ips()),
        ("from a stranger", &stranger.container, one.ips()),
        ("to the outside", &one.container, OUTSIDE.map(str::to_owned).to_vec()),
        ("from the outside", &lab.outside, one.ips()),
        ("from the host", &lab.host, one.ips()),
        ("to the host", &one.container, UPLINK.map(str::to_owned).to_vec()),
    ];
    ways.iter().filter(|(_, from, to)| !passes(from, to)).map(|(way, ..)| *way).collect()
}

/// Isolation covers only bridges with a policy, as in the reference.
const APART: [&str; 2] = ["to a stranger", "from a stranger"];

/// The host's own drop policy stays in force: the accept rules are in iptables' table, the
/// isolation rules in ours.
#[test]
fn bridges_are_kept_apart_by_policy() {
    let with_outside = [&APART[..], &["from the outside"]].concat();
    for (host, backend, word, expected) in [
        ("true", None, "open", vec![]),
        ("true", Some("iptables"), "open", vec![]),
        ("true", None, "same-bridge", APART.to_vec()),
        ("true", Some("iptables"), "same-bridge", APART.to_vec()),
        (DROPPING, None, "same-bridge", with_outside),
    ] {
        for_each_peer("firewall", |lab| {
            lab.host.sh(host);
            assert_eq!(closed_ways(lab, &policy(backend, word)), expected, "{host}, {backend:?}");
        });
    }
}

/// Two containers of one bridge, routed through the host so that the case does not depend on
/// br_netfilter.
#[test]
fn containers_of_one_bridge_are_kept_apart_when_isolated() {
    for backend in [None, Some("iptables")] {
        for (word, expected) in [("open", true), ("same-bridge", true), ("isolated", false)] {
            for_each_peer("firewall", |lab| {
                lab.host
                    .sh("for f in /proc/sys/net/ipv4/conf/*/send_redirects; do echo 0 > $f; done");
                let chains = [(); 2].map(|()| admit(lab, &policy(backend, word)));
                for (from, to) in [(0, 1), (1, 0)] {
                    let (container, ips) = (&chains[from].container, chains[to].ips());
                    container.sh(&format!(
                        "echo 0 > /proc/sys/net/ipv4/conf/all/accept_redirects; \
                         echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_redirects; \
                         ip route add {} via 10.10.0.1; ip route add {} via 2001:db8:10::1",
                        ips[0], ips[1]
                    ));
                }
                for (from, to) in [(0, 1), (1, 0)] {
                    let passes = passes(&chains[from].container, &chains[to].ips());
                    assert_eq!(passes, expected, "{word} with {backend:?}");
                }
                assert_pings(&chains[0].container, UPLINK[0]);
                chains.iter().for_each(|chain| drop(chain.check(&chain.result).ok()));
            });
        }
    }
}

/// Packets within a bridge pass the rules where br_netfilter is enabled.
#[test]
fn br_netfilter_isolates_packets_inside_a_bridge() {
    let show = "cd /proc/sys/net/bridge && echo 1 > bridge-nf-call-iptables && echo 1 > bridge-nf-call-ip6tables";
    for backend in [None, Some("iptables")] {
        for (word, expected) in [("same-bridge", true), ("isolated", false)] {
            for_each_peer("firewall", |lab| {
                if !lab.host.try_sh(show).status.success() {
                    return skip("br_netfilter");
                }
                let chains = [(); 2].map(|()| admit(lab, &policy(backend, word)));
                assert_eq!(chains[0].status().stderr, "", "STATUS has nothing to tell");
                let passes = passes(&chains[0].container, &chains[1].ips());
                assert_eq!(passes, expected, "{word} with {backend:?}");
                UPLINK.iter().for_each(|host| assert_pings(&chains[0].container, host));
            });
        }
    }
}

#[test]
fn status_tells_that_packets_inside_a_bridge_are_not_seen() {
    for_ours("firewall", |lab| {
        without_bridge_netfilter(lab);
        for (word, is_told) in [("open", false), ("same-bridge", false), ("isolated", true)] {
            let status = in_network(lab, &policy(None, word)).status();
            assert_eq!(status.ok(), Value::Null);
            assert_eq!(status.stderr.contains("br_netfilter"), is_told, "{word}: {status:?}");
        }
    });
}

/// The outside and the host reach the port as before; a container on another isolated bridge does
/// not, with either backend.
#[test]
fn a_published_port_is_reached_in_spite_of_isolation() {
    for (word, backend) in [
        ("same-bridge", None),
        ("same-bridge", Some("iptables")),
        ("isolated", None),
        ("isolated", Some("iptables")),
    ] {
        for_each_peer("firewall", |lab| {
            route_from_outside(lab);
            let one = admit(lab, &policy(backend, word));
            let stranger = lab.chain_added(&other_network(), &policy(backend, word));
            one.also(&portmap::portmap(backend, json!([portmap::web()]))).add();
            let _server = TcpServer::start(&one.container, 80);
            for family in [0, 1] {
                let (to, direct) = (at(UPLINK[family], 8080), at(&one.ips()[family], 80));
                let seen = [
                    connect(&lab.outside, &to),
                    connect(&lab.host, &to),
                    connect(&stranger.container, &to),
                    connect(&stranger.container, &direct),
                ];
                let expected = [Some(OUTSIDE[family]), Some(UPLINK[family]), None, None];
                assert_eq!(seen.each_ref().map(Option::as_deref), expected, "{word}, {backend:?}");
            }
        });
    }
}

/// Exceptions from the isolation, which outlive the containers.
#[test]
fn issue_40_the_administrator_s_chain_precedes_isolation() {
    for_ours("firewall", |lab| {
        let chained = policy(Some("nftables"), "same-bridge");
        let (one, other) = (lab.chain(&network(), &chained), lab.chain(&other_network(), &chained));
        [&one, &other].iter().for_each(|chain| drop(chain.add()));
        assert!(!passes(&one.container, &other.ips()));
        lab.host.sh("nft add rule inet cni_multi_firewall admin iifname br0 oifname br2 accept
            nft add rule inet cni_multi_firewall admin ct state established accept");
        assert!(passes(&one.container, &other.ips()));
        assert!(!passes(&other.container, &one.ips()));
        one.check(&one.result).ok();
        let rules = || lab.host.sh("nft -s list chain inet cni_multi_firewall admin");
        let made = rules();
        [&one, &other].iter().for_each(|chain| chain.del_all());
        assert_eq!(rules(), made);
        assert!(!lab.host.sh("nft list table inet cni_multi_firewall").contains("shared"));
        lab.host.sh("nft flush chain inet cni_multi_firewall admin");
        admit(lab, &chained).del_all();
        assert_eq!(lab.host.sh("nft list tables inet"), "");
    });
}

/// A bridge is isolated while one of its containers requires it, and the stricter policy wins.
#[test]
fn a_bridge_is_released_with_its_last_container() {
    for_ours("firewall", |lab| {
        warm_up(lab, &network());
        lab.host.sh("ip link del br0");
        let before = Watch::start(lab, &[]);
        let chains =
            ["same-bridge", "isolated", "same-bridge"].map(|word| admit(lab, &policy(None, word)));
        let sets = || {
            ["bridges", "same_bridge", "isolated"].map(|set| {
                let list = format!("nft list set inet cni_multi_firewall {set}");
                lab.host.sh(&list).contains("\"br0\"")
            })
        };
        assert_eq!(sets(), [true, true, true]);
        chains[1].bare().del();
        assert_eq!(sets(), [true, true, false]);
        chains[0].bare().del();
        assert_eq!(sets(), [true, true, false]);
        chains[2].bare().del();
        assert_eq!(lab.host.sh("nft list tables"), "");
        chains.iter().for_each(|chain| chain.main.del());
        lab.host.sh("ip link del br0");
        before.assert_unchanged("three containers");
    });
}

/// A second interface of a container, on another bridge: its DEL leaves the rules of the first one.
#[test]
fn a_second_interface_of_the_container_is_kept_apart_too() {
    for_ours("firewall", |lab| {
        let chained = policy(None, "same-bridge");
        let first = admit(lab, &chained);
        let second = lab.chain_in(&first.container, "eth1", &other_network(), &chained);
        second.add();
        second.check(&second.result).ok();
        second.bare().del();
        first.check(&first.result).ok();
        assert!(!lab.host.sh("nft list table inet cni_multi_firewall").contains(&second.ips()[0]));
    });
}
