//! sbr DEL, GC, and the rules that other versions made.

use super::*;

/// sbr as a runtime calls it after losing all state except the network's configuration.
fn bare<'a>(sbr: &Attachment<'a>) -> Attachment<'a> {
    sbr.clone().conf(json!({"prevResult": null}))
}

#[test]
fn del_removes_its_rules_and_routes_and_no_other() {
    for_ours("sbr", |lab| {
        let (container, sbr) = two_uplinks(lab, json!({}));
        // Foreign rules for the same address, and a table of another interface.
        container.sh("ip rule add from 10.20.0.2 fwmark 1 lookup 77; ip rule add from 10.20.0.0/24 lookup 78; \
             ip rule add from 10.20.0.2 iif net1 lookup 100; \
             ip route add 10.66.0.0/16 dev net1 table 77; ip route add 10.66.0.0/16 dev eth0 table 105");
        let others = rules(&container);
        sbr.add();
        assert_eq!(rules(&container).len(), others.len() + 2);
        container.sh(
            "ip rule add from 10.20.0.2 lookup 300; ip route add 10.67.0.0/16 dev eth0 table 101",
        );
        let table = |number: &str| routes(&container, 4, number, "net1");
        assert_eq!(table("101"), ["10.20.0.0/24", "10.77.0.0/16", "default"], "100 is in use");
        bare(&sbr).del();
        let left = rules(&container);
        assert_eq!(left.len(), others.len() + 1, "{left:?}");
        assert!(left.contains(&pair("10.20.0.2", "300")), "{left:?}");
        assert_eq!(table("101"), [""; 0]);
        assert_eq!(table("77"), ["10.66.0.0/16"]);
        assert_eq!(routes(&container, 4, "101", "eth0"), ["10.67.0.0/16"]);
    });
}

/// No record names the owner of a rule of the reference to a table that others share, so DEL leaves it. A rule to a
/// table that the configuration names is removed.
#[test]
fn what_one_peer_attaches_the_other_detaches() {
    let shared = "ip route add 10.66.0.0/16 dev eth0 table";
    for_reference("sbr", |lab| {
        let reference = lab.peer.clone();
        for (by, to, keys, table, in_between, left) in [
            (&reference, &Peer::Ours, json!({}), "100", String::new(), 0),
            (&reference, &Peer::Ours, json!({"table": 5000}), "5000", String::new(), 0),
            (&Peer::Ours, &reference, json!({}), "100", String::new(), 0),
            (&Peer::Ours, &reference, json!({"table": 5000}), "5000", String::new(), 0),
            (&reference, &Peer::Ours, json!({}), "100", format!("{shared} 100"), 1),
            (&reference, &Peer::Ours, json!({"table": 5000}), "5000", format!("{shared} 5000"), 0),
        ] {
            let (container, sbr) = two_uplinks(lab, keys);
            sbr.clone().by(by).add();
            let added = rules(&container);
            assert_eq!((added.len(), &*added[0].1), (2, table));
            container.sh(&in_between);
            sbr.clone().by(to).del();
            let what = format!("attached by {by:?}, table {table}, {in_between:?}");
            assert_eq!(rules(&container), added[..left], "{what}");
            if !in_between.is_empty() {
                assert_eq!(routes(&container, 4, table, "eth0"), ["10.66.0.0/16"], "{what}");
            } else if *to == Peer::Ours {
                assert_eq!(routes(&container, 4, "100", "net1"), [""; 0], "{what}");
                sbr.clone().by(to).del();
            }
            lab.attach(&container, &first()).del();
            sbr.main.del();
        }
    });
}

#[test]
fn del_removes_the_rules_of_every_add() {
    for_ours("sbr", |lab| {
        for tables in
            [[json!({"table": 5000}), json!({"table": 6000})], [json!({}), json!({"table": 5000})]]
        {
            crate::support::networks::bridge::warm_up(lab, &first());
            let (container, sbr) = two_uplinks(lab, json!({}));
            for table in tables {
                sbr.clone().conf(table).add();
            }
            assert_eq!(rules(&container).len(), 4);
            bare(&sbr).del();
            assert_eq!(rules(&container), []);
            assert_eq!(routes(&container, 4, "100", "net1"), [""; 0]);
            lab.attach(&container, &first()).del();
            sbr.main.del();
        }
    });
}

/// The reference's DEL of an attachment of ours.
const THEIR_DEL: &str = "ip rule del from 10.20.0.2; ip -6 rule del from 2001:db8:20::2";
/// The reference's ADD of the attachment, with another address.
const THEIR_ADD: &str = "ip addr add 10.20.0.7/24 dev net1; ip link set net1 up
    ip route add 10.78.0.0/16 dev net1 table 100; ip rule add from 10.20.0.7 lookup 100 protocol 0";

/// A rollback in between: the record is of before, and the reference has attached the container
/// again.
#[test]
fn del_finds_what_the_reference_made_after_a_rollback() {
    for_ours("sbr", |lab| {
        let (container, sbr) = two_uplinks(lab, json!({}));
        sbr.add();
        container.sh(&format!(
            "{THEIR_DEL}; ip link del net1; ip link add net1 type veth peer name other
             ip link set other up; {THEIR_ADD}"
        ));
        container.sh("ip rule add from 10.20.0.7 lookup 300 protocol static"); // not the reference's
        bare(&sbr).del();
        assert_eq!(rules(&container), [pair("10.20.0.7", "300")]);
        assert_eq!(routes(&container, 4, "100", "net1"), [""; 0]);
    });
}

/// The same in another namespace, as after a restart of the container. CNI_NETNS alone may lead to
/// another container's.
#[test]
fn del_finds_what_the_reference_made_in_another_namespace() {
    for_ours("sbr", |lab| {
        for (address, left) in [("10.20.0.2/24", 1), ("10.20.0.7/24", 0)] {
            let (_earlier, sbr) = two_uplinks(lab, json!({}));
            sbr.add();
            let container = lab.container();
            container.sh("ip link add net1 type veth peer name other; ip link set other up");
            container.sh(THEIR_ADD);
            let mut late = sbr.clone().netns(Some(&container.netns));
            late.conf["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [{"address": address}]});
            late.del();
            assert_eq!(rules(&container).len(), left, "the last result has {address}");
        }
    });
}

#[test]
fn an_add_forgets_rules_that_the_reference_s_del_has_removed() {
    for_ours("sbr", |lab| {
        let (container, sbr) = two_uplinks(lab, json!({}));
        sbr.add();
        container.sh(&format!(
            "{THEIR_DEL}; ip route flush table 100; ip addr flush dev net1; ip addr add 10.20.0.9/24 dev net1"
        ));
        let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.20.0.9/24"}]});
        let mut again = sbr.clone();
        again.conf["prevResult"] = result;
        again.add();
        let kept = lab.host.sh("cat /run/cni/sbr/*");
        assert!(kept.contains("10.20.0.9") && !kept.contains("10.20.0.2\""), "{kept}");
        again.del();
        assert_eq!(rules(&container), []);
    });
}

/// ADD has refused because of the reference's rule, and the reference has attached the container
/// again since.
#[test]
fn a_refusal_of_before_a_rollback_spares_no_rule() {
    for_ours("sbr", |lab| {
        let (container, sbr) = two_uplinks(lab, json!({}));
        container.sh("ip rule add from 10.20.0.2 lookup 100 protocol 0");
        assert_eq!(sbr.try_add().err().code, 102);
        bare(&sbr).del();
        assert_eq!(rules(&container).len(), 1, "it was there before the refused ADD");
        assert_eq!(sbr.try_add().err().code, 102);
        container.sh("ip rule del from 10.20.0.2; ip link del net1
            ip link add net1 type veth peer name other; ip link set other up");
        container.sh(THEIR_ADD);
        bare(&sbr).del();
        assert_eq!(rules(&container), []);
    });
}
