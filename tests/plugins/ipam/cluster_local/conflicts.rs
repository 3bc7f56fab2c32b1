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
    // The nodes of the block, each with its state.
    let listed = |node: &Node| -> Vec<[Value; 2]> {
        let listed = node.ipam("blocks --all -o json").ok();
        let rows = listed.as_array().unwrap().iter();
        let of_block = rows.filter(|row| row["block"] == block.as_str());
        of_block.map(|row| [row["node"].clone(), row["state"].clone()]).collect()
    };
    two.wait_until(|node| listed(node).len() == 2);
    assert_eq!(listed(&two), [["n2", "live"], ["n1", "conflict"]].map(|row| row.map(Value::from)));
    let check = one.check(SMALL, "a", &address).err();
    assert_eq!(check.code, 103, "{check:?}");
    two.wait_until(|node| node.ipam("blocks").stdout.contains(" contested "));
    assert!(one.ipam("blocks").stdout.contains(" lost "), "{:?}", one.ipam("blocks"));

    one.del(SMALL, "a");
    two.wait_until(|node| listed(node).len() == 1);
    two.wait_until(|node| !node.ipam("blocks").stdout.contains(" contested "));
}
