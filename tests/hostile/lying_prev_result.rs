//! A false prevResult: interfaces, namespaces, addresses and ifindexes of the host, of other
//! containers, or of nothing at all. With every plugin the host and other containers stay
//! unchanged, a DEL with it succeeds, and an error names the false field.

use serde_json::{Value, json};

use super::{bounded, is_answer};
use crate::faults::dhcp;
use crate::support::attachment::{Attachment, for_ours, interface, with};
use crate::support::call::Outcome;
use crate::support::chain::Chain;
use crate::support::extent::sample;
use crate::support::netns::{Lab, UPLINK};
use crate::support::networks::firewall::{self, DROPPING, assert_admitted, firewall};
use crate::support::networks::stacked::hasty_container;
use crate::support::networks::{bandwidth, portmap, tuning, vrf};
use crate::support::peers::tests;
use crate::support::probe::Probe;
use crate::support::snapshot::{Watch, lines};
use crate::support::subject::{Subject, in_a_lab};
use crate::support::traffic::{TcpServer, connect};

/// The ordinary run tries one lie in this many with each plugin.
const ONE_OF: usize = 4;

/// A false result, made from the true one.
struct Lie {
    what: &'static str,
    result: Value,
    /// The plugins that accept the lie in ADD, because it may be true: a container may have the
    /// address of a deleted one, and the first interface is the bridge to isolate. See
    /// docs/security-tests.md.
    believed_by: &'static [&'static str],
}

/// The result with a member of every interface set to a value.
fn each(result: &Value, key: &str, value: &Value) -> Value {
    let mut result = result.clone();
    for interface in result["interfaces"].as_array_mut().unwrap() {
        interface[key] = value.clone();
    }
    result
}

fn ips(result: &Value, ips: &[String]) -> Value {
    let ips: Vec<Value> = ips.iter().map(|ip| json!({"address": ip, "interface": 2})).collect();
    with(result, json!({"ips": ips}))
}

fn lies(truth: &Value, other: &Chain<'_>) -> Vec<Lie> {
    let lie = |what, result| Lie { what, result, believed_by: &[] };
    let of_others = |what, result| Lie { what, result, believed_by: &["firewall", "portmap"] };
    let bridge = |what, result| Lie { what, result, believed_by: &["firewall"] };
    let index = |index: Value| {
        let mut result = truth.clone();
        let ips = result["ips"].as_array_mut().unwrap();
        ips.iter_mut().for_each(|ip| ip["interface"] = index.clone());
        result
    };
    let with_length = |ips: &[&str]| -> Vec<String> {
        ips.iter().map(|ip| format!("{ip}/{}", if ip.contains(':') { 128 } else { 32 })).collect()
    };
    let own = other.ips();
    let others: Vec<&str> = own.iter().map(String::as_str).collect();
    let many =
        |n: u32| (0..n).map(|i| format!("10.77.{}.{}/32", i / 256, i % 256)).collect::<Vec<_>>();
    let mut twice = truth.clone();
    let copies = twice["interfaces"].as_array().unwrap().clone();
    twice["interfaces"].as_array_mut().unwrap().extend(copies);
    let names: Vec<Value> =
        (0..10_000).map(|i| json!({"name": format!("x{i}"), "sandbox": "/run/netns/x"})).collect();
    vec![
        bridge("the host's uplink", each(truth, "name", &json!("uplink"))),
        bridge("the loopback", each(truth, "name", &json!("lo"))),
        lie("the bridge", each(truth, "name", &json!("br0"))),
        bridge("the other's port", each(truth, "name", &json!(interface(&other.result, 1)))),
        bridge("names that are paths", each(truth, "name", &json!("../../all"))),
        bridge("names that are rules", each(truth, "name", &json!("x\" drop; #"))),
        lie("names with line breaks", each(truth, "name", &json!("x\n-A INPUT -j DROP"))),
        lie("no names", each(truth, "name", &json!(""))),
        lie("the other's namespace", each(truth, "sandbox", &json!(other.netns))),
        lie("the host's namespace", each(truth, "sandbox", &json!("/proc/self/ns/net"))),
        lie("that of process 1", each(truth, "sandbox", &json!("/proc/1/ns/net"))),
        lie("no namespace", each(truth, "sandbox", &json!(""))),
        lie("no path", each(truth, "sandbox", &json!("/run/netns/../../etc/passwd"))),
        lie("the other's MAC", each(truth, "mac", &other.result["interfaces"][2]["mac"])),
        lie("no hardware address", each(truth, "mac", &json!("no; mac"))),
        of_others("the other's addresses", ips(truth, &with_length(&others))),
        of_others("the host's addresses", ips(truth, &with_length(&UPLINK))),
        of_others("the gateway's", ips(truth, &with_length(&["10.10.0.1", "2001:db8:10::1"]))),
        of_others("loopback's addresses", ips(truth, &with_length(&["127.0.0.1", "::1"]))),
        lie("every address", ips(truth, &["0.0.0.0/0".to_owned(), "::/0".to_owned()])),
        lie(
            "multicast and broadcast",
            ips(truth, &with_length(&["224.0.0.1", "255.255.255.255", "ff02::1"])),
        ),
        lie("no addresses", with(truth, json!({"ips": []}))),
        lie("no interfaces", with(truth, json!({"interfaces": []}))),
        lie("nothing", json!({"cniVersion": "1.1.0"})),
        lie("index 99", index(json!(99))),
        lie("index -1", index(json!(-1))),
        lie("index -2^63", index(json!(i64::MIN))),
        lie("index 2^63", index(json!(9_223_372_036_854_775_808_u64))),
        lie("index 1e300", index(json!(1e300))),
        lie("index of the bridge", index(json!(0))),
        lie("index of the host's end", index(json!(1))),
        lie("each interface twice", twice),
        lie("a thousand addresses", ips(truth, &many(1000))),
        lie("ten thousand interfaces", with(truth, json!({"interfaces": names}))),
        lie("an address that is none", ips(truth, &["10.10.0.2/24; drop".to_owned()])),
        lie("a list for an object", json!([])),
        lie("an MTU", each(truth, "mtu", &json!(-5))),
    ]
}

/// The state that a rate, sysctl, address or rule in the wrong place would change.
fn fingerprint(lab: &Lab, other: &Chain<'_>) -> String {
    let port = interface(&other.result, 1);
    let host = lab.host.sh(&format!(
        "for l in lo uplink br0 {port}; do ip addr show dev $l; done; tc qdisc | grep -w -e lo -e uplink -e br0 -e {port}; ip rule; ip -6 rule; \
         cd /proc/sys/net/ipv4/conf; grep . all/arp_filter lo/arp_filter uplink/arp_filter br0/arp_filter {port}/arp_filter"
    ));
    let other = other.container.sh(
        "ip -d addr; ip rule; ip -6 rule; tc qdisc; grep . /proc/sys/net/ipv4/conf/*/arp_filter",
    );
    format!("{host}{other}")
}

/// Tries every lie with one plugin: in ADD, CHECK and DEL, and in the DEL of a correct attachment.
/// Returns what went wrong.
fn try_lies(
    lab: &Lab,
    chain: &Chain<'_>,
    other: &Chain<'_>,
    plugin: &Value,
    lies: &[Lie],
) -> Vec<String> {
    let (attachment, kind) = (chain.also(plugin), plugin["type"].as_str().unwrap());
    let mut wrong = vec![];
    // The snapshot must include what may stay after DEL.
    add(chain, &attachment);
    attachment.del();
    let before = Watch::start(lab, &[&chain.container, &other.container]);
    let print = fingerprint(lab, other);
    for lie in lies {
        eprintln!("{plugin}: {}", lie.what); // shown when the case fails
        let mut expect = |is_so: bool, what: &str, found: &dyn std::fmt::Debug| {
            if !is_so {
                eprintln!("wrong: {what}: {found:?}");
                wrong.push(format!("{kind}: {what}: {}: {:.600}", lie.what, format!("{found:?}")));
            }
        };
        let call = |command: &str| bounded(attachment.call(command, Some(&lie.result))).run();
        if !lie.believed_by.contains(&kind) {
            let added = call("ADD");
            expect(is_answer(&added), "ADD", &added);
            expect(added.status == 0 || names_a_field(&added.stdout), "ADD's error", &added);
            let now = fingerprint(lab, other);
            let new: Vec<&str> = now.lines().filter(|line| !print.contains(line)).collect();
            expect(now == print, "after ADD", &new);
            let checked = call("CHECK");
            expect(is_answer(&checked), "CHECK", &checked);
            let deleted = call("DEL");
            expect(deleted.status == 0, "DEL of what the lie has made", &deleted);
        }
        add(chain, &attachment);
        let deleted = call("DEL");
        expect(deleted.status == 0, "DEL", &deleted);
    }
    let changes = before.changes();
    if !changes.is_empty() {
        wrong.push(format!("{kind}: afterwards: {changes}"));
    }
    wrong
}

/// ADD with the true result. sbr's DEL removes routes with the interface, as the reference's does,
/// and its ADD needs them.
fn add(chain: &Chain<'_>, attachment: &Attachment<'_>) {
    if attachment.conf["type"] == "sbr" {
        chain.container.sh("ip route replace 10.10.0.0/24 dev eth0; ip route replace default via 10.10.0.1; \
             ip -6 route replace 2001:db8:10::/64 dev eth0; ip -6 route replace default via 2001:db8:10::1");
    }
    attachment.add();
}

/// Tries every `each`th lie with these plugins: fewer for plugins that start programs or are slow.
/// The ordinary run and each turn try at most one lie in four, and the plugins take turns.
fn try_out(each: usize, plugins: fn(&Lab, &Chain<'_>) -> Vec<Value>) {
    for_ours("firewall", |lab| {
        let other = lab.chain(&firewall::network(), &firewall(None));
        other.add();
        let mapping = json!([{"hostPort": 9090, "containerPort": 80, "protocol": "tcp"}]);
        for conf in [portmap::portmap(None, mapping), tuning::tuning(json!({"mtu": 1400}))] {
            other.also(&conf).add();
        }
        let chain = lab.chain(&firewall::network(), &firewall(None));
        let mut wrong = vec![];
        for (turn, plugin) in plugins(lab, &chain).iter().enumerate() {
            let lies = lies(&chain.result, &other).into_iter().step_by(each).collect();
            let lies: Vec<Lie> = sample(lies, ONE_OF.div_ceil(each), turn);
            wrong.extend(try_lies(lab, &chain, &other, plugin, &lies));
        }
        assert!(wrong.is_empty(), "{} were wrong:\n{}", wrong.len(), wrong.join("\n"));
        other.check(&other.result).ok();
        let _server = TcpServer::start(&other.container, 80);
        assert!(connect(&lab.outside, "198.51.100.1:9090").is_some(), "the other's port");
    });
}

fn with_rules(backend: &str) -> Vec<Value> {
    let mapping = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    vec![
        with(&firewall(Some(backend)), json!({"ingressPolicy": "isolated"})),
        portmap::portmap(Some(backend), mapping),
    ]
}

/// Another container's accept rules and the jump that leads to them must survive the DEL.
#[test]
fn a_del_that_lies_keeps_the_way_of_others_through_policy_drop() {
    for backend in [None, Some("iptables")] {
        for_ours("firewall", |lab| {
            lab.host.sh(DROPPING);
            firewall::route_from_outside(lab);
            let other = firewall::admit(lab, &firewall(None));
            let chain = lab.chain(&firewall::network(), &firewall(backend));
            let lies = lies(&chain.result, &other).into_iter();
            for lie in lies.filter(|lie| lie.believed_by.contains(&"portmap")) {
                chain.add();
                chain.call("DEL", Some(&lie.result)).run().ok();
                other.check(&other.result).ok();
            }
            assert_admitted(lab, &other);
        });
    }
}

fn with_attributes() -> Vec<Value> {
    let sysctl = json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}});
    vec![tuning::tuning(with(&tuning::every_attribute(), sysctl)), json!({"type": "sbr"})]
}

tests! {
    a_result_that_lies_gets_no_rule_of_others = try_out(1, |_, _| with_rules("nftables"));
    a_result_that_lies_gets_no_rule_of_others_from_iptables = try_out(4, |_, _| with_rules("iptables"));
    a_result_that_lies_tunes_and_routes_nothing_of_others = try_out(1, |_, _| with_attributes());
    a_result_that_lies_limits_nothing_of_others = try_out(1, |lab, _| match bandwidth::can_limit(lab) {
        true => vec![bandwidth::both()],
        false => vec![],
    });
    a_result_that_lies_puts_nothing_of_others_into_a_vrf = try_out(4, |_, chain| match vrf::has_vrf(&chain.container) {
        true => vec![json!({"type": "vrf", "vrfname": "red"})],
        false => vec![],
    });
    a_lying_result_takes_nothing_of_others_with_main_plugins = try_out_each(&["bridge", "ptp", "macvlan", "host-device", "tap", "loopback"]);
    a_lying_result_takes_nothing_of_others_with_module_links = try_out_each(&["ipvlan", "vlan", "dummy"]);
    a_result_that_lies_takes_nothing_of_others_with_dhcp =
        dhcp::with_a_daemon(|lab| try_out_main(lab, &dhcp::subject(), 0));
}

/// A main plugin gets a result only in CHECK and DEL. DEL removes what the plugin made, and nothing
/// else.
fn try_out_main(lab: &Lab, subject: &Subject, turn: usize) {
    let other = lab.chain(&firewall::network(), &firewall(None));
    other.add();
    let container = hasty_container(lab);
    let attachment = subject.attach(lab, &container).remove(0);
    attachment.add();
    attachment.del(); // the snapshot must include what may stay after DEL
    let before = Probe::start(lab, &[&container, &other.container]);
    let truth = attachment.add();
    let lies = sample(lies(&truth, &other), ONE_OF, turn);
    let mut wrong = vec![];
    let mut look = |lie: &Lie, command: &str, probe: &Probe<'_>, is_well: fn(&Outcome) -> bool| {
        let outcome = bounded(attachment.call(command, Some(&lie.result))).run();
        let changes = probe.changes();
        if !is_well(&outcome) || !changes.is_empty() {
            let (name, what, changes) = (subject.name, lie.what, lines(&changes));
            wrong.push(format!("{name}: {what}: {command}: {outcome:?}, {changes}"));
        }
    };
    let attached = Probe::start(lab, &[&container, &other.container]);
    lies.iter().for_each(|lie| look(lie, "CHECK", &attached, is_answer));
    attachment.del();
    for lie in &lies {
        attachment.add();
        look(lie, "DEL", &before, |outcome| outcome.status == 0);
        attachment.del();
    }
    assert!(wrong.is_empty(), "{} were wrong:\n{}", wrong.len(), wrong.join("\n"));
    other.check(&other.result).ok();
}

fn try_out_each(subjects: &[&str]) {
    for (turn, name) in subjects.iter().enumerate() {
        in_a_lab(name, |lab, subject| try_out_main(lab, subject, turn));
    }
}

/// Whether an error names its subject: the result, or the requested interface of the container.
fn names_a_field(text: &str) -> bool {
    ["prevResult", "eth0", "10.77.", "sandbox"].iter().any(|word| text.contains(word))
}
