//! portmap CHECK detects every missing rule, element and setting.

use serde_json::{Value, json};

use super::{for_each_backend, for_ours_with_each_backend};
use crate::support::attachment::{for_each_peer, for_ours};
use crate::support::call::Peer;
use crate::support::chain::Chain;
use crate::support::netns::Lab;
use crate::support::networks::portmap::{network, portmap, publish, web};
use crate::support::traffic::{TcpServer, connect};

/// A mapping of each kind, in both families.
fn mappings() -> Value {
    json!([
        web(),
        {"hostPort": 8080, "containerPort": 53, "protocol": "udp"},
        {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "198.51.100.1"},
        {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "2001:db8:ffff::1"},
    ])
}

#[track_caller]
fn assert_missed(chain: &Chain<'_>, peer: &Peer, what: &str) {
    let outcome = chain.check(&chain.result);
    assert_ne!(outcome.status, 0, "CHECK does not miss {what}");
    if *peer == Peer::Ours {
        let error = outcome.err();
        assert_eq!(error.code, 103, "{what}: {error:?}");
    }
}

/// The reference's messages, which must occur in its own errors as well.
#[test]
fn check_says_in_the_reference_s_words_what_is_gone() {
    let own = "$(iptables-save -t nat | grep -o 'CNI-DN-[0-9a-f]*' | head -1)";
    let flushed =
        "nft flush chain ip cni_hostport hostports || nft flush map inet cni_multi_portmap port4";
    let cases: [(&str, String, &[&str]); 3] = [
        (
            "iptables",
            "nft flush ruleset".to_owned(),
            &["could not check ipv4 dnat: chain CNI-DN-", " not found in iptables table nat"],
        ),
        (
            "iptables",
            format!("iptables -t nat -F {own}"),
            &["could not check ipv4 dnat: rule [", "] in chain CNI-DN-", " not found in table nat"],
        ),
        ("nftables", flushed.to_owned(), &["missing hostport rules in \"hostports\" chain"]),
    ];
    for (backend, script, words) in &cases {
        for_each_peer("portmap", |lab| {
            let chain = publish(lab, Some(backend), mappings());
            lab.host.sh(script);
            let error = chain.check(&chain.result).err();
            assert!(words.iter().all(|words| error.msg.contains(words)), "{script}: {error:?}");
        });
    }
}

/// The same number of rules with another effect, and a dormant table.
#[test]
fn check_finds_rules_that_are_others_than_they_were() {
    let replace = |chain: &str, rule: &str| {
        format!(
            "nft flush chain inet cni_multi_portmap {chain}; for n in 1 2 3 4; do [ $n -gt {} ] || nft add rule inet cni_multi_portmap {chain} {rule}; done",
            match chain {
                "postrouting" => 4,
                "output" => 1,
                _ => 2,
            }
        )
    };
    let scripts = [
        replace("postrouting", "counter accept"),
        replace("prerouting", "accept"),
        replace("output", "fib daddr type broadcast goto ports"),
        replace("guard", "accept"),
        replace("net-10.10.0.0/24", "accept"),
        "nft add table inet cni_multi_portmap '{ flags dormant; }'".to_owned(),
    ];
    for_ours("portmap", |lab| {
        for script in &scripts {
            let chain = publish(lab, None, mappings());
            chain.check(&chain.result).ok();
            lab.host.sh(script);
            assert_missed(&chain, &lab.peer, script);
            chain.del_all();
            lab.host.sh(
                "nft list tables | grep cni_multi && nft delete table inet cni_multi_portmap; true",
            );
        }
    });
}

/// CHECK without an ADD, and with a mapping that ADD did not have.
#[test]
fn check_of_another_mapping_fails() {
    for_each_backend(|lab, backend| {
        let chain = lab.chain(&network(), &portmap(backend, json!([web()])));
        assert_missed(&chain, &lab.peer, "everything");
        chain.add();
        chain.check(&chain.result).ok();
        let more = json!([web(), {"hostPort": 9090, "containerPort": 80, "protocol": "tcp"}]);
        let changed = (*chain).clone().conf(json!({"runtimeConfig": {"portMappings": more}}));
        assert_ne!(changed.check(&chain.result).status, 0, "{backend:?}");
    });
}

/// Every rule of the `nat` tables, as the command that deletes it.
fn rules_of_iptables(lab: &Lab) -> Vec<String> {
    let rules = |family: &str| {
        let saved = lab.host.sh(&format!("{family}-save -t nat | grep '^-A'"));
        saved
            .lines()
            .map(|rule| format!("{family} -t nat {}", rule.replacen("-A", "-D", 1)))
            .collect::<Vec<_>>()
    };
    [rules("iptables"), rules("ip6tables")].concat()
}

/// The reference does not check the shared rules; see tests/differences.
#[test]
fn check_finds_each_rule_of_iptables_that_is_gone() {
    for_ours("portmap", |lab| {
        let chain = publish(lab, Some("iptables"), mappings());
        let rules = rules_of_iptables(lab);
        assert!(rules.len() > 20, "{rules:#?}");
        for rule in rules {
            chain.check(&chain.result).ok();
            lab.host.sh(&rule);
            assert_missed(&chain, &lab.peer, &rule);
            chain.del();
            chain.add();
        }
    });
}

/// Every rule and element in the ruleset, as the input of `nft -j` that deletes it.
fn objects_of_nftables(lab: &Lab) -> Vec<Value> {
    let listing = lab.host.json("nft -j -a list ruleset");
    let mut objects = vec![];
    for object in listing["nftables"].as_array().unwrap() {
        if let Some(rule) = object.get("rule") {
            let named = json!({"family": rule["family"], "table": rule["table"], "chain": rule["chain"], "handle": rule["handle"]});
            objects.push(json!({"rule": named}));
        }
        for kind in ["set", "map"] {
            let Some(set) = object.get(kind) else { continue };
            for element in set["elem"].as_array().into_iter().flatten() {
                // A map's element is a pair. A key with attributes is an object, of which only the
                // key is used.
                let key = if kind == "map" { &element[0] } else { element };
                let comment = key["elem"]["comment"].as_str().unwrap_or_default();
                if comment.starts_with("no entry was lost") {
                    continue; // not about an attachment: without it DEL only searches further
                }
                let key = key.get("elem").map_or(key, |with_attributes| &with_attributes["val"]);
                let of = json!({"family": set["family"], "table": set["table"], "name": set["name"], "elem": [key]});
                objects.push(json!({"element": of}));
            }
        }
    }
    objects
}

fn take_away(lab: &Lab, object: &Value) {
    let input = json!({"nftables": [{"delete": object}]});
    lab.host.sh(&format!("nft -j -f - <<'END'\n{input}\nEND"));
}

/// Calls the case with the index of each object that ADD makes, each time in a new lab. The case
/// returns the number of objects.
fn for_each_object(case: impl Fn(&Lab, usize) -> usize) {
    let mut at = 0;
    loop {
        let number = case(&Lab::new(Peer::Ours), at);
        assert!(number > 4, "{number} objects cannot be all");
        at += 1;
        if at == number {
            return;
        }
    }
}

/// The reference counts the container's rules, and ignores their effect and whether a packet
/// reaches them; see tests/differences.
#[test]
fn check_finds_each_rule_and_element_of_nftables_that_is_gone() {
    for_ours("portmap", |_| {
        for_each_object(|lab, at| {
            let chain = publish(lab, None, mappings());
            chain.check(&chain.result).ok();
            let objects = objects_of_nftables(lab);
            take_away(lab, &objects[at]);
            assert_missed(&chain, &lab.peer, &objects[at].to_string());
            objects.len()
        });
    });
}

/// Without route_localnet the kernel drops packets from 127.0.0.1 to the container. The reference
/// does not check it.
#[test]
fn check_finds_that_localhost_is_cut_off() {
    for_ours_with_each_backend(|lab, backend| {
        let chain = publish(lab, backend, json!([web()]));
        chain.check(&chain.result).ok();
        let _server = TcpServer::start(&chain.container, 80);
        let works = || connect(&lab.host, "127.0.0.1:8080").is_some();
        assert!(works());
        lab.host.sh("for f in /proc/sys/net/ipv4/conf/*/route_localnet; do echo 0 > $f; done");
        assert!(!works());
        assert_missed(&chain, &lab.peer, "route_localnet");
    });
}
