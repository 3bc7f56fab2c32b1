//! D4xx: rules that drop a container's packets, and healthy rules that do not.

use super::site::Site;

const SUBNET: &str = "10.182.1.0/24";

/// A base chain with a rule.
fn chain(family: &str, hook: &str, rule: &str) -> String {
    format!(
        "nft 'add table {family} f; add chain {family} f {hook} {{ type filter hook {hook} priority 0; }}; {rule}'"
    )
}

#[test]
fn each_hook_that_drops_is_found_and_fixed() {
    let site = Site::with_bridge(SUBNET);
    let _container = site.attached("pods");
    for (family, hook, matches, code) in [
        ("inet", "forward", "ip saddr 10.182.1.0/24 drop", "D402"),
        ("inet", "forward", "iifname \"pods0\" counter reject", "D402"),
        ("ip", "forward", "oifname \"pods*\" log drop", "D402"),
        ("ip", "forward", "ip saddr { 10.182.0.0/16, 192.0.2.0/24 } drop", "D402"),
        ("ip", "forward", "ip saddr { 10.182.1.2, 192.0.2.1 } tcp dport != 22 drop", "D402"),
        ("inet", "forward", "ct state new meta l4proto { tcp, udp } drop", "D402"),
        ("inet", "forward", "drop", "D402"),
        ("inet", "prerouting", "ip daddr 10.182.1.2 drop", "D403"),
        ("ip", "postrouting", "ip saddr 10.182.1.2 drop", "D404"),
        ("bridge", "prerouting", "ip saddr 10.182.1.2 drop", "D405"),
        ("inet", "input", "iifname \"pods0\" drop", "D406"),
        ("inet", "output", "oifname \"pods0\" drop", "D407"),
    ] {
        let rule = format!("add rule {family} f {hook} {matches}");
        let finding = site.finds_and_fixes(&chain(family, hook, &rule), code);
        let evidence = finding["evidence"].as_str().unwrap();
        let place = format!("{family} f {hook}, handle ");
        assert!(evidence.starts_with(&place) && evidence.contains("10.182.1.2"), "{evidence}");
        site.lab.host.sh("nft flush ruleset");
    }
}

#[test]
fn a_policy_that_drops_is_found_and_fixed() {
    let site = Site::with_bridge(SUBNET);
    let _container = site.attached("pods");
    let fault = "nft 'add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; };
        add chain ip filter USER; add rule ip filter USER counter return; add rule ip filter FORWARD jump USER;
        add rule ip filter FORWARD ct state established,related accept; add rule ip filter FORWARD tcp dport 22 accept'";
    let finding = site.finds_and_fixes(fault, "D401");
    let evidence = finding["evidence"].as_str().unwrap();
    assert!(evidence.starts_with("ip filter FORWARD: policy \"drop\""), "{evidence}");
}

#[test]
fn a_drop_in_a_chain_that_is_jumped_to_is_found() {
    let site = Site::with_bridge(SUBNET);
    let _container = site.attached("pods");
    let rules = "add chain inet f inner; add rule inet f inner ip saddr 10.182.1.2 drop;
        add rule inet f forward iifname vmap { \"pods0\" : jump inner, \"x\" : accept }";
    let finding = site.finds_and_fixes(&chain("inet", "forward", rules), "D402");
    assert!(finding["evidence"].as_str().unwrap().starts_with("inet f inner, handle "));
}

/// Rules that drop something, as hosts have them: none drops what containers send.
const HEALTHY: [(&str, &str); 6] = [
    ("another subnet", "table inet f { chain forward { type filter hook forward priority 0;
        ip saddr 10.99.0.0/16 drop; iifname \"wlan0\" drop; ip daddr 169.254.169.254 drop; tcp dport 25 drop;
        ct state invalid drop; ip saddr != 10.182.0.0/16 ct state new drop; meta mark 7 drop } }"),
    ("a host that accepts ssh alone", "table inet filter { chain input { type filter hook input priority 0; policy drop;
        ct state established,related accept; iif lo accept; tcp dport 22 accept; reject } }"),
    ("docker", "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop;
        jump DOCKER-USER; jump DOCKER-ISOLATION; oifname \"docker0\" ct state related,established accept;
        oifname \"docker0\" jump DOCKER; iifname \"docker0\" oifname != \"docker0\" accept;
        ip saddr 10.182.1.0/24 accept; ip daddr 10.182.1.0/24 accept }
        chain DOCKER { } chain DOCKER-USER { return; }
        chain DOCKER-ISOLATION { iifname \"docker0\" oifname != \"docker0\" jump DOCKER-ISOLATION-2; return; }
        chain DOCKER-ISOLATION-2 { oifname \"docker0\" drop; return; } }"),
    ("kubernetes", "table ip filter { chain FORWARD { type filter hook forward priority 0; policy accept;
        counter jump KUBE-FORWARD; ct state new jump KUBE-SERVICES }
        chain KUBE-FORWARD { ct state invalid drop; meta mark & 0x4000 == 0x4000 accept; ct state related,established accept }
        chain KUBE-SERVICES { ip daddr 10.96.0.10 tcp dport 53 reject }
        chain INPUT { type filter hook input priority 0; policy accept; jump KUBE-FIREWALL }
        chain KUBE-FIREWALL { ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8 ct status dnat drop; meta mark & 0x8000 == 0x8000 drop } }"),
    ("firewalld", "table inet firewalld { chain filter_FORWARD { type filter hook forward priority 10; policy accept;
        ct state established,related accept; ct status dnat accept; iifname \"lo\" accept; ct state invalid drop;
        ip6 daddr { ::/96, 2002::/24 } reject with icmpv6 addr-unreachable; jump filter_FORWARD_ZONES;
        reject with icmpx admin-prohibited }
        chain filter_FORWARD_ZONES { ip saddr 10.182.1.0/24 goto filter_FWD_trusted;
          ip daddr 10.182.1.0/24 goto filter_FWD_trusted; goto filter_FWD_public }
        chain filter_FWD_trusted { accept } chain filter_FWD_public { reject } }"),
    ("a rule that is not decoded", "table ip f { chain forward { type filter hook forward priority 0; policy drop;
        limit rate 10/second accept; drop } }"),
];

#[test]
fn healthy_rules_have_no_finding() {
    let site = Site::with_bridge(SUBNET);
    let _container = site.attached("pods");
    for (name, rules) in HEALTHY {
        site.lab.host.sh(&format!(
            "nft flush ruleset; nft -f - <<'END'\n{}\nEND",
            rules
                .replace("} }", "\n}\n}")
                .replace("} chain", "\n}\nchain")
                .replace(" }\n", "\n}\n")
        ));
        assert_eq!(site.findings(""), [serde_json::Value::Null; 0], "{name}");
    }
}

#[test]
fn rules_of_iptables_are_read_as_well() {
    let site = Site::with_bridge(SUBNET);
    let _container = site.attached("pods");
    let fault = "iptables -P FORWARD DROP; iptables -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT;
        iptables -A FORWARD -p tcp -m tcp --dport 22 -m comment --comment ssh -j ACCEPT";
    if !site.lab.host.try_sh("iptables -V | grep -q nf_tables").status.success() {
        return crate::support::attachment::skip("iptables-nft");
    }
    site.finds_and_fixes(fault, "D401");
    site.lab.host.sh("iptables -P FORWARD ACCEPT; iptables -F FORWARD");
    let reject = "iptables -A FORWARD -s 10.182.1.2 -m mark ! --mark 0x1 -j REJECT";
    site.finds_and_fixes(reject, "D402");
}

#[test]
fn one_rule_that_hits_many_containers_is_one_finding() {
    let site = Site::with_bridge(SUBNET);
    let _containers = [site.attached("pods"), site.attached("pods"), site.attached("pods")];
    let drop = chain("inet", "forward", "add rule inet f forward iifname pods0 drop");
    let finding = site.finds_and_fixes(&drop, "D402");
    assert_eq!((&finding["scope"], &finding["network"]), (&"network".into(), &"pods".into()));
    assert!(finding["evidence"].as_str().unwrap().ends_with(" and of 2 more containers"));
}
