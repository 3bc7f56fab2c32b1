//! bridge and ptp with `fastPath`: which packets go past the rules, and that flows end with their
//! container.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::bridge::vlan::filters_vlans;
use crate::support::attachment::{Attachment, for_ours, interface, ips, with};
use crate::support::failed_add::{assert_fails, assert_refused, rows};
use crate::support::flow::{Flow, assert_rate};
use crate::support::kernel::knows_ways_through_bridges;
use crate::support::netns::{Lab, Namespace, OUTSIDE, UPLINK};
use crate::support::networks::bandwidth::{RATE, both, can_limit};
use crate::support::networks::bridge::{static_ipam, warm_up};
use crate::support::networks::fastpath::{TABLE, fast, prepare};
use crate::support::networks::firewall::route_from_outside;
use crate::support::networks::portmap::{at, network as published, portmap};
use crate::support::networks::{bridge, ptp};
use crate::support::peers::each_case;
use crate::support::tracer::{Then, trace};
use crate::support::traffic::{TcpServer, UdpServer, ask_by_udp, connect};
use crate::support::{case, patience};

/// Counts, from now on, the packets at a hook that match.
fn count(at: &Namespace, hook: &str, filter: &str) {
    at.sh(&format!(
        "nft -f - <<'END'
table inet seen
delete table inet seen
table inet seen {{
  counter heard {{ }}
  chain at {{ type filter hook {hook} priority 0; {filter} counter name heard; }}
}}
END"
    ));
}

fn count_forwarded(lab: &Lab) {
    count(&lab.host, "forward", "meta l4proto { tcp, udp }");
}

/// The packets that were counted.
fn counted(at: &Namespace) -> u64 {
    let listed = at.json("nft -j list counter inet seen heard");
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

/// A UDP server outside.
const SERVER: &str = "198.51.100.2:80";

/// Runs a case of ours on a host with flowtables, with the server outside.
fn on_a_host(plugin: &str, case: impl Fn(&Lab)) {
    for_ours(plugin, |lab| {
        if prepare(lab) {
            let _server = UdpServer::start(&lab.outside, 80);
            case(lab);
        }
    });
}

fn for_each_network(case: impl Fn(&Lab, &Value)) {
    for conf in networks() {
        on_a_host(conf["type"].as_str().unwrap(), |lab| case(lab, &conf));
    }
}

/// The host's end of an attachment's pair.
fn host_end(result: &Value) -> String {
    let links = result["interfaces"].as_array().unwrap();
    interface(result, links.len() - 2)
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
        count_forwarded(lab);
        (0..ASKED).for_each(|_| ask());
        let passed = counted(&lab.host);
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

fn established_flows_go_past_the_rules_and_are_masqueraded(lab: &Lab, conf: &Value) {
    warm_up(lab, conf);
    let (container, attachment, before) = lab.watched(conf);
    let result = attachment.add();
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
}

fn published_ports_are_answered_past_the_rules(lab: &Lab, conf: &Value) {
    let chain = lab.chain(conf, &published_dns());
    chain.add();
    let _server = UdpServer::start(&chain.container, 53);
    UPLINK.iter().for_each(|uplink| assert_is_fast(lab, &lab.outside, &at(uplink, 5353)));
    chain.del_all();
}

fn published_dns() -> Value {
    let mapping = json!([{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}]);
    portmap(Some("nftables"), mapping)
}

/// A container without the key, on the same bridge, keeps the usual way.
fn flows_of_other_containers_pass_the_rules(lab: &Lab, conf: &Value) {
    lab.added(conf);
    let (other, ..) = lab.added(&with(conf, json!({"fastPath": null})));
    let ask = || assert!(ask_by_udp(&other, SERVER).is_some());
    ask();
    count_forwarded(lab);
    ask();
    ask();
    assert_eq!(counted(&lab.host), 4);
}

/// What a later chain of the host drops is not added, and is dropped as before.
fn a_flow_that_a_rule_drops_is_not_added(lab: &Lab, conf: &Value) {
    lab.host.sh("nft -f - <<'END'
table inet strict { chain forward { type filter hook forward priority 300; udp sport 80 drop; }; }
END");
    let (container, ..) = lab.added(conf);
    (0..3).for_each(|_| assert_eq!(ask_by_udp(&container, SERVER), None));
    assert!(!flows_of(lab, OUTSIDE[0]).contains("OFFLOAD"));
}

/// A network of a single address.
fn of_one_address(conf: &Value) -> Value {
    let range = json!({"ranges": null, "subnet": "10.10.0.0/24", "rangeEnd": "10.10.0.2", "routes": [{"dst": "0.0.0.0/0"}]});
    with(conf, json!({"ipam": range}))
}

/// The next container of a network of one address gets none of these packets.
fn assert_next_hears_nothing(
    lab: &Lab,
    conf: &Value,
    ip: &str,
    filter: &str,
    send: impl Fn(&Namespace),
) {
    let (next, attachment) = lab.place(conf);
    count(&next, "input", filter);
    assert_eq!(ips(&attachment.add()), [ip]);
    send(&next);
    assert_eq!(counted(&next), 0);
    attachment.del();
}

/// The next container with the address gets no packet of a flow of the one before, whose port was
/// published. `fault` comes before the flow. Returns whether the flow was in the flowtable.
fn assert_flows_end(lab: &Lab, conf: &Value, fault: impl Fn(&str)) -> bool {
    let conf = of_one_address(conf);
    let chain = lab.chain(&conf, &published_dns());
    chain.add();
    fault(&host_end(&chain.result));
    let server = UdpServer::start(&chain.container, 53);
    let to = at(UPLINK[0], 5353);
    (0..4).for_each(|_| assert!(ask_by_udp(&lab.outside, &to).is_some()));
    let ip = &chain.ips()[0];
    let was_fast = flows_of(lab, ip).contains("OFFLOAD");
    drop(server);
    chain.del_all();
    assert_eq!(flows_of(lab, ip), "");
    assert_next_hears_nothing(lab, &conf, ip, "udp dport 53", |next| {
        let _server = UdpServer::start(next, 53);
        assert_eq!(ask_by_udp(&lab.outside, &to), None);
    });
    was_fast
}

#[test]
fn flows_end_with_their_container() {
    for_each_network(|lab, conf| assert!(assert_flows_end(lab, conf, |_| ())));
}

/// Another container keeps the table, and the kernel knows no way to the link: it does not end the
/// flow when the link goes. Linux 7.2 does not add such a flow.
fn flows_without_a_link_of_the_container_end_with_it(lab: &Lab, conf: &Value) {
    let elsewhere = json!({"name": "net2", "bridge": "br2", "ipam": {"ranges": [[{"subnet": "10.20.0.0/24"}]]}});
    let (other, kept, _) = lab.added(&with(conf, elsewhere));
    assert_flows_end(lab, conf, |link| {
        lab.host.sh(&format!("nft delete flowtable {TABLE} fast '{{ devices = {{ {link} }}; }}'"));
    });
    assert_is_fast(lab, &other, SERVER);
    kept.del();
}

/// A container of a network of one address, to which a server outside goes on sending: each of its packets is an answer and
/// adds the flow again, until DEL has removed the address.
fn begin_an_endless_flow<'a>(lab: &'a Lab, conf: &Value) -> (UdpServer, Attachment<'a>, String) {
    let (container, attachment, result) = lab.added(conf);
    let server = UdpServer::start_endless(&lab.outside, 82);
    assert!(ask_by_udp(&container, &at(OUTSIDE[0], 82)).is_some());
    (server, attachment, ips(&result).remove(0))
}

fn flows_that_go_on_arriving_end_with_their_container(lab: &Lab, conf: &Value) {
    let conf = of_one_address(conf);
    let (_server, attachment, ip) = begin_an_endless_flow(lab, &conf);
    assert!(flows_of(lab, &ip).contains("OFFLOAD"), "{}", flows_of(lab, &ip));
    attachment.del();
    assert_eq!(flows_of(lab, &ip), "");
    let wait = |_: &Namespace| std::thread::sleep(Duration::from_millis(300));
    assert_next_hears_nothing(lab, &conf, &ip, "udp sport 82", wait);
}

/// Static addresses can be given again before the DEL of the first container.
#[test]
fn a_late_del_spares_the_flows_of_the_next_container() {
    let addresses = json!([{"address": "10.10.0.5/24", "gateway": "10.10.0.1"}]);
    let fixed = static_ipam(&networks()[0], addresses, json!([{"dst": "0.0.0.0/0"}]));
    on_a_host("bridge", |lab| {
        let (_, gone, _) = lab.added(&fixed);
        let (container, next, _) = lab.added(&fixed);
        assert_is_fast(lab, &container, SERVER);
        let flow = || lab.host.sh("conntrack -L -o id 2>/dev/null | grep -o 'id=.*'");
        let before = flow();
        gone.del();
        assert!(ask_by_udp(&container, SERVER).is_some());
        assert_eq!(flow(), before);
        assert_is_fast(lab, &container, SERVER);
        next.del();
    });
}

/// Until it has ended the flows, DEL keeps a record of them in the table.
fn a_del_after_a_killed_one_ends_the_flows(lab: &Lab, conf: &Value) {
    let conf = of_one_address(conf);
    for kills in case::in_turn(1..1000, 3) {
        let (_server, attachment, ip) = begin_an_endless_flow(lab, &conf);
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
}

fn limits_hold_in_both_directions(lab: &Lab, conf: &Value) {
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
        let deadline = Instant::now() + patience(5);
        while !flows_of(lab, ip).contains("OFFLOAD") {
            assert!(Instant::now() < deadline, "{}", flows_of(lab, ip));
        }
    }
    chain.del_all();
}

fn rules_of_tc_hold(lab: &Lab, conf: &Value) {
    let (container, _, result) = lab.added(conf);
    for link in [&host_end(&result), "uplink"] {
        lab.host.sh(&format!("tc qdisc add dev {link} clsact"));
        for side in ["ingress", "egress"] {
            assert_is_fast(lab, &container, SERVER);
            let drops = format!("{link} {side} protocol ip matchall action drop");
            lab.host.sh(&format!("tc filter add dev {drops}"));
            assert_eq!(ask_by_udp(&container, SERVER), None, "{link} {side}");
            lab.host.sh(&format!("tc filter del dev {link} {side}"));
        }
    }
}

/// `macspoofchk` is a rule of the bridge, which a flow goes past.
#[test]
fn frames_of_a_flow_go_past_macspoofchk() {
    on_a_host("bridge", |lab| {
        if !knows_ways_through_bridges(lab) {
            return; // before 5.13 all frames of a container pass the bridge
        }
        let (container, _, result) = lab.added(&with(&networks()[0], json!({"macspoofchk": true})));
        assert_is_fast(lab, &container, SERVER);
        let mac = result["interfaces"][0]["mac"].as_str().unwrap();
        container.sh(&format!(
            "ip link set eth0 address 0a:00:00:00:00:99; ip neigh replace 10.10.0.1 lladdr {mac} dev eth0 nud permanent"
        ));
        for (port, expected) in [(80, false), (81, true)] {
            count(&lab.outside, "input", &format!("udp dport {port}"));
            assert_eq!(ask_by_udp(&container, &at(OUTSIDE[0], port)), None);
            assert_eq!(counted(&lab.outside) == 0, expected, "port {port}");
        }
    });
}

/// NFT_NETDEVICE_MAX is a limit of one request.
fn more_than_256_links_are_accelerated(lab: &Lab, conf: &Value) {
    let (_, first, of_first) = lab.added(conf);
    lab.host.sh(&format!(
        "for i in $(seq 260); do echo link add many$i type veth peer name peer$i; done | ip -batch -
        for i in $(seq 260); do echo \"add flowtable {TABLE} fast {{ devices = {{ many$i }}; }}\"; done | nft -f -"
    ));
    let (container, attachment, result) = lab.added(conf);
    assert_is_fast(lab, &container, SERVER);
    attachment.check(&result).ok();
    first.check(&of_first).ok();
    attachment.del();
    first.del();
}

fn without_a_default_route_add_says_what_is_not_accelerated(lab: &Lab, conf: &Value) {
    lab.host.sh("ip route del default; ip -6 route del default");
    let outcome = lab.place(conf).1.try_add();
    for family in ["IPv4", "IPv6"] {
        let warning = format!("the host has no default route of {family}");
        assert!(outcome.stderr.contains(&warning), "{outcome:?}");
    }
    outcome.ok();
}

/// Both links of the host's default routes are uplinks.
fn every_link_of_a_default_route_is_an_uplink(lab: &Lab, conf: &Value) {
    lab.host.sh(
        "ip link add second type veth peer name far; ip link set second up; ip link set far up; \
        ip addr add 203.0.113.1/24 dev second; ip route add default via 203.0.113.2 metric 500",
    );
    lab.added(conf);
    let table = lab.host.sh(&format!("nft list flowtables | grep -A9 'table {TABLE}'"));
    assert!(table.contains("second") && table.contains("uplink"), "{table}");
}

fn a_failed_add_leaves_no_fast_path(lab: &Lab, conf: &Value) {
    warm_up(lab, conf);
    lab.host.sh(&format!("nft add table {TABLE}; nft add chain {TABLE} forward"));
    assert_refused(lab, conf, 100, "fastPath: ");
}

#[test]
fn a_kernel_without_flowtables_is_reported() {
    for conf in [fast(&bridge::conf()), fast(&ptp::conf())] {
        for_ours(conf["type"].as_str().unwrap(), |lab| {
            let (_, attachment) = lab.place(&conf);
            let status = attachment.status();
            if status.status == 0 {
                return; // the other tests show that ADD works
            }
            let error = status.fails(50, "fastPath: ");
            assert!(error.text().contains("nft_flow_offload"), "{error:?}");
            let failed = attachment.try_add().err();
            assert!(failed.text().contains("fastPath: "), "{failed:?}");
            assert_eq!(lab.host.sh("nft list tables | grep fastpath || true"), "");
        });
    }
}

#[test]
fn a_bridge_without_forwarding_has_no_fast_path() {
    let cases = rows(
        r#"
no gateway | {"isGateway": false} | 7: fastPath: true without isGateway
no IPAM | {"ipam": null} | 7: fastPath: true without an ipam section
VLAN | {"vlan": 100} | 7: fastPath and vlan are mutually exclusive
trunk | {"vlanTrunk": [{"id": 5}]} | 7: fastPath and vlanTrunk are mutually exclusive
"#,
    );
    let conf = fast(&bridge::conf());
    for_ours("bridge", |lab| cases.iter().for_each(|case| assert_fails(lab, &conf, case)));
}

/// Another network on the same bridge makes it filter VLANs.
#[test]
fn a_bridge_that_filters_vlans_has_a_fast_path() {
    on_a_host("bridge", |lab| {
        if filters_vlans(lab) {
            lab.host.sh("ip link add br0 up type bridge vlan_filtering 1");
            let (container, ..) = lab.added(&networks()[0]);
            assert_is_fast(lab, &container, SERVER);
        }
    });
}

each_case! { |case| for_each_network(case);
    established_flows_go_past_the_rules_and_are_masqueraded
    published_ports_are_answered_past_the_rules
    flows_of_other_containers_pass_the_rules
    a_flow_that_a_rule_drops_is_not_added
    flows_without_a_link_of_the_container_end_with_it
    flows_that_go_on_arriving_end_with_their_container
    a_del_after_a_killed_one_ends_the_flows
    limits_hold_in_both_directions
    rules_of_tc_hold
    more_than_256_links_are_accelerated
    without_a_default_route_add_says_what_is_not_accelerated
    every_link_of_a_default_route_is_an_uplink
    a_failed_add_leaves_no_fast_path
}
