//! Blocks that two nodes have: neither allocates from them, both list them, and detaching ends it.

use nix::sys::signal::Signal;
use serde_json::Value;

use super::daemon::{SMALL, add_all, etcd};
use crate::support::node::Node;

/// The block of one address whose key a node has lost to another, as by a restore.
#[test]
fn a_block_of_two_nodes_is_listed_until_one_of_them_is_empty() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    let address = one.add(SMALL, "a");
    let block = format!("{}/32", address);
    one.kill();
    etcd.members[0].ctl("del --prefix /cni-multi/v1/test/r/default/b/");
    let ids = ["b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"];
    let all = add_all(&two, SMALL, &ids);
    assert!(all.contains(&address), "the store has lost the claim: {all:?}");
    let empty = two.ipam("conflicts -o json").ok();
    assert_eq!(empty, Value::Array(vec![]));

    one.start();
    let row = |node: &Node| {
        let listed = node.ipam("conflicts -o json").ok();
        listed.as_array().unwrap().iter().find(|row| row["block"] == block.as_str()).cloned()
    };
    two.wait_until(|node| row(node).is_some_and(|row| row["node"] == "n1"));
    let told = row(&two).unwrap();
    assert_eq!(
        (&told["realm"], &told["other"], &told["leases"]),
        (&Value::from("default"), &Value::from("n2"), &Value::from(1)),
        "{told}"
    );
    one.wait_until(|node| row(node).is_some_and(|row| row["network"] == "pods"));
    assert!(
        two.ipam("conflicts").stdout.starts_with("REALM    BLOCK"),
        "{:?}",
        two.ipam("conflicts")
    );
    let check = one.check(SMALL, "a", &address).err();
    assert_eq!(check.code, 103, "{check:?}");
    assert!(check.msg.contains("which another node has, too"), "{check:?}");

    etcd.members[0].signal(Signal::SIGSTOP);
    let alone = one.ipam("conflicts -o json").ok();
    etcd.members[0].signal(Signal::SIGCONT);
    let rows = alone.as_array().unwrap();
    assert_eq!(rows.len(), 2, "what the node's files have, and why there is no more: {alone}");
    assert_eq!(rows[0]["block"], block.as_str());
    assert!(rows[1]["problem"].as_str().unwrap().contains("store cannot be used"), "{alone}");

    one.del(SMALL, "a");
    one.wait_until(|node| {
        let _ = node.try_add(SMALL, "z"); // the daemon reads the leases before it answers
        row(node).is_none()
    });
    two.wait_until(|node| !node.ipam("blocks").stdout.contains(" conflict "));
}
