//! `ipam recover`, after etcd was replaced by another one.

use super::daemon::{SMALL, etcd};
use super::reclaim::{blocks, of_page};
use crate::support::node::Node;

const OTHER: &str = "the store is another than before";

#[test]
fn a_node_accepts_another_store() {
    let Some(etcd) = etcd() else { return };
    let [one, two] = [1, 2].map(|number| Node::join(&etcd, number));
    let addresses = [one.add(SMALL, "a"), two.add(SMALL, "b")];
    assert_ne!(addresses[0], addresses[1]);
    let known = "the store is the one that this node knows: nothing is to be done\n";
    one.kill();
    assert_eq!(one.ipam("recover").stdout, known);
    two.kill();
    etcd.members[0].ctl("del --prefix /cni-multi/");
    for (node, found) in [(&one, "an empty store is accepted"), (&two, "store ")] {
        node.start();
        node.wait_until(|node| node.log().contains(OTHER));
        let status = node.status(SMALL).err();
        assert!(status.code == 50 && status.text().contains(OTHER), "{status:?}");
        node.kill();
        let page = include_str!("../../../../docs/cluster-operations.md");
        let test = "recover::a_node_accepts_another_store";
        let printed = node.run_commands(&of_page(page, test));
        assert!(printed.starts_with(found) && printed.contains(" blocks there\n"), "{printed}");
        node.start();
        let own = format!("\"node\":\"n{}\"", node.number);
        node.wait_until(|_| blocks(&etcd).contains(&own));
        node.wait_until(|node| node.status(SMALL).status == 0);
    }
    for (node, id, address) in [(&one, "a", &addresses[0]), (&two, "b", &addresses[1])] {
        assert_eq!(node.check(SMALL, id, address).status, 0, "{}", node.log());
        node.add(SMALL, "c");
    }
}

#[test]
fn a_machine_without_a_record_has_nothing_to_recover() {
    let Some(etcd) = etcd() else { return };
    let one = Node::configured(&etcd, 1, &serde_json::json!({}));
    let said = "this node has claimed nothing in any store: nothing is to be done\n";
    assert_eq!(one.ipam("recover").stdout, said);
}
