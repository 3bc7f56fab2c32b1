//! The exact rules of the iptables backend: nerdctl and Nomad parse chains and comments, and a node
//! can be rolled back to the reference.

use super::*;

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
        let main = with(&network(), json!({"isDefaultGateway": false}));
        let other = portmap(Some("iptables"), json!([with(&web(), json!({"hostPort": 8081}))]));
        let second = lab.chain_in(&chain.container, "eth1", &main, &other);
        second.add();
        let _server = TcpServer::start(&chain.container, 80);
        assert_eq!([is_open(lab, 8080)[0], is_open(lab, 8081)[0]], [true; 2]);
        chain.check(&chain.result).ok();
        second.check(&second.result).ok();
    });
}

/// iptables conditions of every kind, and all options for marks.
fn variants() -> Vec<(&'static str, Value, Value)> {
    let mapping =
        |port: u16, host_ip: &str| with(&web(), json!({"hostPort": port, "hostIP": host_ip}));
    let udp = json!({"containerPort": 53, "protocol": "udp"});
    let all = json!([
        web(),
        with(&mapping(8081, UPLINK[0]), udp),
        mapping(8082, "::"),
        mapping(8083, "0.0.0.0"),
        mapping(8084, UPLINK[1]),
        mapping(8085, "127.0.0.1"),
    ]);
    let many: Value = (0..40).map(|n| with(&web(), json!({"hostPort": 8000 + n}))).collect();
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

/// With the reference's hash of "net1" and "container-1".
const ONE_MAPPING: &str = r#":CNI-DN-41218092aa6e0481daa5b -
:CNI-HOSTPORT-DNAT -
:CNI-HOSTPORT-MASQ -
:CNI-HOSTPORT-SETMARK -
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A CNI-DN-41218092aa6e0481daa5b -s SUBNET -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-41218092aa6e0481daa5b -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-41218092aa6e0481daa5b -p tcp -m tcp --dport 8080 -j DNAT --to-destination CONTAINER:80
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"net1\" id: \"container-1\"" -m multiport --dports 8080 -j CNI-DN-41218092aa6e0481daa5b
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000"#;

#[test]
fn one_mapping_makes_these_rules() {
    let v4 = ONE_MAPPING.replace("SUBNET", "10.10.0.0/24").replace("CONTAINER", "10.10.0.2");
    let v6 = ONE_MAPPING.replace("SUBNET", "2001:db8:10::/64");
    let v6 = v6.replace("CONTAINER", "[2001:db8:10::2]");
    let v6 = v6.lines().filter(|line| !line.contains("127.0.0.1"));
    let expected: Vec<&str> = v4.lines().chain(v6).collect();
    for_each_peer("portmap", |lab| {
        publish(lab, Some("iptables"), json!([web()]));
        assert_eq!(rules(lab), expected);
    });
}

#[test]
fn all_variants_make_the_rules_of_the_reference() {
    let Some(reference) = reference_with("portmap") else {
        return not_compared("specification 1.1.0");
    };
    for_ours("portmap", |_| {
        for (what, mappings, changes) in variants() {
            let [expected, ours] = [&reference, &Peer::Ours].map(|peer| {
                with_variant(&Lab::new(peer.clone()).without_dad(), &mappings, &changes)
            });
            assert!(expected.len() > 10, "{what}: {expected:#?}");
            assert_eq!(ours, expected, "{what}");
        }
    });
}

/// A comment holds 255 bytes. The reference truncates it to 253 bytes and three dots, of which iptables keeps two. GC of
/// ours finds the container all the same.
#[test]
fn a_long_id_is_cut_in_the_comment() {
    for_each_peer("portmap", |lab| {
        let id = "i".repeat(250);
        let main = with(&network(), json!({"cniVersion": "1.1.0"}));
        let chain = lab.chain(&main, &portmap(Some("iptables"), json!([web()])));
        let long = (*chain).clone().id(&id);
        long.add();
        let begin = r#"dnat name: "net1" id: ""#;
        let cut = format!("{begin}{}", "i".repeat(253 - begin.len())).replace('"', "\\\"");
        let comment = format!("--comment \"{cut}..\" -m multiport");
        let found = || rules(lab).iter().filter(|rule| rule.contains(&comment)).count();
        assert_eq!(found(), 2, "{:#?}", rules(lab));
        long.check(&chain.result).ok();
        if lab.peer == Peer::Ours {
            assert_eq!(long.gc(&[(&id, "eth0")]).ok(), Value::Null);
            assert_eq!(found(), 2);
            assert_eq!(long.gc(&[]).ok(), Value::Null);
            assert!(!rules(lab).iter().any(|rule| rule.contains("--dport 8080")));
        }
        long.del();
    });
}

/// The same sources are masqueraded whichever rule sets the mark. What only iptables has means iptables.
#[test]
fn marks_of_every_kind_hide_the_same_sources() {
    let [bit, chain] =
        [json!({"markMasqBit": 5}), json!({"externalSetMarkChain": "KUBE-MARK-MASQ"})];
    for_each_peer("portmap", |lab| {
        lab.host.sh(MARK_OF_OTHERS);
        for (changes, backend) in
            [(&bit, None), (&bit, Some("iptables")), (&chain, None), (&chain, Some("iptables"))]
        {
            let chained = with(&portmap(backend, json!([web()])), changes.clone());
            let chain = lab.chain_added(&network(), &chained);
            assert_eq!(sources(lab, &chain), SNAT, "{changes}");
            let is_used = rules(lab).iter().any(|rule| rule.contains("CNI-DN-"));
            assert!(is_used, "{changes}, {backend:?}");
            chain.del();
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
