//! firewall ADD that fails: the error names the faulty key, and host and container are unchanged.

use super::*;
use crate::plugins::meta::firewall::isolation::policy;

const FAILING: &str = r#"
unknown backend | {"backend": "ipfw"} | 7: backend: "ipfw" is unknown
backend is a number | {"backend": 1} | 6: backend | both
chain name too long | {"iptablesAdminChainName": "a-chain-name-of-29-characters"} | 7: iptablesAdminChainName
rules in the name | {"iptablesAdminChainName": "X\n-A INPUT -j ACCEPT"} | 7: iptablesAdminChainName
options in the name | {"iptablesAdminChainName": "ACCEPT -m comment"} | 7: iptablesAdminChainName
a verdict as the name | {"iptablesAdminChainName": "ACCEPT"} | 7: iptablesAdminChainName
a target as the name | {"iptablesAdminChainName": "LOG"} | 7: iptablesAdminChainName
another table's chain as the name | {"iptablesAdminChainName": "PREROUTING"} | 7: iptablesAdminChainName
our own chain as the name | {"iptablesAdminChainName": "CNI-FORWARD"} | 7: iptablesAdminChainName
name begins with a dash | {"iptablesAdminChainName": "-j"} | 7: iptablesAdminChainName
unknown policy | {"ingressPolicy": "closed"} | 7: unknown ingress policy: "closed"
hostile zone | {"firewalldZone": "trusted\", \"drop"} | 7: firewalldZone
long zone | {"firewalldZone": "a-zone-with-a-name-of-33-letters-"} | 7: firewalldZone
NUL in the zone | {"firewalldZone": "a\u0000b"} | 7: firewalldZone
no result | {"prevResult": null} | 7: prevResult | both
no interface | {"ingressPolicy": "isolated", "prevResult": {"interfaces": []}} | 7: prevResult.interfaces
bridge without a name | {"ingressPolicy": "same-bridge", "prevResult": {"interfaces": [{"name": ""}]}} | 7: prevResult.interfaces[0].name
bridge with a long name | {"ingressPolicy": "same-bridge", "prevResult": {"interfaces": [{"name": "a-name-of-16-byte"}]}} | 7: prevResult.interfaces[0].name
no firewalld | {"backend": "firewalld"} | 105: firewalld | both
"#;

/// The reference writes special characters into rules: `br+` is every bridge with that prefix.
#[test]
fn add_fails_and_nothing_has_changed() {
    for case in rows(FAILING) {
        let is_refused = |lab: &Lab| {
            let chain = lab.chain(&network(), &firewall(None));
            lab.host.sh(DROPPING);
            assert_fails_at(lab, &chain.container, &chain, &case);
        };
        if case.reference_leaves_something {
            for_ours("firewall", is_refused);
        } else {
            for_each_peer("firewall", is_refused);
        }
    }
}

/// To iptables `br+` means every link with a name in `br…`; to the kernel it is a name like
/// any other.
#[test]
fn a_bridge_name_that_looks_like_a_pattern_is_literal() {
    for_ours("firewall", |lab| {
        let main = with(&network(), json!({"bridge": "br+"}));
        let chain = lab.chain(&main, &policy(Some("iptables"), "isolated"));
        let before = Watch::start(lab, &[&chain.container]);
        chain.try_add().fails(7, "prevResult.interfaces[0].name: \"br+\"");
        before.assert_unchanged("the refused ADD");
        let native = chain.clone().conf(json!({"backend": "nftables"}));
        native.add();
        native.check(&chain.result).ok();
        native.del();
        before.assert_unchanged("ADD and DEL");
    });
}

/// The chains that the reference leaves after the last container is gone.
const EMPTY_CHAINS: &str = r#"for f in iptables-nft ip6tables-nft; do
    $f -N CNI-ADMIN; $f -N CNI-FORWARD
    $f -I FORWARD 1 -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
    $f -A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
done"#;

/// Puts a program of this name that always fails into `/run/fails`.
fn failing(lab: &Lab, program: &str) {
    lab.host.sh(&format!(
        "mkdir -p /run/fails; printf '#!/bin/sh\\necho this one fails >&2\\nexit 3\\n' > /run/fails/{program}; \
         chmod +x /run/fails/{program}"
    ));
}

/// Runs ADD with the failing program: ADD called it, failed, and changed nothing.
#[track_caller]
fn assert_undone(lab: &Lab, attachment: &Attachment<'_>, what: &str) {
    let before = Watch::start(lab, &[]);
    let outcome = attachment.call("ADD", None).with_programs("/run/fails").run();
    before.assert_unchanged(what);
    let error = outcome.fails(105, "this one fails");
    assert!(!error.text().contains("undo"), "{what}: {error:?}");
}

/// IPv4 succeeds and IPv6 fails; or iptables-legacy fails after the rules of iptables-nft are set over netlink. Existing
/// chains and their jumps stay. The reference leaves its changes.
#[test]
fn what_was_done_before_a_program_failed_is_undone() {
    for (program, backend, word) in [
        ("ip6tables-restore", Some("iptables"), "open"),
        ("ip6tables-restore", Some("iptables"), "isolated"),
        ("ip6tables-legacy-restore", None, "open"),
    ] {
        for host in [DROPPING.to_owned(), format!("{DROPPING}; {EMPTY_CHAINS}")] {
            for_ours("firewall", |lab| {
                lab.host.sh(&host);
                if backend.is_none() && !super::drop_by_legacy(lab) {
                    return skip("iptables-legacy");
                }
                failing(lab, program);
                let chain = lab.chain(&network(), &policy(backend, word));
                assert_undone(lab, &chain, "the first ADD of the host");
                let neighbour = admit(lab, &policy(backend, word));
                assert_undone(lab, &chain, "another one");
                neighbour.check(&neighbour.result).ok();
                chain.add();
                chain.check(&chain.result).ok();
            });
        }
    }
}

/// An address belongs to its earlier owner until the ADD of the next one, or its own second one,
/// succeeds: the owner's packets pass throughout, and its DEL finds its rules.
#[test]
fn a_failed_add_gives_the_addresses_of_another_back() {
    for_ours_on_a_host_that_drops(|lab, backend| {
        route_from_outside(lab);
        let chain = admit(lab, &policy(backend, "same-bridge"));
        let next = (*chain).clone().id("the-next-container");
        let before = Watch::start(lab, &[]);
        next.clone().conf(json!({"backend": "firewalld"})).try_add().fails(105, "");
        before.assert_unchanged("ADD without firewalld");

        failing(lab, "ip6tables-restore");
        let rule = format!("CNI-FORWARD -s {}/128 -j ACCEPT", chain.ips()[1]);
        lab.host.sh(&format!("ip6tables -D {rule}"));
        for again in [&next, &*chain] {
            let again = again.clone().conf(json!({"backend": "iptables"}));
            assert_undone(lab, &again, &format!("ADD of {}", again.container_id));
        }
        lab.host.sh(&format!("ip6tables -A {rule}; rm -r /run/fails"));
        assert_admitted(lab, &chain);
        chain.check(&chain.result).ok();
        next.clone().conf(json!({"prevResult": null})).del();
        before.assert_unchanged("DEL of the next one");
        chain.bare().del();
        assert!(!lab.host.sh("nft list ruleset").contains(&format!("{} ", chain.ips()[0])));
        assert_no_table(lab);
    });
}

/// Isolation needs our table even where firewalld accepts packets; on a kernel without nf_tables
/// ADD and CHECK fail.
#[test]
fn isolation_without_nf_tables_is_an_error() {
    for_ours("firewall", |lab| {
        let chain = lab.chain(&network(), &policy(Some("firewalld"), "isolated"));
        let inject =
            ["strace", "-f", "-o", "/dev/null", "-e", "inject=socket:error=EPROTONOSUPPORT"];
        for command in ["ADD", "CHECK"] {
            let mut call = chain.call(command, None);
            call.wrapper.extend(inject.map(str::to_owned));
            let error = call.run().err();
            assert!(error.msg.starts_with("ingressPolicy \"isolated\""), "{command}: {error:?}");
        }
    });
}

/// The reference's STATUS always succeeds.
#[test]
fn status_says_what_is_missing() {
    for_ours("firewall", |lab| {
        let status = |backend: Option<&str>| in_network(lab, &firewall(backend)).status();
        for backend in [None, Some("nftables"), Some("iptables")] {
            status(backend).ok();
        }
        status(Some("firewalld")).fails(50, "firewalld");
        lab.hide_iptables();
        lab.host.sh("mount --bind /dev/null $(readlink -f $(command -v iptables-save)) || true");
        status(Some("iptables")).fails(50, "iptables");
        status(None).ok();
    });
}
