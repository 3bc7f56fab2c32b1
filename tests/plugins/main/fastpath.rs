//! bridge and ptp with `fastPath`: which packets go past the rules, and that flows end with their
//! container.

use serde_json::{Value, json};

use super::bridge::vlan::filters_vlans;
use crate::support::attachment::{for_ours, interface, ips, with};
use crate::support::case;
use crate::support::flow::{Flow, assert_rate};
use crate::support::kernel::knows_ways_through_bridges;
use crate::support::netns::{Lab, Namespace, OUTSIDE, UPLINK};
use crate::support::networks::bandwidth::{RATE, both, can_limit};
use crate::support::networks::bridge::warm_up;
use crate::support::networks::fastpath::{TABLE, fast, prepare};
use crate::support::networks::firewall::route_from_outside;
use crate::support::networks::portmap::{at, network as published, portmap};
use crate::support::networks::{bridge, ptp};
use crate::support::patience;
use crate::support::snapshot::Watch;
use crate::support::tracer::{Then, trace};
use crate::support::traffic::{TcpServer, UdpServer, ask_by_udp, connect};

/// Counts the TCP and UDP packets that pass the rules from now on.
fn count(lab: &Lab) {
    lab.host.sh("nft -f - <<'END'
table inet seen
delete table inet seen
table inet seen {
  counter forwarded { }
  chain forward { type filter hook forward priority 0; meta l4proto { tcp, udp } counter name forwarded; }
}
END");
}

/// The packets that were counted.
fn forwarded(lab: &Lab) -> u64 {
    let listed = lab.host.json("nft -j list counter inet seen forwarded");
    let objects = listed["nftables"].as_array().unwrap();
    objects.iter().find_map(|object| object["counter"]["packets"].as_u64()).unwrap()
}

/// A dual-stack network of each plugin.
fn networks() -> [Value; 2] {
    let ranges = json!([[{"subnet": "10.10.0.0/24"}], [{"subnet": "2001:db8:10::/64"}]]);
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    let routed = json!({"ipam": {"subnet": null, "ranges": ranges, "routes": routes}});
    [published(), with(&ptp::conf(), routed)].map(|conf| fast(&conf))
}

fn for_each_network(case: impl Fn(&Lab, &Value)) {
    for conf in networks() {
        for_ours(conf["type"].as_str().unwrap(), |lab| {
            if prepare(lab) {
                case(lab, &conf);
            }
        });
    }
}

/// Asserts that datagrams of a flow are answered past the rules; before 5.13 those that come in by a
/// bridge are not. The first exchanges add the flow, and a change of the host's routes ends it: the
/// next answer adds it again.
#[track_caller]
pub fn assert_is_fast(lab: &Lab, from: &Namespace, to: &str) {
    const ASKED: u64 = 3;
    let has_bridge = !lab.host.sh("ip -br link show type bridge").is_empty();
    let slow = if has_bridge && !knows_ways_through_bridges(lab) { ASKED } else { 0 };
    let ask = || assert!(ask_by_udp(from, to).is_some(), "no answer from {to}");
    for _ in 0..8 {
        ask();
        count(lab);
        (0..ASKED).for_each(|_| ask());
        let passed = forwarded(lab);
        lab.host.sh("nft delete table inet seen");
        if passed == slow {
            return;
        }
    }
    panic!("{to}: {}", lab.host.sh("conntrack -L; conntrack -L -f ipv6; nft list ruleset"));
}

/// Tracked flows of an address.
fn flows_of(lab: &Lab, ip: &str) -> String {
    lab.host.sh(&format!(
        "for f in ipv4 ipv6; do conntrack -L -f $f 2>/dev/null; done | grep -wF -e {ip} || true"
    ))
}

#[test]
fn established_flows_go_past_the_rules_and_are_masqueraded() {
    for_each_network(|lab, conf| {
        warm_up(lab, conf);
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let attachment = lab.attach(&container, conf);
        let result = attachment.add();
        let _server = UdpServer::start(&lab.outside, 80);
        for (outside, uplink) in OUTSIDE.into_iter().zip(UPLINK) {
            let to = at(outside, 80);
            assert_is_fast(lab, &container, &to);
            assert_eq!(ask_by_udp(&container, &to).as_deref(), Some(uplink));
        }
        let _tcp = TcpServer::start(&lab.outside, 81);
        assert_eq!(connect(&container, &at(OUTSIDE[0], 81)).as_deref(), Some(UPLINK[0]));
        attachment.check(&result).ok();
        let tracked = || ips(&result).iter().map(|ip| flows_of(lab, ip)).collect::<Vec<_>>();
        assert!(tracked().iter().all(|flows| flows.contains("OFFLOAD")), "{:?}", tracked());
        attachment.del();
        assert_eq!(tracked(), ["", ""]);
        before.assert_unchanged("ADD");
    });
}

#[test]
fn published_ports_are_answered_past_the_rules() {
    for_each_network(|lab, conf| {
        let mapping = json!([{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}]);
        let chain = lab.chain(conf, &portmap(Some("nftables"), mapping));
        chain.add();
        let _server = UdpServer::start(&chain.container, 53);
        for uplink in UPLINK {
            assert_is_fast(lab, &lab.outside, &at(uplink, 5353));
        }
        chain.del_all();
    });
}

/// A container without the key, on the same bridge, keeps the usual way.
#[test]
fn flows_of_other_containers_pass_the_rules() {
    for_each_network(|lab, conf| {
        lab.attach(&lab.container(), conf).add();
        let other = lab.container();
        lab.attach(&other, &with(conf, json!({"fastPath": null}))).add();
        let _server = UdpServer::start(&lab.outside, 80);
        let to = at(OUTSIDE[0], 80);
        assert!(ask_by_udp(&other, &to).is_some());
        count(lab);
        for _ in 0..2 {
            assert!(ask_by_udp(&other, &to).is_some());
        }
        assert_eq!(forwarded(lab), 4);
    });
}

/// What a later chain of the host drops is not added, and is dropped as before.
#[test]
fn a_flow_that_a_rule_drops_is_not_added() {
    for_each_network(|lab, conf| {
        lab.host.sh("nft -f - <<'END'
table inet strict { chain forward { type filter hook forward priority 300; udp sport 80 drop; }; }
END");
        let container = lab.container();
        lab.attach(&container, conf).add();
        let _server = UdpServer::start(&lab.outside, 80);
        for _ in 0..3 {
            assert_eq!(ask_by_udp(&container, &at(OUTSIDE[0], 80)), None);
        }
        assert!(!flows_of(lab, OUTSIDE[0]).contains("OFFLOAD"));
    });
}

/// A network of a single address.
fn of_one_address(conf: &Value) -> Value {
    let range = json!({"ranges": null, "subnet": "10.10.0.0/24", "rangeEnd": "10.10.0.2", "routes": [{"dst": "0.0.0.0/0"}]});
    with(conf, json!({"ipam": range}))
}

/// A script that counts the packets that a filter accepts and that arrive from now on.
fn count_input(filter: &str) -> String {
    format!(
        "nft add table inet ear; nft delete table inet ear; nft add table inet ear; \
        nft add counter inet ear heard; nft add chain inet ear input '{{ type filter hook input priority 0; }}'; \
        nft add rule inet ear input {filter} counter name heard"
    )
}

fn has_heard_nothing(at: &Namespace) -> bool {
    at.sh("nft list counter inet ear heard").contains("packets 0 ")
}

/// The next container with the address gets no packet of a flow of the one before, whose port was
/// published. `fault` comes before the flow. Returns whether the flow was in the flowtable.
fn assert_flows_end(lab: &Lab, conf: &Value, fault: impl Fn(&str)) -> bool {
    let conf = of_one_address(conf);
    let mapping = json!([{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}]);
    let chain = lab.chain(&conf, &portmap(Some("nftables"), mapping));
    chain.add();
    let index = if conf["type"] == "ptp" { 0 } else { 1 };
    fault(&interface(&chain.result, index));
    let server = UdpServer::start(&chain.container, 53);
    let to = at(UPLINK[0], 5353);
    for _ in 0..4 {
        assert!(ask_by_udp(&lab.outside, &to).is_some());
    }
    let ip = &chain.ips()[0];
    let was_fast = flows_of(lab, ip).contains("OFFLOAD");
    drop(server);
    chain.del_all();
    assert_eq!(flows_of(lab, ip), "");
    let next = lab.container();
    next.sh(&count_input("udp dport 53"));
    let attachment = lab.attach(&next, &conf);
    assert_eq!(ips(&attachment.add()), [ip.as_str()]);
    let _server = UdpServer::start(&next, 53);
    assert_eq!(ask_by_udp(&lab.outside, &to), None);
    assert!(has_heard_nothing(&next));
    attachment.del();
    was_fast
}

#[test]
fn flows_end_with_their_container() {
    for_each_network(|lab, conf| assert!(assert_flows_end(lab, conf, |_| ())));
}

/// Another container keeps the table, and the kernel knows no way to the link: it does not end the
/// flow when the link goes. Linux 7.2 does not add such a flow.
#[test]
fn flows_without_a_link_of_the_container_end_with_it() {
    for_each_network(|lab, conf| {
        let other = lab.container();
        let elsewhere = json!({"name": "net2", "bridge": "br2", "ipam": {"ranges": [[{"subnet": "10.20.0.0/24"}]]}});
        let kept = lab.attach(&other, &with(conf, elsewhere));
        kept.add();
        assert_flows_end(lab, conf, |link| {
            lab.host
                .sh(&format!("nft delete flowtable {TABLE} fast '{{ devices = {{ {link} }}; }}'"));
        });
        let _server = UdpServer::start(&lab.outside, 80);
        assert_is_fast(lab, &other, &at(OUTSIDE[0], 80));
        kept.del();
    });
}

/// A server outside goes on sending: each of its packets is an answer and adds the flow again, until
/// DEL has removed the address.
#[test]
fn flows_that_go_on_arriving_end_with_their_container() {
    for_each_network(|lab, conf| {
        let conf = of_one_address(conf);
        let container = lab.container();
        let attachment = lab.attach(&container, &conf);
        let ip = ips(&attachment.add()).remove(0);
        let _server = UdpServer::start_endless(&lab.outside, 80);
        assert!(ask_by_udp(&container, &at(OUTSIDE[0], 80)).is_some());
        assert!(flows_of(lab, &ip).contains("OFFLOAD"), "{}", flows_of(lab, &ip));
        attachment.del();
        assert_eq!(flows_of(lab, &ip), "");
        let next = lab.container();
        next.sh(&count_input("udp sport 80"));
        let attachment = lab.attach(&next, &conf);
        assert_eq!(ips(&attachment.add()), [ip.as_str()]);
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(has_heard_nothing(&next));
        attachment.del();
    });
}

/// Static addresses can be given again before the DEL of the first container.
#[test]
fn a_late_del_spares_the_flows_of_the_next_container() {
    for_ours("bridge", |lab| {
        if !prepare(lab) {
            return;
        }
        let addresses = json!([{"address": "10.10.0.5/24", "gateway": "10.10.0.1"}]);
        let fixed =
            json!({"type": "static", "addresses": addresses, "routes": [{"dst": "0.0.0.0/0"}]});
        let conf = with(&with(&networks()[0], json!({"ipam": null})), json!({"ipam": fixed}));
        let gone = lab.attach(&lab.container(), &conf);
        gone.add();
        let container = lab.container();
        let next = lab.attach(&container, &conf);
        next.add();
        let _server = UdpServer::start(&lab.outside, 80);
        let to = at(OUTSIDE[0], 80);
        assert_is_fast(lab, &container, &to);
        let flow = lab.host.sh("conntrack -L -o id 2>/dev/null | grep -o 'id=.*'");
        gone.del();
        assert!(ask_by_udp(&container, &to).is_some());
        assert_eq!(lab.host.sh("conntrack -L -o id 2>/dev/null | grep -o 'id=.*'"), flow);
        assert_is_fast(lab, &container, &to);
        next.del();
    });
}

/// Until it has ended the flows, DEL keeps a record of them in the table.
#[test]
fn a_del_after_a_killed_one_ends_the_flows() {
    for_each_network(|lab, conf| {
        let conf = of_one_address(conf);
        for kills in case::in_turn(1..1000, 3) {
            let container = lab.container();
            let attachment = lab.attach(&container, &conf);
            let ip = ips(&attachment.add()).remove(0);
            let _server = UdpServer::start_endless(&lab.outside, 80);
            assert!(ask_by_udp(&container, &at(OUTSIDE[0], 80)).is_some());
            let mut changes = 0;
            let traced = trace(&attachment.call("DEL", None), |stop| {
                changes += usize::from(stop.changes() && stop.result.is_some());
                if changes == kills { Then::Kill } else { Then::Go }
            });
            attachment.del();
            assert_eq!(flows_of(lab, &ip), "", "killed after change {kills}");
            assert_eq!(lab.host.sh("nft list tables | grep fastpath || true"), "");
            if !traced.killed {
                assert!(kills > 5, "{kills} changes");
                return;
            }
        }
    });
}

#[test]
fn limits_hold_in_both_directions() {
    for_each_network(|lab, conf| {
        if !can_limit(lab) {
            return;
        }
        route_from_outside(lab);
        let chain = lab.chain(conf, &both());
        chain.add();
        let ip = &chain.ips()[0];
        let container: &Namespace = &chain.container;
        for (from, to, address) in
            [(container, &lab.outside, OUTSIDE[0]), (&lab.outside, container, ip)]
        {
            assert_rate(from, to, address, RATE);
            let _flow = Flow::start(from, to, address, 2);
            let deadline = std::time::Instant::now() + patience(5);
            while !flows_of(lab, ip).contains("OFFLOAD") {
                assert!(std::time::Instant::now() < deadline, "{}", flows_of(lab, ip));
            }
        }
        chain.del_all();
    });
}

#[test]
fn rules_of_tc_hold() {
    for_each_network(|lab, conf| {
        let container = lab.container();
        let added = lab.attach(&container, conf).add();
        let port = interface(&added, if conf["type"] == "ptp" { 0 } else { 1 });
        let _server = UdpServer::start(&lab.outside, 80);
        let to = at(OUTSIDE[0], 80);
        for link in [port.as_str(), "uplink"] {
            lab.host.sh(&format!("tc qdisc add dev {link} clsact"));
            for side in ["ingress", "egress"] {
                assert_is_fast(lab, &container, &to);
                lab.host.sh(&format!(
                    "tc filter add dev {link} {side} protocol ip matchall action drop"
                ));
                assert_eq!(ask_by_udp(&container, &to), None, "{link} {side}");
                lab.host.sh(&format!("tc filter del dev {link} {side}"));
            }
        }
    });
}

/// `macspoofchk` is a rule of the bridge, which a flow goes past.
#[test]
fn frames_of_a_flow_go_past_macspoofchk() {
    for_ours("bridge", |lab| {
        if !prepare(lab) || !knows_ways_through_bridges(lab) {
            return; // before 5.13 all frames of a container pass the bridge
        }
        let container = lab.container();
        let conf = with(&networks()[0], json!({"macspoofchk": true}));
        let added = lab.attach(&container, &conf).add();
        let _server = UdpServer::start(&lab.outside, 80);
        assert_is_fast(lab, &container, &at(OUTSIDE[0], 80));
        let bridge = interface(&added, 0);
        let mac = lab.host.sh(&format!("cat /sys/class/net/{bridge}/address"));
        container.sh(&format!(
            "ip link set eth0 address 0a:00:00:00:00:99; ip neigh replace 10.10.0.1 lladdr {} dev eth0 nud permanent",
            mac.trim()
        ));
        for (port, expected) in [(80, false), (81, true)] {
            lab.outside.sh(&count_input(&format!("udp dport {port}")));
            assert_eq!(ask_by_udp(&container, &at(OUTSIDE[0], port)), None);
            assert_eq!(has_heard_nothing(&lab.outside), expected, "port {port}");
        }
    });
}

/// NFT_NETDEVICE_MAX is a limit of one request.
#[test]
fn more_than_256_links_are_accelerated() {
    for_each_network(|lab, conf| {
        let first = lab.attach(&lab.container(), conf);
        let result = first.add();
        lab.host.sh(&format!(
            "for i in $(seq 260); do echo link add many$i type veth peer name peer$i; done | ip -batch -
            for i in $(seq 260); do echo \"add flowtable {TABLE} fast {{ devices = {{ many$i }}; }}\"; done | nft -f -"
        ));
        let container = lab.container();
        let attachment = lab.attach(&container, conf);
        let added = attachment.add();
        let _server = UdpServer::start(&lab.outside, 80);
        assert_is_fast(lab, &container, &at(OUTSIDE[0], 80));
        attachment.check(&added).ok();
        first.check(&result).ok();
        attachment.del();
        first.del();
    });
}

#[test]
fn without_a_default_route_add_says_what_is_not_accelerated() {
    for_each_network(|lab, conf| {
        lab.host.sh("ip route del default; ip -6 route del default");
        let outcome = lab.attach(&lab.container(), conf).call("ADD", None).run();
        let warning = |family: &str| format!("the host has no default route of {family}");
        for family in ["IPv4", "IPv6"] {
            assert!(outcome.stderr.contains(&warning(family)), "{outcome:?}");
        }
        outcome.ok();
    });
}

/// Both links of the host's default routes are uplinks.
#[test]
fn every_link_of_a_default_route_is_an_uplink() {
    for_each_network(|lab, conf| {
        lab.host.sh("ip link add second type veth peer name far; ip link set second up; ip link set far up; \
            ip addr add 203.0.113.1/24 dev second; ip route add default via 203.0.113.2 metric 500");
        lab.attach(&lab.container(), conf).add();
        let table = lab.host.sh(&format!("nft list flowtables | grep -A9 'table {TABLE}'"));
        assert!(table.contains("second") && table.contains("uplink"), "{table}");
    });
}

#[test]
fn a_failed_add_leaves_no_fast_path() {
    for_each_network(|lab, conf| {
        warm_up(lab, conf);
        lab.host.sh(&format!("nft add table {TABLE}; nft add chain {TABLE} forward"));
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let error = lab.attach(&container, conf).call("ADD", None).run().err();
        assert!(error.text().contains("fastPath: "), "{}", error.text());
        before.assert_unchanged("a failed ADD");
    });
}

#[test]
fn a_kernel_without_flowtables_is_reported() {
    for conf in [fast(&bridge::conf()), fast(&ptp::conf())] {
        for_ours(conf["type"].as_str().unwrap(), |lab| {
            let attachment = lab.attach(&lab.container(), &conf);
            let has = attachment.call("STATUS", None).run();
            if has.status == 0 {
                return; // the other tests show that ADD works
            }
            let error = has.err();
            assert_eq!(error.code, 50, "{}", error.text());
            assert!(
                error.text().contains("fastPath: ") && error.text().contains("nft_flow_offload")
            );
            let failed = attachment.call("ADD", None).run().err();
            assert!(failed.text().contains("fastPath: "), "{}", failed.text());
            assert_eq!(lab.host.sh("nft list tables | grep fastpath || true"), "");
        });
    }
}

#[test]
fn a_bridge_without_forwarding_has_no_fast_path() {
    for_ours("bridge", |lab| {
        let conf = fast(&bridge::conf());
        for (changes, said) in [
            (json!({"isGateway": false}), "fastPath: true without isGateway"),
            (json!({"ipam": null}), "fastPath: true without an ipam section"),
            (json!({"vlan": 100}), "fastPath and vlan are mutually exclusive"),
            (json!({"vlanTrunk": [{"id": 5}]}), "fastPath and vlanTrunk are mutually exclusive"),
        ] {
            let error = lab.attach(&lab.container(), &with(&conf, changes)).call("ADD", None).run();
            let error = error.err();
            assert_eq!(error.code, 7, "{}", error.text());
            assert!(error.text().contains(said), "{}", error.text());
        }
    });
}

/// Another network on the same bridge makes it filter VLANs.
#[test]
fn a_bridge_that_filters_vlans_has_a_fast_path() {
    for_ours("bridge", |lab| {
        if !prepare(lab) || !filters_vlans(lab) {
            return;
        }
        lab.host.sh("ip link add br0 up type bridge vlan_filtering 1");
        let container = lab.container();
        lab.attach(&container, &networks()[0]).add();
        let _server = UdpServer::start(&lab.outside, 80);
        assert_is_fast(lab, &container, &at(OUTSIDE[0], 80));
    });
}
