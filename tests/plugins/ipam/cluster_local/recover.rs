//! `ipam recover`, after a real etcd was restored from a snapshot.

use super::daemon::{WIDE, add_all, etcd};
use super::daemon_faults::{restore, take_snapshot};
use super::reclaim::{blocks, of_page};
use crate::support::node::Node;

/// Both nodes claim after the snapshot, so that the restored store knows of one block at most.
#[test]
fn after_a_restore_nothing_is_given_twice() {
    let Some(mut etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    let mut all = add_all(&one, WIDE, &["a", "b"]);
    take_snapshot(&etcd);
    all.extend(add_all(&one, WIDE, &["c", "d", "e", "f"]));
    all.extend(add_all(&two, WIDE, &["g", "h", "i", "j", "k"]));
    let before = blocks(&etcd);
    restore(&mut etcd);
    let page = include_str!("../../../../docs/cluster-operations.md");
    let test = "recover::after_a_restore_nothing_is_given_twice";
    let printed = two.run_commands(&of_page(page, test));
    assert!(printed.starts_with("epoch 0 is now 1: "), "{printed}");
    assert!(printed.contains("new blocks are used after 0 s of settling"), "{printed}");
    for node in [&one, &two] {
        node.wait_until(|node| node.log().contains("every block is verified"));
    }
    let count = |text: &str| text.matches("\"token\"").count();
    one.wait_until(|_| count(&blocks(&etcd)) == count(&before));
    one.wait_until(|node| node.try_add(WIDE, "l").status == 0);
    two.wait_until(|node| node.try_add(WIDE, "m").status == 0);
    all.extend(add_all(&one, WIDE, &["n", "o", "p", "q", "r"]));
    all.extend(add_all(&two, WIDE, &["s", "t", "u", "v", "w"]));
    assert_eq!(all.len(), 21, "each address has one owner: {all:?}");
    let none = two.ipam("conflicts -o json").ok();
    assert_eq!(none.as_array().unwrap().len(), 0, "{none}");
}

/// A snapshot of before an earlier recovery has an epoch that nodes know already.
#[test]
fn the_epoch_is_raised_beyond_what_this_node_has_seen() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    one.add(WIDE, "a");
    for (from, to) in [(0, 1), (1, 2)] {
        let said = one.ipam("recover").stdout;
        assert!(said.starts_with(&format!("epoch {from} is now {to}: 1 nodes")), "{said}");
    }
    let record = "/var/lib/cni/cluster-local/.node/node.json";
    one.kill();
    one.start();
    one.wait_until(|node| node.lab.host.sh(&format!("cat {record}")).contains("\"epoch\":2"));
    one.kill();
    etcd.members[0].ctl("del /cni-multi/v1/test/meta/epoch");
    let said = one.ipam("recover").stdout;
    assert!(said.starts_with("epoch 0 is now 3: "), "{said}");
    assert_eq!(etcd.members[0].ctl("get --print-value-only /cni-multi/v1/test/meta/epoch"), "3\n");
    etcd.members[0].ctl("put /cni-multi/v1/test/meta/epoch three");
    let broken = one.ipam("recover");
    assert_eq!(broken.status, 1, "{broken:?}");
    assert!(broken.stderr.contains("cannot be read"), "{broken:?}");
}
