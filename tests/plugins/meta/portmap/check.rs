//! portmap CHECK detects every missing rule, element and setting.

use super::*;

/// A mapping of each kind, in both families.
fn mappings() -> Value {
    json!([
        web(),
        {"hostPort": 8080, "containerPort": 53, "protocol": "udp"},
        {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "198.51.100.1"},
        {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "2001:db8:ffff::1"},
    ])
}

/// The reference's messages, which must occur in its own errors as well.
#[test]
fn check_says_in_the_reference_s_words_what_is_gone() {
    let cases = cells(
        r#"
iptables | nft flush ruleset | could not check ipv4 dnat: chain CNI-DN- |  not found in iptables table nat
iptables | iptables -t nat -F $(iptables-save -t nat|grep -om1 'CNI-DN-[0-9a-f]*') | could not check ipv4 dnat: rule [ | ] in chain CNI-DN-
nftables | nft flush chain ip cni_hostport hostports || nft flush map inet cni_multi_portmap port4 | missing hostport rules in "hostports" chain
"#,
    );
    for [backend, script, words, more] in cases {
        for_each_peer("portmap", |lab| {
            let chain = publish(lab, Some(backend), mappings());
            lab.host.sh(script);
            let error = chain.check(&chain.result).err();
            assert!(error.msg.contains(words) && error.msg.contains(more), "{script}: {error:?}");
        });
    }
}

/// The same number of rules with another effect, and a dormant table.
#[test]
fn check_finds_rules_that_are_others_than_they_were() {
    let replaced = [
        ("postrouting", "counter accept", 4),
        ("prerouting", "accept", 2),
        ("output", "fib daddr type broadcast goto ports", 1),
        ("guard", "accept", 2),
        ("net-10.10.0.0/24", "accept", 2),
    ];
    let replaced = replaced.map(|(chain, rule, count)| {
        let chain = format!("inet cni_multi_portmap {chain}");
        format!(
            "nft flush chain {chain}; for n in $(seq {count}); do nft add rule {chain} {rule}; done"
        )
    });
    let dormant = "nft add table inet cni_multi_portmap '{ flags dormant; }'".to_owned();
    for_ours("portmap", |lab| {
        for script in replaced.iter().chain([&dormant]) {
            eprintln!("{script}"); // shown when the case fails
            let chain = publish(lab, None, mappings());
            chain.check(&chain.result).ok();
            lab.host.sh(script);
            chain.check(&chain.result).fails(103, "");
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
        let assert_missed = |attachment: &Attachment<'_>| {
            let error = attachment.check(&chain.result).err();
            assert!(lab.peer != Peer::Ours || error.code == 103, "{backend:?}: {error:?}");
        };
        assert_missed(&chain);
        chain.add();
        chain.check(&chain.result).ok();
        let more = json!([web(), {"hostPort": 9090, "containerPort": 80, "protocol": "tcp"}]);
        assert_missed(&(*chain).clone().conf(json!({"runtimeConfig": {"portMappings": more}})));
    });
}

/// The reference does not check the shared rules; see tests/differences.
#[test]
fn check_finds_each_rule_of_iptables_that_is_gone() {
    for_ours("portmap", |lab| {
        let chain = publish(lab, Some("iptables"), mappings());
        let deleting = "for f in iptables ip6tables; do $f-save -t nat | sed -n \"s/^-A/$f -t nat -D/p\"; done";
        let deleting = lab.host.sh(deleting);
        assert!(deleting.lines().count() > 20, "{deleting}");
        for rule in deleting.lines() {
            chain.check(&chain.result).ok();
            eprintln!("{rule}"); // shown when the case fails
            lab.host.sh(rule);
            chain.check(&chain.result).fails(103, "");
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

/// The reference counts the container's rules, and ignores their effect and whether a packet
/// reaches them; see tests/differences.
#[test]
fn check_finds_each_rule_and_element_of_nftables_that_is_gone() {
    for_ours("portmap", |_| {
        let (mut at, mut number) = (0, 5);
        while at < number {
            let lab = Lab::new(Peer::Ours);
            let chain = publish(&lab, None, mappings());
            chain.check(&chain.result).ok();
            let objects = objects_of_nftables(&lab);
            let input = json!({"nftables": [{"delete": objects[at]}]});
            eprintln!("{input}"); // shown when the case fails
            lab.host.sh(&format!("nft -j -f - <<'END'\n{input}\nEND"));
            chain.check(&chain.result).fails(103, "");
            (at, number) = (at + 1, objects.len());
        }
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
        chain.check(&chain.result).fails(103, "route_localnet");
    });
}
