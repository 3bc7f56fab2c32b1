//! firewall ADD that fails: an error with the path of what is wrong, and everything as it was.

use serde_json::{Value, json};

use super::{DROPPING, firewall, network};
use crate::plugins::main::bridge::failed_add::Case;
use crate::support::attachment::{for_each_peer, for_ours, with};
use crate::support::call::Peer;
use crate::support::netns::Lab;
use crate::support::snapshot::Watch;

fn cases() -> Vec<Case> {
    let name = |what, name: &str, names| Case::new(what, json!({"iptablesAdminChainName": name}), 7, names);
    let first = |interface: Value| json!({"ingressPolicy": "same-bridge", "prevResult": {"interfaces": [interface]}});
    vec![
        Case::new("unknown backend", json!({"backend": "ipfw"}), 7, "backend: unknown backend \"ipfw\""),
        Case::new("backend is a number", json!({"backend": 1}), 6, "backend").reference_leaves_nothing(),
        Case::new(
            "unknown policy",
            json!({"ingressPolicy": "closed"}),
            7,
            "ingressPolicy: unknown ingress policy \"closed\"",
        ),
        name("chain name too long", "a-chain-name-of-29-characters", "iptablesAdminChainName"),
        name("rules in the name", "X\n-A INPUT -j ACCEPT", "iptablesAdminChainName"),
        name("options in the name", "ACCEPT -m comment", "iptablesAdminChainName"),
        name("a verdict as the name", "ACCEPT", "iptablesAdminChainName"),
        name("our own chain as the name", "CNI-FORWARD", "iptablesAdminChainName"),
        name("name begins with a dash", "-j", "iptablesAdminChainName"),
        Case::new("hostile zone", json!({"firewalldZone": "trusted\", \"drop"}), 7, "firewalldZone"),
        Case::new("NUL in the zone", json!({"firewalldZone": "a\u{0}b"}), 7, "firewalldZone"),
        Case::new("no result", json!({"prevResult": null}), 7, "prevResult").reference_leaves_nothing(),
        Case::new(
            "no interface",
            json!({"ingressPolicy": "isolated", "prevResult": {"interfaces": []}}),
            7,
            "prevResult.interfaces",
        ),
        Case::new("bridge without a name", first(json!({"name": ""})), 7, "prevResult.interfaces[0].name"),
        Case::new(
            "bridge with a long name",
            first(json!({"name": "a-name-of-16-byte"})),
            7,
            "prevResult.interfaces[0].name",
        ),
        Case::new("no firewalld", json!({"backend": "firewalld"}), 105, "firewalld").reference_leaves_nothing(),
    ]
}

fn assert_refused(lab: &Lab, case: &Case) {
    let chain = lab.chain(&network(), &with(&firewall(None), json!({})));
    lab.host.sh(DROPPING);
    let before = Watch::start(lab, &[&chain.container]);
    let error = chain.clone().conf(case.changes.clone()).try_add().err();
    let changes = before.changes_now();
    if lab.peer == Peer::Ours {
        assert_eq!(changes, "", "left after \"{}\"", case.what);
        assert_eq!(error.code, case.code, "{}: {error:?}", case.what);
        assert!(error.text().contains(case.names), "{}: {error:?}", case.what);
    } else if !case.reference_leaves_something {
        assert_eq!(changes, "", "left after \"{}\"", case.what);
    }
}

#[test]
fn add_fails_and_nothing_has_changed() {
    for case in cases() {
        if case.reference_leaves_something {
            for_ours("firewall", |lab| assert_refused(lab, &case));
        } else {
            for_each_peer("firewall", |lab| assert_refused(lab, &case));
        }
    }
}

/// To iptables `br+` is every link that begins with `br`; to the kernel it is a name like any other.
#[test]
fn a_bridge_whose_name_is_a_pattern_is_no_pattern() {
    for_ours("firewall", |lab| {
        let main = with(&network(), json!({"bridge": "br+"}));
        let chain = lab.chain(&main, &with(&firewall(Some("iptables")), json!({"ingressPolicy": "isolated"})));
        let before = Watch::start(lab, &[&chain.container]);
        let error = chain.try_add().err();
        assert_eq!(error.code, 7, "{error:?}");
        assert!(error.text().contains("prevResult.interfaces[0].name: \"br+\""), "{error:?}");
        before.assert_unchanged("the refused ADD");
        let native = chain.clone().conf(json!({"backend": "nftables"}));
        native.add();
        native.check(&chain.result).ok();
        native.del();
        before.assert_unchanged("ADD and DEL");
    });
}

/// The last step fails: the program that lists is there, and the one that writes is not.
#[test]
fn what_was_done_before_a_program_failed_is_undone() {
    for_ours("firewall", |lab| {
        lab.host.sh(DROPPING);
        lab.host.sh("printf '#!/bin/sh\\nexit 3\\n' > /run/fails; chmod +x /run/fails; \
            mount --bind /run/fails $(readlink -f $(command -v ip6tables-restore))");
        let is_one_program = lab.host.try_sh("iptables-save").status.success();
        let chain = lab.chain(&network(), &firewall(Some("iptables")));
        let before = lab.host.sh("nft list ruleset");
        let error = chain.try_add().err();
        assert_eq!(error.code, 105, "{error:?}");
        assert!(error.text().contains("tables"), "{error:?} {is_one_program}");
        assert_eq!(lab.host.sh("nft list ruleset"), before);
    });
}

#[test]
fn status_says_what_is_missing() {
    for_ours("firewall", |lab| {
        let status = |conf: Value| {
            let conf = with(&conf, json!({"name": "net1", "cniVersion": "1.1.0"}));
            lab.attach(&lab.container(), &conf).status()
        };
        for backend in [None, Some("nftables"), Some("iptables")] {
            status(firewall(backend)).ok();
        }
        let error = status(firewall(Some("firewalld"))).err();
        assert_eq!(error.code, 50, "{error:?}");
        assert!(error.text().contains("firewalld"), "{error:?}");
        lab.hide_iptables();
        lab.host.sh("for f in iptables-save; do mount --bind /dev/null $(readlink -f $(command -v $f)) || true; done");
        let error = status(firewall(Some("iptables"))).err();
        assert_eq!(error.code, 50, "{error:?}");
        assert!(error.text().contains("iptables"), "{error:?}");
        status(firewall(None)).ok();
    });
}
