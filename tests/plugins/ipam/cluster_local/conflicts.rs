//! Blocks that two nodes have: neither allocates from them, both list them, and detaching ends it.

use serde_json::Value;

use super::daemon::{SMALL, add_all, etcd};
use crate::support::node::Node;

/// The block of one address whose claim a node has lost to another, as by a restore.
#[test]
fn a_block_of_two_nodes_is_listed_until_one_of_them_is_empty() {
    let Some(etcd) = etcd() else { return };
    let [one, two] = [1, 2].map(|number| Node::join(&etcd, number));
    let address = one.add(SMALL, "a");
    let block = format!("{address}/32");
    one.kill();
    etcd.members[0].ctl("del --prefix /cni-multi/v2/test/b/default/");
    let ids = ["b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"];
    let all = add_all(&two, SMALL, &ids);
    assert!(all.contains(&address), "the store has lost the claim: {all:?}");

    one.start();
    let row = |node: &Node| -> Value {
        let listed = node.ipam("blocks --all -o json").ok();
        let mut rows = listed.as_array().unwrap().iter();
        rows.find(|row| row["block"] == block.as_str()).cloned().unwrap()
    };
    two.wait_until(|node| row(node)["conflict"] == "n1");
    let told = row(&two);
    assert_eq!((&told["node"], &told["owner"]), (&"n2".into(), &"live".into()), "{told}");
    let check = one.check(SMALL, "a", &address).err();
    assert_eq!(check.code, 103, "{check:?}");
    two.wait_until(|node| node.ipam("blocks").stdout.contains(" contested "));
    assert!(one.ipam("blocks").stdout.contains(" lost "), "{:?}", one.ipam("blocks"));

    one.del(SMALL, "a");
    two.wait_until(|node| row(node)["conflict"].is_null());
    two.wait_until(|node| !node.ipam("blocks").stdout.contains(" contested "));
}
