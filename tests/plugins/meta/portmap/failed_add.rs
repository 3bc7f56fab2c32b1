//! portmap ADD that fails: the error has the path of the faulty key, and host and container are
//! unchanged.

use super::*;
use crate::plugins::meta::firewall::del::Others;

/// The second of two mappings, with some keys changed.
fn mappings(first: &Value, table: &'static str) -> Vec<Case> {
    let second = |case: Case| {
        let mappings = json!([first, with(&web(), case.changes)]);
        Case { changes: json!({"runtimeConfig": {"portMappings": mappings}}), ..case }
    };
    rows(table).into_iter().map(second).collect()
}

/// Errors that both backends have in common.
fn cases() -> Vec<Case> {
    let first = json!({"hostPort": 9090, "containerPort": 80, "protocol": "tcp"});
    mappings(&first, r#"
host port too large | {"hostPort": 70000} | 7: runtimeConfig.portMappings[1].hostPort: 70000
host port 65536 | {"hostPort": 65536} | 7: runtimeConfig.portMappings[1].hostPort: 65536
host port negative | {"hostPort": -1} | 7: runtimeConfig.portMappings[1].hostPort: -1 | both
container port 0 | {"containerPort": 0} | 7: runtimeConfig.portMappings[1].containerPort: 0 | both
no container port | {"containerPort": null} | 7: runtimeConfig.portMappings[1].containerPort | both
container port too large | {"containerPort": 70000} | 7: runtimeConfig.portMappings[1].containerPort: 70000
protocol unknown | {"protocol": "xyz"} | 7: runtimeConfig.portMappings[1].protocol: "xyz"
protocol without ports | {"protocol": "icmp"} | 7: runtimeConfig.portMappings[1].protocol: "icmp"
rules in the protocol | {"protocol": "tcp dport 1 accept; add rule ip x y tcp"} | 7: runtimeConfig.portMappings[1].protocol
hostIP is not an address | {"hostIP": "1.2.3"} | 7: runtimeConfig.portMappings[1].hostIP: "1.2.3"
hostIP is a network | {"hostIP": "10.0.0.0/8"} | 7: runtimeConfig.portMappings[1].hostIP: "10.0.0.0/8"
rules in hostIP | {"hostIP": "127.0.0.1 accept;"} | 7: runtimeConfig.portMappings[1].hostIP
"#)
.into_iter()
.chain(rows(r#"
markMasqBit too large | {"markMasqBit": 32} | 7: markMasqBit: 32 | both
markMasqBit negative | {"markMasqBit": -1} | 7: markMasqBit: -1 | both
both marks | {"markMasqBit": 5, "externalSetMarkChain": "KUBE-MARK-MASQ"} | 7: externalSetMarkChain | both
backend unknown | {"backend": "ebtables"} | 7: unrecognized backend "ebtables" | both
snat is no boolean | {"snat": "no"} | 6: snat | both
port is a text | {"runtimeConfig": {"portMappings": [{"hostPort": "80"}]}} | 6: portMappings[0].hostPort | both
mappings are an object | {"runtimeConfig": {"portMappings": {"a": 1}}} | 6: portMappings | both
no result | {"prevResult": null} | 7: prevResult | both
neither result nor mappings | {"prevResult": null, "runtimeConfig": null} | 7: prevResult | both
"#))
.collect()
}

/// One port that leads to two. The reference accepts each, and the first one applies.
const TWICE: &str = r#"
another port | {"containerPort": 81} | 7: runtimeConfig.portMappings[1]
another port, in capitals | {"containerPort": 81, "protocol": "TCP"} | 7: runtimeConfig.portMappings[1]
another port, no protocol | {"containerPort": 81, "protocol": null} | 7: runtimeConfig.portMappings[1]
another port of a wildcard | {"containerPort": 81, "hostIP": "::"} | 7: runtimeConfig.portMappings[1]
"#;

/// Options for iptables only. With nftables the reference accepts markMasqBit and masqAll, and
/// ignores them.
const IPTABLES_ONLY: &str = r#"
chain | {"externalSetMarkChain": "KUBE-MARK-MASQ"} | 7: externalSetMarkChain
condition | {"conditionsV4": ["!", "-d", "192.0.2.0/24"]} | 7: conditionsV4
condition for IPv6 | {"conditionsV6": ["-s", "2001:db8::/64"]} | 7: conditionsV6
"#;

/// portmap supports a part of nft's language; the error shows the words that it does not.
const NOT_UNDERSTOOD: &str = r#"
another key | {"conditionsV4": ["tcp", "sport", "1024"]} | 7: conditionsV4: "
an open set | {"conditionsV4": ["ip saddr { 192.0.2.1"]} | 7: conditionsV4: "
IPv6 in IPv4 | {"conditionsV4": ["ip6 saddr fd00::/8"]} | 7: is never true
IPv4 in IPv6 | {"conditionsV6": ["ip daddr 10.0.0.0/8"]} | 7: is never true
"#;

/// Values that iptables or its parser would take for something else.
fn injections() -> Vec<Case> {
    let evil = "-A INPUT -j DROP";
    rows(r#"
name of a chain too long | {"externalSetMarkChain": "a-chain-name-of-29-characters"} | 7: externalSetMarkChain
options in the name of a chain | {"externalSetMarkChain": "ACCEPT -m comment"} | 7: externalSetMarkChain
no chain of that name | {"externalSetMarkChain": "NO-SUCH-CHAIN"} | 7: NO-SUCH-CHAIN
no kube-proxy, two ways out | {"externalSetMarkChain": "KUBE-MARK-MASQ"} | 7: remove the key, or start kube-proxy
end of the table in a condition | {"conditionsV6": ["-m", "comment", "--comment", "a\nCOMMIT\n"]} | 7: conditionsV6[3]
target in a condition | {"conditionsV4": ["-j", "ACCEPT"]} | 7: conditionsV4
conditions of nftables | {"conditionsV4": ["ip", "saddr", "192.0.2.1"]} | 7: conditionsV4 | both
"#)
.into_iter()
.chain([Case::new(
            "lines in the name of a chain",
            json!({"externalSetMarkChain": format!("X\n{evil}")}),
            7,
            "externalSetMarkChain",
        ),
Case::new(
            "lines in a condition",
            json!({"conditionsV4": ["-s", format!("192.0.2.1\n{evil}\n")]}),
            7,
            "conditionsV4[1]",
        )])
.collect()
}

#[test]
fn add_fails_and_nothing_has_changed() {
    let assert_refused = |lab: &Lab, backend: Option<&str>, cases: Vec<Case>| {
        for case in cases {
            eprintln!("with {backend:?}:"); // shown when the case fails
            let chain = lab.chain(&network(), &portmap(backend, json!([web()])));
            assert_fails_at(lab, &chain.container, &chain, &case);
            chain.main.del();
        }
    };
    for_each_backend(|lab, backend| assert_refused(lab, backend, cases()));
    for_ours_with_each_backend(|lab, backend| {
        assert_refused(lab, backend, mappings(&web(), TWICE));
    });
    for_each_peer("portmap", |lab| assert_refused(lab, Some("nftables"), rows(IPTABLES_ONLY)));
    for_ours("portmap", |lab| {
        assert_refused(lab, None, cases());
        assert_refused(lab, Some("iptables"), injections());
        for backend in [None, Some("nftables")] {
            assert_refused(lab, backend, rows(NOT_UNDERSTOOD));
        }
    });
}

/// A hostIP of a family that the container has no address of is refused; a wildcard, which runtimes send for every
/// network, publishes nothing. The reference succeeds and publishes nothing.
#[test]
fn a_family_that_the_container_lacks_is_refused_but_for_a_wildcard() {
    let only = |subnet: &str| json!({"ipam": {"ranges": null, "subnet": subnet}});
    let (v4, v6) = (only("10.10.0.0/24"), only("2001:db8:10::/64"));
    let nothing = json!({"ipam": null, "isGateway": null, "isDefaultGateway": null});
    let of_v6 = "runtimeConfig.portMappings[0].hostIP: \"2001:db8:ffff::1\"";
    let of_v4 = "runtimeConfig.portMappings[0].hostIP: \"198.51.100.1\"";
    let cases = [
        (&v4, Some("2001:db8:ffff::1"), of_v6),
        (&v6, Some("198.51.100.1"), of_v4),
        (&nothing, None, "prevResult"),
        (&v4, Some("::"), ""),
        (&v6, Some("0.0.0.0"), ""),
    ];
    for_ours_with_each_backend(|lab, backend| {
        for (main, host_ip, names) in cases {
            let chained = portmap(backend, json!([with(&web(), json!({"hostIP": host_ip}))]));
            let chain = lab.chain(&with(&network(), main.clone()), &chained);
            if !names.is_empty() {
                let case = Case::new("no address of the family", json!({}), 7, names);
                assert_fails_at(lab, &chain.container, &chain, &case);
            } else {
                let before = Watch::start(lab, &[&chain.container]);
                chain.add();
                chain.del();
                before.assert_unchanged("ADD of nothing");
            }
            chain.main.del();
        }
    });
}

/// Puts a failing `ip6tables-restore` first in PATH; `iptables-restore` still works.
fn with_failing_ip6tables(lab: &Lab, call: Call) -> Call {
    lab.host.sh(
        "mkdir -p /run/failing && printf '#!/bin/sh\\ncat >/dev/null; echo no such luck >&2; exit 1\\n' >/run/failing/ip6tables-restore; \
         chmod +x /run/failing/ip6tables-restore",
    );
    call.with_programs("/run/failing")
}

/// IPv6 fails after IPv4 is done. The rollback removes the shared chains that this ADD created, and
/// keeps those that existed.
#[test]
fn what_was_done_for_ipv4_is_undone_when_ipv6_fails() {
    for_ours("portmap", |lab| {
        // iptables-nft creates a base chain with its first rule, and never removes it.
        lab.host.sh("for c in PREROUTING OUTPUT POSTROUTING; do iptables -t nat -A $c; iptables -t nat -D $c; done");
        for shared_is_there in [false, true] {
            if shared_is_there {
                let _other = lab.chain_added(
                    &network(),
                    &portmap(Some("iptables"), json!([{"hostPort": 1, "containerPort": 1}])),
                );
            }
            let chain = lab.chain(&network(), &portmap(Some("iptables"), json!([web()])));
            let call = with_failing_ip6tables(lab, chain.call("ADD", None));
            let before = Watch::start(lab, &[]);
            call.run().fails(105, "no such luck");
            before.assert_unchanged(&format!(
                "the failed ADD, shared rules there: {shared_is_there}"
            ));
        }
    });
}

/// During an upgrade, an ADD of the reference has found the shared chains, and fails at its next
/// rule if they disappear.
#[test]
fn shared_chains_stay_while_a_plugin_of_others_is_at_work() {
    for_ours("portmap", |lab| {
        let chain = lab.chain(&network(), &portmap(Some("iptables"), json!([web()])));
        let others = Others::begin(lab, "portmap");
        with_failing_ip6tables(lab, chain.call("ADD", None)).run().err();
        let left = lab.host.sh("iptables-save -t nat");
        assert!(left.contains(":CNI-HOSTPORT-DNAT") && !left.contains("CNI-DN-"), "{left}");
        drop(others);
        with_failing_ip6tables(lab, chain.call("ADD", None)).run().err();
        let left = lab.host.sh("iptables-save -t nat");
        assert!(left.contains(":CNI-HOSTPORT-DNAT"), "it was there before: {left}");
    });
}

/// A failed second ADD of an attachment does not close the ports that the first one opened.
#[test]
fn a_repeated_add_that_fails_leaves_the_ports_of_the_first() {
    for_ours("portmap", |lab| {
        let chain = lab.chain_added(&network(), &portmap(Some("iptables"), json!([web()])));
        let more = json!({"runtimeConfig": {"portMappings": [web(), {"hostPort": 9090, "containerPort": 90}]}});
        let again = (*chain).clone().conf(more);
        with_failing_ip6tables(lab, again.call("ADD", None)).run().err();
        let _server = TcpServer::start(&chain.container, 80);
        assert_eq!(is_open(lab, 8080), [true, true]);
        chain.check(&chain.result).ok();
    });
}

/// The last ADD wins, also with other conditions or none.
#[test]
fn conditions_are_those_of_the_last_add() {
    for_ours("portmap", |lab| {
        let with_condition = |words: Value| json!({"conditionsV4": words, "conditionsV6": ["ip6", "saddr", "fd00::/8"]});
        let chain = lab.chain(
            &network(),
            &with(&portmap(None, json!([web()])), with_condition(json!(["ip saddr 192.0.2.1"]))),
        );
        let _server = TcpServer::start(&chain.container, 80);
        chain.add();
        assert_eq!(is_open(lab, 8080), [false, false]);
        (*chain).clone().conf(with_condition(json!(["ip saddr 198.51.100.0/24"]))).add();
        assert_eq!(is_open(lab, 8080), [true, false]);
        (*chain).clone().conf(json!({"conditionsV4": null, "conditionsV6": null})).add();
        assert_eq!(is_open(lab, 8080), [true, true]);
        let table = lab.host.sh("nft list table inet cni_multi_portmap");
        assert!(!table.contains("chain if"), "{table}");
    });
}

/// A table of iptables-legacy exists, but the host lacks its programs: the table cannot have rules
/// of ours.
#[test]
fn a_table_of_iptables_legacy_without_its_programs_is_no_matter() {
    for_ours("portmap", |lab| {
        if !lab.host.try_sh("iptables-legacy -t nat -S").status.success() {
            return skip("iptables-legacy");
        }
        lab.hide_iptables();
        let chain = lab.chain_added(&network(), &portmap(None, json!([web()])));
        chain.check_and_del_all(&chain.result);
    });
}

/// STATUS runs the programs, since an installed program may still fail. Containers without ports
/// need none.
#[test]
fn status_tells_of_programs_that_fail_and_is_no_error() {
    for_ours("portmap", |lab| {
        lab.host.sh("mkdir -p /run/broken && printf '#!/bin/sh\\necho no tables >&2; exit 3\\n' >/run/broken/iptables-save; chmod +x /run/broken/*");
        let of_iptables = portmap(Some("iptables"), json!([]));
        let status = in_network(lab, &of_iptables);
        assert_eq!(status.status().stderr, "");
        let told = status.call("STATUS", None).with_programs("/run/broken").run();
        told.ok();
        assert!(told.stderr.starts_with("portmap: no port can be published: "), "{told:?}");
        assert!(told.stderr.contains("no tables"), "{told:?}");
        let chain = lab.chain(&network(), &of_iptables);
        chain.call("ADD", None).with_programs("/run/broken").run().ok();
    });
}

#[test]
fn a_backend_that_is_not_there_is_an_error() {
    for_ours("portmap", |lab| {
        lab.hide_iptables();
        let chain = lab.chain(&network(), &portmap(Some("iptables"), json!([web()])));
        let before = Watch::start(lab, &[]);
        let error = chain.try_add().err();
        assert!(error.code >= 100 && error.text().contains("iptables"), "{error:?}");
        before.assert_unchanged("the failed ADD");
        chain.del();
        let status = in_network(lab, &portmap(Some("iptables"), json!([web()]))).status();
        status.ok();
        for words in ["no port can be published", "iptables"] {
            assert!(status.stderr.contains(words), "{status:?}");
        }
        in_network(lab, &portmap(None, json!([web()]))).status().ok();
    });
}
