//! The exact rules of the iptables backend: nerdctl and Nomad parse chains and comments, and a node
//! can be rolled back to the reference.

use serde_json::{Value, json};

use super::{SNAT, sources};
use crate::support::attachment::{
    for_each_peer, for_ours, not_compared, reference_with, skip, with,
};
use crate::support::call::{Peer, farm};
use crate::support::netns::{Lab, UPLINK};
use crate::support::networks::portmap::{at, is_open, network, portmap, publish, web};
use crate::support::traffic::{TcpServer, connect};

/// The chains and rules of portmap as `iptables-save` prints them, without counters: IPv4 first,
/// then IPv6.
pub fn rules(lab: &Lab) -> Vec<String> {
    let saved = lab.host.sh("iptables-save -t nat; ip6tables-save -t nat");
    let is_ours = |line: &&str| line.contains("CNI-DN-") || line.contains("CNI-HOSTPORT-");
    saved.lines().filter(is_ours).map(|line| line.trim_end_matches(" [0:0]").to_owned()).collect()
}

/// The chain's name is a hash of container and network, not of the interface; the ports of both
/// interfaces are open.
#[test]
fn two_interfaces_in_one_network_keep_their_ports() {
    for_each_peer("portmap", |lab| {
        let chain = publish(lab, Some("iptables"), json!([web()]));
        let second = lab
            .attach(&chain.container, &with(&chain.main.conf, json!({"isDefaultGateway": false})))
            .ifname("eth1");
        let mut published = chain
            .also(&portmap(Some("iptables"), json!([with(&web(), json!({"hostPort": 8081}))])));
        let result = second.add();
        published.conf["prevResult"] = result.clone();
        let published = published.ifname("eth1");
        published.add();
        let _server = TcpServer::start(&chain.container, 80);
        assert_eq!([is_open(lab, 8080)[0], is_open(lab, 8081)[0]], [true; 2]);
        chain.check(&chain.result).ok();
        published.check(&result).ok();
    });
}

/// A comment holds 255 bytes, so a long id is truncated.
#[test]
fn gc_finds_containers_with_ids_too_long_for_a_comment() {
    for_ours("portmap", |lab| {
        let long = lab.chain(&network(), &portmap(Some("iptables"), json!([web()])));
        let id = "c".repeat(250);
        let long = (*long).clone().id(&id).conf(json!({"cniVersion": "1.1.0"}));
        long.add();
        assert_eq!(long.gc(&[(&id, "eth0")]).ok(), Value::Null);
        assert!(rules(lab).iter().any(|rule| rule.contains("--dport 8080")));
        assert_eq!(long.gc(&[]).ok(), Value::Null);
        assert!(!rules(lab).iter().any(|rule| rule.contains("--dport 8080")), "{:#?}", rules(lab));
    });
}

/// iptables conditions of every kind, and all options for marks.
fn variants() -> Vec<(&'static str, Value, Value)> {
    let mapping = |changes: Value| with(&web(), changes);
    let all = json!([
        web(),
        mapping(
            json!({"hostPort": 8081, "containerPort": 53, "protocol": "udp", "hostIP": UPLINK[0]})
        ),
        mapping(json!({"hostPort": 8082, "hostIP": "::"})),
        mapping(json!({"hostPort": 8083, "hostIP": "0.0.0.0"})),
        mapping(json!({"hostPort": 8084, "hostIP": UPLINK[1]})),
        mapping(json!({"hostPort": 8085, "hostIP": "127.0.0.1"})),
    ]);
    let many: Value = (0..40)
        .map(|n| json!({"hostPort": 8000 + n, "containerPort": 80, "protocol": "tcp"}))
        .collect();
    let conditions = json!({
        "conditionsV4": ["!", "-d", "192.0.2.0/24", "-i", "uplink"],
        "conditionsV6": ["!", "-d", "2001:db8:dead::/64", "-m", "comment", "--comment", "a \"quoted\" word"],
    });
    vec![
        ("mappings of every kind", all.clone(), json!({})),
        ("without snat", all.clone(), json!({"snat": false})),
        ("masqAll", all.clone(), json!({"masqAll": true})),
        ("another bit", all.clone(), json!({"markMasqBit": 5})),
        ("bit 0", json!([web()]), json!({"markMasqBit": 0})),
        ("the last bit", json!([web()]), json!({"markMasqBit": 31})),
        ("a chain of others", all.clone(), json!({"externalSetMarkChain": "KUBE-MARK-MASQ"})),
        ("conditions", all, conditions),
        ("more than a rule has", many, json!({})),
    ]
}

/// A foreign chain for the variant that names one.
const MARK_OF_OTHERS: &str = "for f in iptables ip6tables; do $f -t nat -N KUBE-MARK-MASQ; \
    $f -t nat -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000; \
    $f -t nat -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE; done";

/// The rules of a container published with a variant of the options.
fn with_variant(lab: &Lab, mappings: &Value, changes: &Value) -> Vec<String> {
    lab.host.sh(MARK_OF_OTHERS);
    let chain =
        lab.chain(&network(), &with(&portmap(Some("iptables"), mappings.clone()), changes.clone()));
    chain.add();
    chain.check(&chain.result).ok();
    rules(lab)
}

#[test]
fn one_mapping_makes_these_rules() {
    let expected = |dn: &str, subnet: &str, to: &str, localhost: bool| {
        let mut lines = vec![
            format!(":{dn} -"),
            ":CNI-HOSTPORT-DNAT -".to_owned(),
            ":CNI-HOSTPORT-MASQ -".to_owned(),
            ":CNI-HOSTPORT-SETMARK -".to_owned(),
            "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT".to_owned(),
            "-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT".to_owned(),
            r#"-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ"#.to_owned(),
            format!("-A {dn} -s {subnet} -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK"),
        ];
        if localhost {
            lines.push(format!(
                "-A {dn} -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK"
            ));
        }
        lines.extend([
            format!("-A {dn} -p tcp -m tcp --dport 8080 -j DNAT --to-destination {to}:80"),
            format!(
                r#"-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"net1\" id: \"container-1\"" -m multiport --dports 8080 -j {dn}"#
            ),
            "-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE".to_owned(),
            r#"-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000"#.to_owned(),
        ]);
        lines
    };
    // The reference's hash of "net1" and "container-1".
    let dn = "CNI-DN-41218092aa6e0481daa5b";
    for_each_peer("portmap", |lab| {
        publish(lab, Some("iptables"), json!([web()]));
        let both = [
            expected(dn, "10.10.0.0/24", "10.10.0.2", true),
            expected(dn, "2001:db8:10::/64", "[2001:db8:10::2]", false),
        ];
        assert_eq!(rules(lab), both.concat());
    });
}

#[test]
fn all_variants_make_the_rules_of_the_reference() {
    let Some(reference) = reference_with("portmap") else {
        return not_compared("specification 1.1.0");
    };
    let ours_is_there = farm().join("portmap").exists();
    for (what, mappings, changes) in variants() {
        let expected = with_variant(&Lab::new(reference.clone()), &mappings, &changes);
        assert!(expected.len() > 10, "{what}: {expected:#?}");
        if ours_is_there {
            assert_eq!(
                with_variant(&Lab::new(Peer::Ours).without_dad(), &mappings, &changes),
                expected,
                "{what}"
            );
        }
    }
    if !ours_is_there {
        skip("our plugin portmap");
    }
}

/// The reference truncates a comment to 253 bytes and three dots, of which iptables keeps two.
#[test]
fn a_long_id_is_cut_in_the_comment() {
    for_each_peer("portmap", |lab| {
        let container = lab.container();
        let id = "i".repeat(250);
        let main = lab.attach(&container, &network()).id(&id);
        let result = main.add();
        let chained = json!({"prevResult": result, "ipam": null});
        let attachment =
            main.clone().conf(with(&portmap(Some("iptables"), json!([web()])), chained));
        attachment.add();
        let begin = r#"dnat name: "net1" id: ""#;
        let cut = format!("{begin}{}", "i".repeat(253 - begin.len())).replace('"', "\\\"");
        let comment = format!("--comment \"{cut}..\" -m multiport");
        let rules = rules(lab);
        assert_eq!(rules.iter().filter(|rule| rule.contains(&comment)).count(), 2, "{rules:#?}");
        attachment.check(&result).ok();
        attachment.del();
    });
}

/// The same sources are masqueraded whichever rule sets the mark.
#[test]
fn marks_of_every_kind_hide_the_same_sources() {
    for_each_peer("portmap", |lab| {
        lab.host.sh(MARK_OF_OTHERS);
        for changes in
            [json!({"markMasqBit": 5}), json!({"externalSetMarkChain": "KUBE-MARK-MASQ"})]
        {
            for backend in [None, Some("iptables")] {
                let chain = lab
                    .chain(&network(), &with(&portmap(backend, json!([web()])), changes.clone()));
                chain.add();
                assert_eq!(sources(lab, &chain), SNAT, "{changes}");
                let used = rules(lab).iter().any(|rule| rule.contains("CNI-DN-"));
                assert!(
                    used,
                    "what only iptables has is a word for iptables: {changes}, {backend:?}"
                );
                chain.del();
            }
        }
    });
}

/// iptables conditions restrict which packets reach the port, whether or not the backend is named.
#[test]
fn conditions_select_the_packets_of_the_port() {
    for_each_peer("portmap", |lab| {
        lab.host.sh("ip addr add 198.51.100.7/24 dev uplink; ip addr add 2001:db8:ffff::7/64 dev uplink nodad");
        for backend in [None, Some("iptables")] {
            let conditions =
                json!({"conditionsV4": ["!", "-d", UPLINK[0]], "conditionsV6": ["-d", UPLINK[1]]});
            let chain = lab.chain(&network(), &with(&portmap(backend, json!([web()])), conditions));
            let _server = TcpServer::start(&chain.container, 80);
            chain.add();
            assert_eq!(is_open(lab, 8080), [false, true], "{backend:?}");
            let others = ["198.51.100.7", "2001:db8:ffff::7"]
                .map(|to| connect(&lab.outside, &at(to, 8080)).is_some());
            assert_eq!(others, [true, false], "{backend:?}");
            chain.check(&chain.result).ok();
            chain.del();
        }
    });
}

/// On a host where `iptables` is iptables-legacy the rules go into its tables, like the reference's
/// do.
#[test]
fn both_variants_of_iptables_can_be_asked() {
    for_ours("portmap", |lab| {
        let legacy = "command -v iptables-legacy-save ip6tables-legacy && iptables-legacy -t nat -S && ip6tables-legacy -t nat -S";
        if !lab.host.try_sh(legacy).status.success() {
            return skip("iptables-legacy");
        }
        let places = "for f in iptables ip6tables; do for s in '' -save -restore; do \
            mount --bind $(command -v $f-legacy$s) $(command -v $f$s); done; done";
        lab.host.sh(places);
        let chain = publish(lab, Some("iptables"), json!([web()]));
        let _server = TcpServer::start(&chain.container, 80);
        assert_eq!(is_open(lab, 8080), [true, true]);
        assert!(!lab.host.sh("nft list ruleset").contains("CNI-DN-"));
        chain.check(&chain.result).ok();
        chain.bare().del();
        assert_eq!(is_open(lab, 8080), [false, false]);
        assert!(!lab.host.sh("iptables-legacy-save; ip6tables-legacy-save").contains("CNI-DN-"));
    });
}
