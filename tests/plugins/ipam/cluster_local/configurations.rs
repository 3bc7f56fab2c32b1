//! A network whose configurations differ: in their ranges, and in their realms.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::cluster::{Held, WAYS_OUT, beside_daemon};
use crate::support::attachment::{for_ours, ips, with};
use crate::support::held::DATA;
use crate::support::netns::Lab;
#[cfg(feature = "cluster")]
use crate::support::node::Node;

fn whereabouts(ipam: Value) -> Value {
    json!({"cniVersion": "1.1.0", "name": "pods", "type": "whereabouts",
        "ipam": with(&json!({"type": "whereabouts"}), ipam)})
}

/// The network's file of blocks.
fn file(lab: &Lab) -> Value {
    let text = lab.host.sh(&format!("cat {DATA}/pods/blocks.json"));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn configurations_of_one_name_with_different_ranges_are_served() {
    for_ours("cluster-local", |lab| {
        let ranges = ["10.1.0.0/16", "10.2.0.0/16"];
        let [one, two] = ranges.map(|range| Held::of(lab, whereabouts(json!({"range": range}))));
        one.try_add("a").fails(11, WAYS_OUT);
        two.try_add("b").fails(11, WAYS_OUT);
        one.hold(&[("4-0a010008-29", json!({})), ("4-0a020010-29", json!({}))]);
        lab.confirm();
        let before = file(lab);
        let given = [one.add("a"), two.add("b"), one.add("c"), two.add("d")];
        assert_eq!(given, ["10.1.0.8", "10.2.0.16", "10.1.0.9", "10.2.0.17"]);
        one.attachment("a").status().ok();
        two.attachment("a").status().ok();
        assert_eq!(file(lab), before, "neither configuration takes the place of the other");
        let left = |kept: [&str; 2]| {
            let kept: Vec<_> = kept.iter().map(|id| (*id, "eth0")).collect();
            two.attachment("x").gc(&kept).ok();
            let found = lab.host.sh(&format!("ls {DATA}/pods"));
            let found = found.split_whitespace().filter(|name| name.starts_with("10."));
            found.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        assert_eq!(left(["c", "b"]), ["10.1.0.9", "10.2.0.16"].map(str::to_owned).into());
        one.attachment("b").del();
        two.attachment("c").del();
        assert_eq!(left(["a", "a"]), BTreeSet::new());
        // The block of the other configuration has been free for long: it does not keep its pool.
        for id in 0..8 {
            two.add(&format!("c{id}"));
        }
        two.try_add("full").fails(11, WAYS_OUT);
        assert_eq!(file(lab)["pools"], json!([before["pools"][1]]));
    });
}

#[test]
fn ranges_of_two_families_are_in_one_realm_of_the_cluster() {
    for_ours("cluster-local", |lab| {
        let both = json!({"range": "10.1.0.0/16", "ipRanges": [{"range": "fd00::/64"}],
            "enable_overlapping_ranges": false});
        let held = Held::of(lab, whereabouts(both));
        held.try_add("a").fails(11, WAYS_OUT);
        let realm = file(lab)["realm"].as_str().unwrap().to_owned();
        assert!(realm.starts_with("default.ranges-"), "{realm}");
        let chunk = format!("6-fd{}40-122", "0".repeat(28));
        held.hold(&[("4-0a010008-29", json!({})), (&chunk, json!({}))]);
        lab.confirm();
        assert_eq!(held.add("a"), "10.1.0.8 fd00::40");
    });
}

#[test]
fn a_network_without_leases_changes_its_realm() {
    for_ours("cluster-local", |lab| {
        let mut held = Held::new(lab, json!({"patience": 3}));
        held.hold(&[("4-0a010008-29", json!({}))]);
        lab.confirm();
        held.add("a");
        held.conf["ipam"]["realm"] = "other".into();
        let said = "attachments have addresses of 1 blocks in realm \"default\"";
        let refused = held.try_add("b").fails(7, said);
        assert!(refused.details.contains("detach its containers"), "{refused:?}");
        held.attachment("a").del();
        held.try_add("b").fails(11, WAYS_OUT);
        let moving = file(lab);
        assert_eq!((&moving["realm"], &moving["pools"]), (&json!("default"), &json!([])));

        let claimed = r#"{"protocol":2,"answer":"claimed"}"#;
        let hold = |blocks: &[(&str, Value)]| lab.hold("pods", blocks);
        let answers: [(&str, &(dyn Fn() + Sync)); 4] = [
            (claimed, &|| ()),
            (claimed, &|| ()),
            (claimed, &|| hold(&[])),
            (claimed, &|| hold(&[("4-0a010010-29", json!({}))])),
        ];
        let asked = beside_daemon(lab, &answers, || {
            let hasty = Held::of(lab, with(&held.conf, json!({"ipam": {"patience": 0}})));
            let again = hasty.try_add("b").fails(11, "realm \"default\" are being given back");
            assert!(again.details.contains("try again"), "{again:?}");
            assert_eq!(held.add("b"), "10.1.0.16");
        });
        assert!(asked.iter().all(|asked| asked["op"] == "need" && asked["set"] == 0), "{asked:?}");
        assert_eq!(file(lab)["realm"], "other");
    });
}

#[cfg(feature = "cluster")]
#[test]
fn a_daemon_serves_both_configurations_and_moves_a_network() {
    let Some((etcd, [node])) = Node::cluster() else { return };
    let [one, two] =
        ["10.1.0.0/24", "10.2.0.0/24"].map(|range| whereabouts(json!({"range": range})));
    let add = |conf: &Value, id: &str| ips(&node.attachment(conf, id).add()).join(" ");
    for (conf, prefix) in [(&one, "10.1."), (&two, "10.2.")].repeat(3) {
        let id = format!("c{}", node.leases("pods").len());
        assert!(add(conf, &id).starts_with(prefix));
    }
    let moved = with(&two, json!({"ipam": {"network_name": "blue"}}));
    let refused = node.attachment(&moved, "late").try_add();
    refused.fails(7, "attachments have addresses of 6 blocks in realm \"default\"");
    for id in 0..6 {
        node.attachment(&one, &format!("c{id}")).del();
    }
    assert!(!node.blocks("pods").is_empty());
    assert!(add(&moved, "late").starts_with("10.2."));
    let held = node.blocks("pods");
    assert!(held.iter().all(|(block, _)| block.starts_with("4-0a0200")), "{held:?}");
    let keys = etcd.members[0].ctl("get --prefix --keys-only /cni-multi/v2/test/b/");
    let is_left = |key: &str| key.contains("/b/default/") && key.ends_with("-32");
    assert!(keys.contains("/b/blue/") && !keys.lines().any(is_left), "{keys}");
}
