//! D4xx: what is reported is what happens to packets. Each case is a healthy host and its broken
//! twin, or one of them.

use std::cell::Cell;
use std::env;
use std::process::Command;

use cni_multi::net::nft::drops::Ruleset;
use serde_json::{Value, json};

use super::road::Road;
use super::site::{Site, bridge};
use crate::plugins::main::bridge::vlan::filters_vlans;
use crate::support::attachment::skip;

const FORWARD: &str = "type filter hook forward priority 0;";

/// Rules that pass 10.190.1.2, and rules that do not, with the code.
const CASES: [(&str, &str, Option<&str>); 26] = [
    ("a mark of prerouting is seen", "chain p { type filter hook prerouting priority mangle;
        iifname pods0 meta mark set 7; }
      chain c { FORWARD meta mark 7 drop; }", Some("D402")),
    ("a mark of prerouting is accepted", "chain p { type filter hook prerouting priority mangle;
        iifname pods0 meta mark set 7; }
      chain c { FORWARD policy drop; ct state established accept; meta mark 7 accept; }", None),
    ("bits of a mark", "chain p { type filter hook prerouting priority mangle;
        iifname pods0 meta mark set 1; iifname pods0 meta mark set meta mark or 0x4000; }
      chain c { FORWARD meta mark & 0x4000 == 0 ct state new drop; meta mark != 0x4001 ct state new drop; }", None),
    ("a mark of another rule", "chain p { type filter hook prerouting priority mangle;
        ip saddr 192.0.2.1 meta mark set 7; }
      chain c { FORWARD meta mark != 7 drop; }", Some("D402")),
    ("a mark that a limit may set", "chain p { type filter hook prerouting priority mangle;
        limit rate 1000/second meta mark set 7; }
      chain c { FORWARD meta mark 0 drop; }", None),
    ("a catch-all verdict", "chain c { FORWARD ip daddr vmap { 192.0.2.1 : accept, * : drop }; }", Some("D402")),
    ("a catch-all verdict that accepts", "chain c { FORWARD policy drop; ip daddr vmap { 192.0.2.1 : drop, * : accept }; }", None),
    ("a catch-all element", "set s { type ipv4_addr; elements = { 192.0.2.1, * };\n}
      chain c { FORWARD ip daddr @s drop; }", Some("D402")),
    ("a catch-all element, inverted", "set s { type ipv4_addr; elements = { 192.0.2.1, * };\n}
      chain c { FORWARD ip daddr != @s drop; }", None),
    ("a catch-all value", "chain c { FORWARD meta mark set ip saddr map { 192.0.2.1 : 1, * : 2 }; meta mark 2 drop; }", Some("D402")),
    ("a drop behind a masquerade", "chain n { type nat hook postrouting priority srcnat; ip saddr 10.190.1.2 masquerade; }
      chain c { type filter hook postrouting priority 200; ip saddr 10.190.1.2 drop; }", None),
    ("a drop behind no masquerade", "chain n { type nat hook postrouting priority srcnat; ip saddr 10.190.1.3 masquerade; }
      chain c { type filter hook postrouting priority 200; ip saddr 10.190.1.2 drop; }", Some("D404")),
    ("a drop before a masquerade", "chain n { type nat hook postrouting priority srcnat; masquerade; }
      chain c { type filter hook postrouting priority 0; ip saddr 10.190.1.2 drop; }", Some("D404")),
    ("a drop of the new source", "chain n { type nat hook postrouting priority srcnat; ip saddr 10.190.1.2 snat to 198.51.100.1; }
      chain c { type filter hook postrouting priority 300; ip saddr 198.51.100.1 drop; }", Some("D404")),
    ("an answer before its translation", "chain n { type nat hook postrouting priority srcnat; ip saddr 10.190.1.2 masquerade; }
      chain c { type filter hook prerouting priority raw; ip daddr 10.190.1.2 drop; }", None),
    ("an answer without a translation", "chain c { type filter hook prerouting priority raw; ip daddr 10.190.1.2 drop; }", Some("D403")),
    ("a chain of nat sees no answer", "chain n { type nat hook prerouting priority dstnat; ip daddr 10.190.1.2 drop; }", None),
    ("a chain of nat sees the first packet", "chain c { FORWARD ct state invalid drop; }
      chain n { type nat hook prerouting priority dstnat; ip saddr 10.190.1.2 drop; }", Some("D403")),
    ("a chain of nat sees nothing untracked", "chain n { type nat hook prerouting priority dstnat; ip saddr 10.190.1.2 drop; }", None),
    ("an untracked packet", "chain p { type filter hook prerouting priority raw; notrack; }
      chain c { FORWARD ct state invalid drop; ct state new drop; }", None),
    ("no connection before tracking", "chain p { type filter hook prerouting priority raw; ct state invalid drop; }", Some("D403")),
    ("a named counter", "counter seen { }
      chain c { FORWARD counter name seen drop; }", Some("D402")),
    ("ports of clients", "chain c { FORWARD policy drop; tcp sport 1024-65535 accept; tcp dport 1024-65535 accept; }", None),
    ("most addresses", "chain c { FORWARD policy drop; ct state established accept; ip daddr 128.0.0.0/1 accept; }", None),
    ("a limit behind a drop", "chain c { FORWARD limit rate 1000/second drop; ip saddr 10.190.1.2 drop; }", Some("D402")),
    ("flags of a first packet", "chain c { FORWARD tcp flags & (syn|ack) == syn drop; }", Some("D402")),
];

/// Loads a table of the family ip with these chains, in nft's syntax with a line for each block.
fn load(road: &Road, rules: &str) {
    let rules = rules.replace("FORWARD", FORWARD).replace("; }", ";\n}").replace("{ }", "{\n}");
    road.site.lab.host.sh(&format!("nft -f - <<'END'\ntable ip f {{\n{rules}\n}}\nEND"));
}

#[test]
fn what_is_reported_is_what_happens_to_packets() {
    let road = Road::of_bridge(190);
    road.assert_healthy("no rules");
    for (name, rules, code) in CASES {
        load(&road, rules);
        match code {
            None => road.assert_healthy(name),
            Some(code) => {
                let finding = road.assert_faulty(name, code);
                // Of a packet with another source address, the reader has to find the rule.
                if !finding["fix"].as_str().unwrap().starts_with("sudo nft -a list chain ") {
                    road.site.fix(&finding);
                    road.assert_healthy(name);
                }
            }
        }
        road.site.lab.host.sh("nft flush ruleset");
    }
}

#[test]
fn each_hook_of_bridges_that_drops_is_found() {
    let road = Road::of_bridge(191);
    for (hook, matches) in
        [("prerouting", "saddr"), ("input", "saddr"), ("output", "daddr"), ("postrouting", "daddr")]
    {
        let table = |subject: &str| {
            let rule = format!("add rule bridge f c ip {matches} {subject} drop");
            road.site.lab.host.sh(&format!(
                "nft 'add table bridge f; add chain bridge f c {{ type filter hook {hook} priority 0; }}; {rule}'"
            ));
        };
        table("10.191.1.3");
        road.assert_healthy(hook);
        table("10.191.1.2");
        road.assert_faulty(hook, "D405");
        road.site.lab.host.sh("nft flush ruleset");
    }
    let mark = "table bridge f {\nchain p {\ntype filter hook prerouting priority 0; meta mark set 9;\n}\n}
        table ip f {\nchain c {\ntype filter hook forward priority 0; meta mark 9 drop;\n}\n}";
    road.site.lab.host.sh(&format!("nft -f - <<'END'\n{mark}\nEND"));
    road.assert_faulty("a mark of a bridge", "D402");
}

/// Matches and targets of iptables, and whether they pass 10.192.1.2.
const IPTABLES: [(&str, Option<&str>); 10] = [
    (
        "-P FORWARD DROP; I -A FORWARD -p tcp -m multiport --dports 80,443,9000:9010 -j ACCEPT",
        Some("D401"),
    ),
    (
        "-P FORWARD DROP; I -A FORWARD -p tcp -m multiport ! --dports 80,443 -j ACCEPT; I -A FORWARD -m state --state ESTABLISHED -j ACCEPT",
        None,
    ),
    (
        "-t mangle -A PREROUTING -i pods0 -j MARK --set-xmark 0x10/0xff; I -A FORWARD -m mark --mark 0x10/0x10 -j DROP",
        Some("D402"),
    ),
    (
        "-t mangle -A PREROUTING -i pods0 -j MARK --set-xmark 0x10/0xff; I -A FORWARD -i pods0 -m mark ! --mark 0x10 -j DROP",
        None,
    ),
    (
        "-A FORWARD -m addrtype --dst-type LOCAL -j DROP; I -A FORWARD -m addrtype ! --dst-type UNICAST -j DROP",
        None,
    ),
    ("-A FORWARD -m addrtype --dst-type UNICAST -j DROP", Some("D402")),
    ("-A FORWARD -m physdev --physdev-is-bridged -j DROP", None),
    ("-A FORWARD -p tcp --syn -s 10.192.0.0/16 -o uplink -j REJECT", Some("D402")),
    (
        "-t nat -A POSTROUTING -s 10.192.1.0/24 ! -o pods0 -j MASQUERADE; I -t raw -A PREROUTING -d 10.192.1.2 -j DROP",
        None,
    ),
    ("-t raw -A PREROUTING -d 10.192.1.2 ! -i pods0 -j DROP", Some("D403")),
];

fn iptables_agree(program: &str, number: u8) {
    let road = Road::of_bridge(number);
    let host = &road.site.lab.host;
    if !host.try_sh(&format!("{program} -t raw -S")).status.success() {
        return skip(program);
    }
    for (rules, code) in IPTABLES {
        let rules = rules.replace("10.192", &format!("10.{number}"));
        let script = format!("{program} {}", rules.replace("; I", &format!("; {program} -w")));
        if !host.try_sh(&format!("set -e; {script}")).status.success() {
            skip(&format!("{program} with the matches of {rules}"));
        } else if let Some(code) = code {
            let finding = road.assert_faulty(&rules, code);
            road.site.fix(&finding);
            road.assert_healthy(&rules);
        } else {
            road.assert_healthy(&rules);
        }
        let flush = ["filter", "mangle", "nat", "raw"]
            .map(|table| format!("{program} -w -t {table} -F;"))
            .concat();
        host.sh(&format!("{flush} {program} -w -P FORWARD ACCEPT"));
    }
}

#[test]
fn rules_of_iptables_nft_are_reported_as_they_act() {
    iptables_agree("iptables-nft", 192);
}

#[test]
fn rules_of_iptables_legacy_are_reported_as_they_act() {
    iptables_agree("iptables-legacy", 193);
}

/// The host is not the gateway: the policy does not see what containers send each other.
#[test]
fn a_bridge_without_a_gateway_passes_a_forward_policy() {
    let mut plain = bridge("pods0", "10.194.1.0/24");
    plain["isGateway"] = json!(false);
    plain["ipam"]["ranges"] = json!([[{"subnet": "10.194.1.0/24", "gateway": "10.194.1.254"}]]);
    let road = Road::of(194, &json!([plain]));
    let policy = "nft 'add table inet f; add chain inet f c { type filter hook forward priority 0; policy drop; }'";
    road.site
        .lab
        .host
        .sh("echo 0 >/proc/sys/net/bridge/bridge-nf-call-iptables 2>/dev/null || true");
    road.site.lab.host.sh(policy);
    let beside = road.site.attached("pods");
    beside.sh("ip addr add 10.194.1.254/24 dev eth0; ping -n -q -c1 -W5 10.194.1.1");
    assert_eq!(road.site.findings(""), [Value::Null; 0], "a container is the gateway");
    beside.sh("ip addr del 10.194.1.254/24 dev eth0");
    // As soon as the host has the gateway's address, it routes.
    road.site
        .lab
        .host
        .sh("ip addr add 10.194.1.254/24 dev pods0; echo 1 >/proc/sys/net/ipv4/ip_forward");
    road.assert_faulty("the gateway's address", "D401");
}

#[test]
fn a_bridge_in_a_vlan_is_judged_by_its_gateway_s_link() {
    let mut plugin = bridge("pods0", "10.195.1.0/24");
    (plugin["vlan"], plugin["isGateway"]) = (json!(5), json!(false));
    plugin["ipam"]["ranges"] = json!([[{"subnet": "10.195.1.0/24", "gateway": "10.195.1.254"}]]);
    let site = Site::empty();
    if !filters_vlans(&site.lab) {
        return;
    }
    let road = Road::of(195, &json!([plugin.clone()]));
    let policy = "nft 'add table inet f; add chain inet f c { type filter hook forward priority 0; policy drop; }'";
    road.site.lab.host.sh(policy);
    let router = road.site.attached("pods");
    router.sh("ip addr add 10.195.1.254/24 dev eth0");
    assert_eq!(road.site.findings(""), [Value::Null; 0], "the host is no gateway");
    road.site.lab.host.sh("nft flush ruleset");
    plugin["isGateway"] = json!(true);
    let road = Road::of(196, &json!([with_subnet(plugin, "10.196.1.0/24")]));
    road.assert_healthy("no rules");
    road.site.lab.host.sh(
        "nft 'add table inet f; add chain inet f c { type filter hook forward priority 0; iifname \"pods0\" drop; }'",
    );
    road.assert_healthy("a rule of the bridge, which is not the gateway's link");
    road.site.lab.host.sh("nft 'add rule inet f c iifname \"pods0.5\" drop'");
    road.assert_faulty("a rule of the gateway's link", "D402");
}

fn with_subnet(mut plugin: Value, subnet: &str) -> Value {
    plugin["ipam"]["ranges"] = json!([[{"subnet": subnet}]]);
    plugin
}

/// The setting of the link that a packet comes in by decides, not that of all links.
#[test]
fn forwarding_of_each_link_is_reported_as_it_acts() {
    let road = Road::of_bridge(197);
    let host = &road.site.lab.host;
    for link in ["pods0", "uplink"] {
        host.sh(&format!("echo 0 >/proc/sys/net/ipv4/conf/{link}/forwarding"));
        let finding = road.assert_faulty(link, "D220");
        let setting = format!("sysctl net/ipv4/conf/{link}/forwarding is 0");
        assert!(finding["evidence"].as_str().unwrap().starts_with(&setting), "{finding}");
        road.site.fix(&finding);
        road.assert_healthy(link);
    }
    host.sh("echo 0 >/proc/sys/net/ipv4/ip_forward");
    road.assert_faulty("all links", "D220");
    host.sh("for link in pods0 uplink; do echo 1 >/proc/sys/net/ipv4/conf/$link/forwarding; done");
    let codes = road.codes(); // CHECK of the plugin reports the setting of all links
    assert_eq!(codes, ["D330"]);
    assert!(road.is_open());
    host.sh(
        "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding",
    );
    road.assert_healthy("no container has IPv6");
}

/// When this variable is set, the test below prints how often it has looked at the rules, while they
/// change that many times: this test program, run again in the namespace of the host.
const CHANGES: &str = "CNI_LAB_RULES_CHANGE";
const CHANGES_TEST: &str = "doctor::truth::rules_that_change_meanwhile_are_read_again";

fn look(changes: u32) -> String {
    let looks = Cell::new(0);
    let looked = Ruleset::look(|_| {
        looks.set(looks.get() + 1);
        if looks.get() <= changes {
            let line = format!("nft add table ip t{}", looks.get());
            assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
        }
        Ok(looks.get())
    });
    match looked {
        Ok(last) => format!("looked {last}"),
        Err(error) => format!("looked {}: {error}", looks.get()),
    }
}

#[test]
fn rules_that_change_meanwhile_are_read_again() {
    if let Ok(changes) = env::var(CHANGES) {
        return eprintln!("{}", look(changes.parse().unwrap()));
    }
    let site = Site::empty();
    for (changes, answer) in [("0", "looked 1"), ("3", "looked 4"), ("1000", "looked 20: ")] {
        let program = env::current_exe().unwrap();
        let mut command = site.lab.host.command(program.to_str().unwrap());
        command.args([CHANGES_TEST, "--exact", "--nocapture"]).env(CHANGES, changes);
        let stderr = String::from_utf8(command.output().unwrap().stderr).unwrap();
        let line = stderr.lines().find(|line| line.starts_with("looked ")).unwrap();
        assert!(line.starts_with(answer), "{line}");
        assert_eq!(line.contains("changed during each of 20 tries"), changes == "1000", "{line}");
        site.lab.host.sh("nft flush ruleset");
    }
}
