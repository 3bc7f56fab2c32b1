//! firewall on a host whose FORWARD begins to drop after the containers are there, and the chain
//! FORWARD that ADD makes for that.

use super::*;

/// What Docker, ufw and kube-proxy do to FORWARD when they start.
const LATER: [&str; 3] = [
    DROPPING,
    "iptables-nft -P FORWARD DROP; iptables-nft -A FORWARD -i docker0 -j ACCEPT; ip6tables-nft -P FORWARD DROP",
    "for p in iptables-nft ip6tables-nft; do $p -N ufw-before-forward; $p -A FORWARD -j ufw-before-forward;
     $p -A ufw-before-forward -m conntrack --ctstate INVALID -j DROP; $p -A FORWARD -j DROP; done",
];

#[test]
fn issue_40_a_policy_that_comes_later_finds_the_accepts() {
    for later in LATER {
        for_each_peer("firewall", |lab| {
            route_from_outside(lab);
            let chain = admit(lab, &firewall(None));
            lab.host.sh(later);
            assert_admitted(lab, &chain);
            chain.check_and_del_all(&chain.result);
        });
    }
}

#[test]
fn issue_40_forward_goes_with_the_last_container() {
    for_ours("firewall", |lab| {
        let warm = lab.chain(&network(), &firewall(None));
        warm.main.del();
        let before = Watch::start(lab, &[]);
        let chains = [(); 2].map(|()| admit(lab, &firewall(None)));
        let listed =
            lab.host.sh("nft list chain ip filter FORWARD; nft list chain ip6 filter FORWARD");
        let hook = "type filter hook forward priority filter; policy accept;";
        assert_eq!(listed.matches(hook).count(), 2, "{listed}");
        chains[0].del_all();
        assert!(lab.host.sh("nft list ruleset").contains("chain FORWARD"));
        chains[1].check(&chains[1].result).ok();
        chains[1].bare().del();
        chains[1].main.del();
        before.assert_unchanged("ADD and DEL");
    });
}

/// The chain, and its table, stay as others have left them.
#[test]
fn issue_40_forward_stays_if_others_have_used_it() {
    for used in [
        "iptables-nft -P FORWARD DROP",
        "iptables-nft -A FORWARD -i docker0 -j ACCEPT",
        "iptables-nft -A CNI-ADMIN -s 192.0.2.7 -j DROP",
        "nft add chain ip filter OWN",
        "nft 'add set ip filter own { type ipv4_addr; }'",
    ] {
        for_ours("firewall", |lab| {
            let chain = admit(lab, &firewall(None));
            lab.host.sh(used);
            chain.del_all();
            let left = lab.host.sh("nft list table ip filter; iptables-nft-save");
            assert!(!left.contains("CNI-FORWARD"), "{used}: {left}");
            let words = ["policy drop", "docker0", "192.0.2.7", "OWN", "own"];
            assert!(words.iter().any(|word| left.contains(word)), "{used}: {left}");
            assert_eq!(lab.host.sh("nft list tables ip6"), "", "{used}");
        });
    }
}

/// A chain of an ADD that fails goes, one that was there before stays.
#[test]
fn issue_40_a_failed_add_leaves_no_forward() {
    for_ours("firewall", |lab| {
        let chain = lab.chain(&network(), &firewall(None));
        let before = Watch::start(lab, &[&chain.container]);
        // The rule of the second family is refused: its chain is full of nothing that can be jumped to.
        lab.host.sh("nft 'add table ip6 filter; add chain ip6 filter CNI-ADMIN { type filter hook input priority 0; }'");
        chain.try_add().err();
        assert!(!lab.host.sh("nft list ruleset").contains("FORWARD"));
        lab.host.sh("nft delete table ip6 filter");
        before.assert_unchanged("the failed ADD");
    });
}

/// The administrator has filled the chain before the first container: with iptables, or with nft on
/// a host without iptables.
#[test]
fn issue_40_the_administrator_s_chain_may_come_first() {
    let filled = format!(
        "iptables -N CNI-ADMIN; iptables -A CNI-ADMIN -d {} -j DROP; nft list ruleset",
        OUTSIDE[0]
    );
    for_each_peer("firewall", |lab| {
        route_from_outside(lab);
        lab.host.sh(&filled);
        assert_obeyed(lab, &firewall(None));
    });
    for_ours("firewall", |lab| {
        route_from_outside(lab);
        lab.hide_iptables();
        let named = with(&firewall(None), json!({"iptablesAdminChainName": "OWN"}));
        lab.host.sh(&format!(
            "nft 'add table ip filter; add chain ip filter OWN; add rule ip filter OWN ip daddr {} drop'",
            OUTSIDE[0]
        ));
        assert_obeyed(lab, &named);
        assert!(lab.host.sh("nft list ruleset").contains("chain OWN"));
        assert!(!lab.host.sh("nft list ruleset").contains("chain FORWARD"));
    });
}

/// The administrator's chain drops packets to the outside by IPv4.
fn assert_obeyed(lab: &Lab, chained: &Value) {
    let chain = admit(lab, chained);
    assert_pings(&chain.container, OUTSIDE[1]);
    assert_no_ping(&chain.container, OUTSIDE[0]);
    chain.check_and_del_all(&chain.result);
}

/// Programs for a host on which `iptables` is iptables-legacy.
const LEGACY: &str =
    "mkdir /run/own; for p in iptables ip6tables; do for s in '' -save -restore; do
    ln -s \"$(readlink -f \"$(command -v iptables-legacy)\")\" /run/own/$p$s; done; done";

/// Whether there is a table that may drop the packets is not known then.
#[test]
fn add_fails_while_the_tables_of_legacy_are_locked() {
    for_ours("firewall", |lab| {
        if !has_programs(&["iptables-legacy"]) {
            return;
        }
        lab.host.sh(LEGACY);
        lab.host.sh(
            "cd /run/own; echo '#!/bin/sh' > iptables-legacy-save; chmod +x iptables-legacy-save
            echo 'echo Another app is currently holding the xtables lock >&2; exit 4' >> iptables-legacy-save",
        );
        let chain = lab.chain(&network(), &firewall(None));
        let before = Watch::start(lab, &[&chain.container]);
        chain.call("ADD", None).with_programs("/run/own").run().fails(11, "");
        before.assert_unchanged("the failed ADD");
    });
}

/// `iptables` is iptables-legacy on this host, and has no table yet.
#[test]
fn issue_40_a_later_policy_of_legacy_finds_the_accepts() {
    for_ours("firewall", |lab| {
        route_from_outside(lab);
        lab.host.sh(LEGACY);
        let chain = lab.chain(&network(), &firewall(None));
        chain.call("ADD", Some(&chain.result)).with_programs("/run/own").run().ok();
        if !super::drop_by_legacy(lab) {
            return skip("iptables-legacy");
        }
        assert_admitted(lab, &chain);
        chain.check(&chain.result).ok();
        chain.bare().del();
        assert!(!lab.host.sh("iptables-legacy-save; ip6tables-legacy-save").contains("CNI-"));
    });
}
