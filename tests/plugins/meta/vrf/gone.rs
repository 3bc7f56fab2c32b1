//! vrf DEL and GC when the interface, VRF or namespace is missing, or has another owner.

use super::*;
use crate::support::synced;

/// vrf as a runtime calls it after losing all state except the network's configuration.
fn bare<'a>(vrf: &Attachment<'a>) -> Attachment<'a> {
    vrf.clone().conf(json!({"prevResult": null}))
}

#[test]
fn del_takes_not_there_as_done() {
    let losses = [
        ("VRF gone", "ip link del blue"),
        ("out of the VRF", "ip link set net1 nomaster"),
        ("both gone", "ip link del net1; ip link del blue"),
    ];
    for_each_peer("vrf", |lab| {
        for (what, script) in losses {
            let Some(container) = container(lab) else { return };
            let member = in_blue(lab, &container);
            member.add();
            container.sh(script);
            bare(&member).del();
            assert!(container.link("blue").is_none(), "{what}");
            bare(&member).del();
            member.main.del();
        }
    });
}

#[test]
fn a_vrf_of_others_stays() {
    // The reference removes the VRF; see tests/differences.
    for_ours("vrf", |lab| {
        let Some(container) = container(lab) else { return };
        container.sh("ip link add blue up type vrf table 20");
        let before = Watch::start(lab, &[&container]);
        let member = in_blue(lab, &container);
        bare(&member).del(); // never added
        assert!(container.link("blue").is_some());
        member.add();
        assert_eq!(master(&container, "net1"), "blue");
        member.del();
        member.del();
        member.main.del();
        lab.host.sh("ip link del br1");
        before.assert_unchanged("ADD");
    });
}

/// A runtime calls DEL after a refused ADD. The interface was in the VRF before.
#[test]
fn del_after_a_refused_add_leaves_the_vrf_and_its_interface() {
    for_ours_in_blue(|lab, container, member| {
        container.sh("ip link add blue up type vrf table 20; ip link set net1 master blue");
        let before = Watch::start(lab, &[container]);
        for again in [1, 2] {
            assert_eq!(member.try_add().err().code, 102, "{again}");
        }
        member.del();
        before.assert_unchanged("the refused ADD");
    });
}

/// A rollback in between: the record is of before, and the reference has attached the container
/// again, with a VRF of its own.
#[test]
fn del_leaves_the_vrf_that_the_reference_made_after_a_rollback() {
    for_ours_in_blue(|_, container, member| {
        for link in ["ip link del net1; ip link add net1 type veth peer name other", "true"] {
            member.add();
            container.sh(&format!(
                "ip link set net1 nomaster; ip link del blue; {link}
                 ip link add blue type vrf table 10; ip link set blue up; ip link set net1 master blue"
            ));
            bare(member).del();
            assert!(container.link("blue").is_none(), "{link}");
            assert_eq!(master(container, "net1"), json!(null), "{link}");
        }
    });
}

/// The master of the container's own choice stays.
#[test]
fn another_master_stays() {
    for_ours("vrf", |lab| {
        if container(lab).is_none() {
            return;
        }
        let vrf = json!({"type": "vrf", "vrfname": "blue"});
        let synced = synced::attach(lab, &[network(1, 2), vrf], "");
        synced.container.sh("ip link add red type vrf table 66; ip link set eth0 master red");
        let outcome = synced.net("sync pods");
        assert_eq!(outcome.status, 1, "{outcome:?}");
        assert!(format!("{outcome:?}").contains("already a master"), "{outcome:?}");
        assert_eq!(master(&synced.container, "eth0"), "red");
    });
}
