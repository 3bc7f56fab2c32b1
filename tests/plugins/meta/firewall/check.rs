//! firewall CHECK: the error names the missing rule.

use super::*;
use crate::plugins::meta::firewall::isolation::policy;

/// The command that removes a rule, and the words that the error must contain.
const REMOVED: &str = r#"
iptables -D CNI-FORWARD -s 10.10.0.2/32 -j ACCEPT | -s 10.10.0.2/32 -j ACCEPT
iptables -D CNI-FORWARD -d 10.10.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT | -d 10.10.0.2/32 -m conntrack
ip6tables -D CNI-FORWARD -s 2001:db8:10::2/128 -j ACCEPT | -s 2001:db8:10::2/128
iptables -F CNI-FORWARD | CNI-FORWARD
iptables -F FORWARD | -A FORWARD
ip6tables -D CNI-FORWARD 1 | CNI-ADMIN
iptables -F | CNI-FORWARD
"#;

/// CHECK fails after the change on the host, ours with an error that contains all the words. An ADD
/// of ours puts back what is missing.
fn assert_named_and_repaired(lab: &Lab, chain: &Chain<'_>, change: &str, words: &[&str]) {
    eprintln!("{change}:");
    chain.check(&chain.result).ok();
    lab.host.sh(change);
    let error = chain.check(&chain.result).err();
    if lab.peer == Peer::Ours {
        assert_eq!(error.code, 103, "{change}: {error:?}");
        assert!(words.iter().all(|word| error.text().contains(word)), "{change}: {error:?}");
        chain.add();
        chain.check(&chain.result).ok();
    }
}

#[test]
fn what_is_missing_in_the_tables_of_iptables_is_named() {
    for backend in [None, Some("iptables")] {
        for [remove, names] in cells(REMOVED) {
            for_each_peer("firewall", |lab| {
                lab.host.sh(DROPPING);
                let chain = admit(lab, &firewall(backend));
                assert_named_and_repaired(lab, &chain, remove, &[names]);
            });
        }
    }
}

/// The reference creates missing chains and continues.
#[test]
fn a_failing_check_changes_nothing() {
    for_ours_on_a_host_that_drops(|lab, backend| {
        let chain = admit(lab, &firewall(backend));
        lab.host.sh("iptables -F; iptables -X");
        let rules = || lab.host.sh("iptables-save | grep -v '^#'"); // its comments contain the time
        let before = rules();
        chain.check(&chain.result).fails(103, "");
        assert_eq!(rules(), before, "{backend:?}");
        chain.del_all();
    });
}

#[test]
fn what_is_missing_in_our_table_is_named() {
    for_ours("firewall", |lab| {
        for (element, names) in [
            ("containers4 '{ 10.10.0.2 }'", "10.10.0.2"),
            ("bridges '{ \"br0\" }'", "\"br0\""),
            ("isolated '{ \"br0\" . \"br0\" }'", "\"isolated\""),
        ] {
            let chain = admit(lab, &policy(None, "isolated"));
            let own = |text: &str| text.replace("10.10.0.2", &chain.ips()[0]);
            let remove = format!("nft delete element inet cni_multi_firewall {}", own(element));
            assert_named_and_repaired(lab, &chain, &remove, &[&own(names)]);
            chain.del_all();
        }
    });
    // Docker was installed after the container: its table drops, and has no rules of ours.
    for_ours("firewall", |lab| {
        let chain = admit_without_iptables(lab);
        assert_named_and_repaired(lab, &chain, DROPPING, &["ip filter", "CNI-FORWARD"]);
        chain.del_all();
    });
    for_ours("firewall", |lab| {
        if !super::drop_by_legacy(lab) {
            return skip("iptables-legacy");
        }
        let chain = admit(lab, &firewall(None));
        let remove = "ip6tables-legacy -D CNI-FORWARD -s 2001:db8:10::2/128 -j ACCEPT";
        assert_named_and_repaired(lab, &chain, remove, &["2001:db8:10::2/128"]);
    });
}

/// A container of a host without iptables, which is installed then.
fn admit_without_iptables(lab: &Lab) -> Chain<'_> {
    lab.hide_iptables();
    let chain = admit(lab, &firewall(None));
    lab.show_iptables();
    chain
}

/// The iptables rules of another container created this table, and it remains when they are
/// removed. It drops no foreign packets.
#[test]
fn a_later_table_that_accepts_everything_passes_check() {
    for_ours("firewall", |lab| {
        route_from_outside(lab);
        let chain = admit_without_iptables(lab);
        let other = lab.chain_added(&other_network(), &policy(Some("iptables"), "same-bridge"));
        chain.check(&chain.result).ok();
        other.del_all();
        assert!(lab.host.sh("iptables-nft -S").contains("-P FORWARD ACCEPT"));
        OUTSIDE.iter().for_each(|outside| assert_pings(&chain.container, outside));
        chain.check_and_del_all(&chain.result);
    });
}

/// The rules that kube-proxy and Calico put into a FORWARD that they have made, with policy accept.
const PASSING: &str = r#"for f in iptables ip6tables; do $f$1-restore <<'END'
*filter
:FORWARD ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
:cali-FORWARD - [0:0]
:cali-from-wl-dispatch - [0:0]
-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-FORWARD -m comment --comment "cali:vjrMJCRpqwy5oRoX" -j MARK --set-xmark 0x0/0xe0000
-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch
-A cali-from-wl-dispatch -m comment --comment "cali:zTj6P0TIgYvgz-md" -j DROP
COMMIT
END
done"#;

/// What others put into a table that ADD has made no rules in: healthy until it drops.
fn assert_judged_by_packets(lab: &Lab, variant: &str) {
    route_from_outside(lab);
    let chain = admit_without_iptables(lab);
    let check = || chain.check(&chain.result);
    for (passing, dropping) in [
        ("iptables$1 -L; ip6tables$1 -L", "ip6tables$1 -P FORWARD DROP"),
        ("iptables$1 -L", "iptables$1 -A FORWARD -s 10.10.0.0/16 -j DROP"),
        (PASSING, "iptables$1 -I FORWARD 3 -s 10.10.0.0/16 -j REJECT"),
        (PASSING, "iptables$1 -P FORWARD DROP"),
        ("iptables$1 -A FORWARD -i docker0 -j DROP", "iptables$1 -I FORWARD -o br0 -j DROP"),
        ("iptables$1 -A FORWARD -j ACCEPT; iptables$1 -P FORWARD DROP", "iptables$1 -F FORWARD"),
    ] {
        let host = |script: &str| drop(lab.host.sh(&script.replace("$1", variant)));
        host(passing);
        OUTSIDE.iter().for_each(|outside| assert_pings(&chain.container, outside));
        check().ok();
        eprintln!("{dropping}:");
        host(dropping);
        assert_eq!(check().err().code, 103, "{variant}: {dropping}");
        host("for f in iptables ip6tables; do $f$1 -P FORWARD ACCEPT; $f$1 -F; $f$1 -X; done");
        check().ok();
    }
    chain.del_all();
}

#[test]
fn issue_40_rules_of_others_that_pass_all_pass_check() {
    for_ours("firewall", |lab| assert_judged_by_packets(lab, "-nft"));
    for_ours("firewall", |lab| {
        if !lab.host.try_sh("iptables-legacy -L && ip6tables-legacy -L").status.success() {
            return skip("iptables-legacy");
        }
        assert_judged_by_packets(lab, "-legacy");
    });
}

/// CHECK searched the whole listing for each rule, and an ADD of that many rules hung: the kernel's
/// acknowledgements overran the socket buffer.
#[test]
fn issue_17_check_of_many_addresses_takes_a_time_in_proportion() {
    for_ours("firewall", |lab| {
        lab.host.sh(DROPPING);
        let chain = admit(lab, &firewall(None));
        let seconds = |count: u32| {
            let ips: Vec<_> = (0..count)
                .map(|n| json!({"address": format!("10.11.{}.{}/16", n / 256, n % 256)}))
                .collect();
            let result = with(&chain.result, json!({"ips": ips}));
            let many = chain.also(&firewall(None)).conf(json!({"prevResult": result}));
            many.add();
            let start = std::time::Instant::now();
            many.check(&result).ok();
            let taken = start.elapsed().as_secs_f64();
            many.del();
            taken
        };
        // Ten times as many rules took a hundred times as long.
        let (few, many) = (seconds(500), seconds(5_000));
        assert!(many < 40.0 * few.max(0.05), "{few} s for 500, {many} s for 5000");
    });
}
