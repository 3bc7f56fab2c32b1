//! `ipam recover`, after etcd was replaced by another one.

use serde_json::json;

use crate::support::etcd::Etcd;
use crate::support::node::{Node, SMALL};

const OTHER: &str = "the store is another than before";

#[test]
fn a_node_accepts_another_store() {
    let Some((etcd, [one, two])) = Node::cluster() else { return };
    let addresses = [one.add(SMALL, "a"), two.add(SMALL, "b")];
    assert_ne!(addresses[0], addresses[1]);
    let known = "the store is the one that this node knows: nothing is to be done\n";
    one.kill();
    assert_eq!(one.prints("recover"), known);
    two.kill();
    etcd.members[0].ctl("del --prefix /cni-multi/");
    for (node, found) in [(&one, "an empty store is accepted"), (&two, "store ")] {
        node.start();
        node.wait_until(|node| node.log().contains(OTHER));
        node.status(SMALL).fails(50, OTHER);
        node.kill();
        let page = include_str!("../../../../docs/cluster-operations.md");
        let printed = node.run_commands(page, "recover::a_node_accepts_another_store");
        assert!(printed.starts_with(found) && printed.contains(" blocks there\n"), "{printed}");
        node.start();
        let own = format!(" n{}", node.number);
        node.wait_until(|_| etcd.block_keys().iter().any(|key| key.ends_with(&own)));
        node.wait_until(|node| node.status(SMALL).status == 0);
    }
    for (node, id, address) in [(&one, "a", &addresses[0]), (&two, "b", &addresses[1])] {
        assert_eq!(node.check(SMALL, id, address).status, 0, "{}", node.log());
        node.add(SMALL, "c");
    }
}

#[test]
fn a_machine_without_a_record_has_nothing_to_recover() {
    let Some(etcd) = Etcd::one() else { return };
    let said = "this node has claimed nothing in any store: nothing is to be done\n";
    assert_eq!(Node::configured(&etcd, 1, json!({})).prints("recover"), said);
}
