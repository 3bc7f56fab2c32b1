//! firewall DEL and GC: with only the attachment's key, repeated, after the address has a new
//! owner, and for the rules of another peer.

use super::*;
use crate::plugins::meta::firewall::isolation::policy;
use crate::support::networks::bridge::static_ipam;

/// The DEL of the main plugin frees the first container's addresses, and no later DEL names them.
#[test]
fn a_second_add_without_del_removes_the_rules_of_the_first() {
    for_ours_on_a_host_that_drops(|lab, backend| {
        let first = lab.chain(&network(), &firewall(backend));
        let before = rules(lab);
        first.add();
        first.main.del();
        let result = first.main.add();
        assert_ne!(result["ips"], first.result["ips"], "the addresses are other ones");
        let second = first.clone().conf(json!({"prevResult": result}));
        second.add();
        second.check(&result).ok();
        second.conf(json!({"prevResult": null})).del();
        assert_eq!(rules(lab), before, "{backend:?}");
    });
}

/// A process on the lab's host that has a plugin's name and is not our binary.
pub struct Others(Child);

impl Others {
    pub fn begin(lab: &Lab, name: &str) -> Others {
        let program = lab.path(&format!("/run/{name}"));
        // Copied by a child process: a fork while this process holds the file open for writing
        // would make exec fail with ETXTBSY.
        lab.host.sh(&format!("cp /bin/sleep {}", program.display()));
        let others = Others(lab.host.command(program.to_str().unwrap()).arg("60").spawn().unwrap());
        lab.host.sh(&format!(
            "for n in $(seq 500); do grep -qx {name} /proc/{}/comm && exit; sleep 0.01; done; exit 1",
            others.0.id()
        ));
        others
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have exited already
        let _ = self.0.wait();
    }
}

/// During an upgrade, an ADD of the reference has found the chains, and fails at its next rule if
/// they disappear.
#[test]
fn issue_8_chains_stay_while_a_plugin_of_others_is_at_work() {
    for_ours_on_a_host_that_drops(|lab, backend| {
        let before = rules(lab);
        let (first, second) =
            (admit(lab, &firewall(backend)), lab.chain(&network(), &firewall(backend)));
        let others = Others::begin(lab, "firewall");
        first.del();
        let left = rules(lab);
        assert!(left.contains("-A FORWARD") && left.contains("-A CNI-FORWARD"), "{left}");
        assert!(!left.contains("10.10.0."), "{left}");
        drop(others);
        second.add();
        second.del();
        assert_eq!(rules(lab), before, "with {backend:?}");
    });
}

/// The address belongs to another container now: its accept rules stay.
#[test]
fn a_late_del_leaves_the_rules_of_the_address_s_new_owner() {
    for_ours_on_a_host_that_drops(|lab, backend| {
        let first = admit(lab, &firewall(backend));
        first.main.del();
        // host-local hands out addresses in turn, so this container gets a static one.
        let same = static_ipam(&network(), first.result["ips"].clone(), json!([]));
        let second = lab.chain(&same, &firewall(backend));
        assert_eq!(second.ips(), first.ips());
        second.add();
        let before = rules(lab);
        first.bare().del();
        first.del();
        assert_eq!(rules(lab), before, "with {backend:?}");
        second.check(&second.result).ok();
        second.bare().del();
        assert_closed(lab, &second);
    });
}

/// A host that drops packets, with everything that stays after DEL by contract.
fn dropping_host(lab: &Lab) -> Watch<'_> {
    lab.host.sh(DROPPING);
    warm_up(lab, &network());
    lab.host.sh("ip link del br0");
    Watch::start(lab, &[])
}

/// Without the ledger's entries, the elements' own comments name their owner.
#[test]
fn gc_finds_what_the_ledger_has_lost() {
    for_ours("firewall", |lab| {
        let before = dropping_host(lab);
        let [stale, kept] = [(); 2].map(|()| admit(lab, &policy(None, "same-bridge")));
        lab.host.sh("nft flush set inet cni_multi_firewall attachments");
        stale.gc(&[(&kept.container_id, "eth0")]).ok();
        let rules = assert_closed(lab, &stale);
        assert!(kept.ips().iter().all(|ip| rules.contains(&format!("{ip}/"))), "{rules}");
        let table = lab.host.sh("nft list table inet cni_multi_firewall");
        for element in [kept.ips()[0].as_str(), "elements = { \"br0\" comment"] {
            assert!(table.contains(element), "{table}");
        }
        kept.gc(&[]).ok();
        [stale, kept].iter().for_each(|chain| chain.main.del());
        lab.host.sh("ip link del br0");
        before.assert_unchanged("GC");
    });
}

/// DEL of the last container reads the rules, then writes: a concurrent ADD between the two must
/// keep its rules.
#[test]
fn del_of_the_last_leaves_the_rules_of_a_concurrent_add() {
    for_ours("firewall", |lab| {
        if !super::drop_by_legacy(lab) {
            return skip("iptables-legacy");
        }
        let chain = admit(lab, &firewall(None));
        lab.host.sh("mkdir /run/between; touch /run/between/iptables-legacy-restore; chmod +x /run/between/*; \
             cat > /run/between/iptables-legacy-restore <<'END'
#!/bin/sh
PATH=${PATH#/run/between:}
[ -e /run/came ] || { touch /run/came; iptables-legacy -A CNI-FORWARD -s 10.99.0.1/32 -j ACCEPT; }
exec iptables-legacy-restore \"$@\"
END");
        let outcome = chain.bare().call("DEL", None).with_programs("/run/between").run();
        assert_eq!(outcome.ok(), Value::Null);
        let rules = lab.host.sh("cat /run/came; iptables-legacy -S");
        assert!(rules.contains("-A CNI-FORWARD -s 10.99.0.1/32 -j ACCEPT"), "{rules}");
        assert!(rules.contains("-j CNI-FORWARD") && rules.contains("-j CNI-ADMIN"), "{rules}");
        assert!(!rules.contains(&chain.ips()[0]), "{rules}");
    });
}

/// A node is upgraded with containers running: ours detaches them, from the result that the
/// reference returned.
#[test]
fn what_the_reference_attached_is_checked_and_detached_by_ours() {
    if reference_with("firewall").is_none() {
        return;
    }
    for word in ["open", "same-bridge", "isolated"] {
        let lab = Lab::new(reference_with("firewall").unwrap());
        lab.host.sh(DROPPING);
        let before = rules(&lab);
        let chain = admit(&lab, &policy(None, word));
        let ours = (*chain).clone().by(&Peer::Ours);
        ours.check(&chain.result).ok();
        ours.del();
        let mut after = rules(&lab);
        if word != "open" {
            // The isolation rules do not name their owner, and the reference leaves them too. The
            // jump to CNI-FORWARD stays as well: the reference's next ADD would insert it before
            // them.
            assert!(after.contains("CNI-ISOLATION") && after.contains("-j CNI-FORWARD"), "{after}");
            assert_closed(&lab, &chain);
            lab.host.sh("for f in iptables ip6tables; do $f -F FORWARD; \
                for c in ISOLATION-STAGE-1 ISOLATION-STAGE-2 FORWARD ADMIN; do $f -F CNI-$c; done; \
                for c in ISOLATION-STAGE-1 ISOLATION-STAGE-2 FORWARD ADMIN; do $f -X CNI-$c; done; done");
            after = rules(&lab);
        }
        assert_eq!(after, before, "{word}");
    }
}

/// A rollback: the rules have the reference's format, so it removes them.
#[test]
fn what_ours_attached_is_checked_and_detached_by_the_reference() {
    let Some(reference) = reference_with("firewall") else { return };
    for backend in [None, Some("iptables")] {
        let lab = Lab::new(Peer::Ours);
        lab.host.sh(DROPPING);
        let chain = admit(&lab, &firewall(backend));
        let back = (*chain).clone().by(&reference);
        back.check(&chain.result).ok();
        back.del();
        let rules = rules(&lab);
        assert!(!rules.contains("10.10.0.2") && !rules.contains("2001:db8"), "{rules}");
        chain.bare().del();
        assert_no_table(&lab);
    }
}

/// DEL removes the rules of any backend: the configuration may change while containers run.
#[test]
fn del_removes_what_another_backend_has_made() {
    for_ours("firewall", |lab| {
        let before = dropping_host(lab);
        for (made_by, removed_by) in
            [("iptables", "nftables"), ("nftables", "iptables"), ("iptables", "firewalld")]
        {
            let chain = admit(lab, &firewall(Some(made_by)));
            chain.bare().conf(json!({"backend": removed_by})).del();
            chain.main.del();
            lab.host.sh("ip link del br0");
            before.assert_unchanged(made_by);
        }
    });
}

/// Chains of ours that a foreign rule refers to, or that hold a foreign rule, stay.
#[test]
fn chains_that_others_use_stay() {
    for_ours("firewall", |lab| {
        lab.host.sh(DROPPING);
        let chain = admit(lab, &firewall(None));
        lab.host.sh("iptables -A OUTPUT -j CNI-FORWARD; ip6tables -A CNI-FORWARD -s 2001:db8:77::1 -j ACCEPT");
        chain.bare().del();
        assert!(lab.host.sh("iptables -S").contains("-A OUTPUT -j CNI-FORWARD"));
        assert!(lab.host.sh("ip6tables -S").contains("2001:db8:77::1"));
    });
}

/// iptables-restore rewrites all rules, with handles other than the recorded ones.
#[test]
fn rules_that_were_written_anew_are_found_all_the_same() {
    for_ours("firewall", |lab| {
        lab.host.sh(DROPPING);
        // More rules than DEL reads as a whole chain anyway: it has to use the recorded handles.
        let chains: Vec<Chain<'_>> = (0..20).map(|_| admit(lab, &firewall(None))).collect();
        lab.host.sh("iptables-save | tac | sed -n '/^-A CNI-FORWARD/p' > /run/rules; iptables -F CNI-FORWARD; \
            (echo '*filter'; cat /run/rules; echo COMMIT) | iptables-restore --noflush");
        for (at, chain) in chains.iter().enumerate().take(3) {
            chain.check(&chain.result).ok();
            chain.bare().del();
            let rules = assert_closed(lab, chain);
            assert_eq!(rules.matches("-j ACCEPT").count(), 4 * (chains.len() - at - 1), "{rules}");
        }
    });
}
