//! `ipam join`: a machine of scope machine becomes a node of a cluster, and keeps every address.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::daemon::{SMALL, add_all, etcd};
use super::reclaim::{blocks, of_page};
use crate::support::attachment::ips;
use crate::support::node::Node;

/// ADD without a cluster.
#[track_caller]
fn add_alone(node: &Node, id: &str) -> String {
    let ipam =
        json!({"type": "cluster-local", "scope": "machine", "ranges": [[{"subnet": SMALL}]]});
    let conf =
        json!({"cniVersion": "1.1.0", "name": "pods", "type": "cluster-local", "ipam": ipam});
    ips(&node.attachment(&conf, id).try_add().ok()).join(" ")
}

/// The states of the node's blocks.
fn states(node: &Node) -> BTreeSet<String> {
    node.blocks("pods").into_iter().map(|(_, state)| state).collect()
}

#[test]
fn a_machine_joins_with_its_addresses() {
    let Some(etcd) = etcd() else { return };
    let three = Node::alone(&etcd, 3);
    let kept = ["a", "b", "c"].map(|id| add_alone(&three, id));
    let page = include_str!("../../../../docs/cluster-operations.md");
    let test = "join::a_machine_joins_with_its_addresses";
    let printed = three.run_commands(&of_page(page, test));
    assert!(printed.starts_with("NETWORK  ADDRESS   CONTAINER  REALM"), "{printed}");
    assert!(printed.ends_with(" and start the daemon\n"), "{printed}");
    assert_eq!(states(&three), BTreeSet::from(["claiming".to_owned()]));
    assert_eq!(three.ipam("join -o json").ok(), json!([]));
    three.configure(&json!({"node": "n3"}));
    three.start();
    three.wait_until(|node| states(node) == BTreeSet::from(["active".to_owned()]));
    for (id, address) in ["a", "b", "c"].iter().zip(&kept) {
        assert_eq!(three.check(SMALL, id, address).status, 0, "{id} {address}");
        assert_eq!(three.lease_of("pods", address), *id);
    }
    let two = Node::join(&etcd, 2);
    let mut all = BTreeSet::from(kept);
    all.extend(add_all(&three, SMALL, &["d", "e", "f"]));
    all.extend(add_all(&two, SMALL, &["g", "h", "i", "j", "k", "l", "m"]));
    assert_eq!(all.len(), 13, "each address has one owner: {all:?}");
}

/// Its container runs on, and detaching it ends the conflict.
#[test]
fn an_address_that_another_node_has_is_lost() {
    let Some(etcd) = etcd() else { return };
    let three = Node::alone(&etcd, 3);
    let address = add_alone(&three, "a");
    let two = Node::join(&etcd, 2);
    let ids = ["b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"];
    assert!(add_all(&two, SMALL, &ids).contains(&address));
    let dry = three.ipam("join --dry-run -o json").ok();
    assert_eq!(dry[0]["address"], address.as_str(), "{dry}");
    assert_eq!(states(&three), BTreeSet::new(), "a dry run changes nothing");
    assert_eq!(three.ipam("join -o json").ok(), dry);
    three.configure(&json!({"node": "n3"}));
    three.start();
    three.wait_until(|node| states(node) == BTreeSet::from(["lost".to_owned()]));
    assert!(!blocks(&etcd).contains("\"node\":\"n3\""), "{}", blocks(&etcd));
    let check = three.check(SMALL, "a", &address).err();
    assert_eq!(check.code, 103, "{check:?}");
    let contested = |node: &Node| {
        let rows: Value = node.ipam("blocks --all -o json").ok();
        rows.as_array().unwrap().iter().filter(|row| row["state"] == "conflict").count()
    };
    two.wait_until(|node| contested(node) == 1);
    two.wait_until(|node| node.ipam("blocks").stdout.contains(" contested "));
    assert_eq!(three.lease_of("pods", &address), "a");
    three.del(SMALL, "a");
    two.wait_until(|node| contested(node) == 0);
    two.wait_until(|node| !node.ipam("blocks").stdout.contains(" contested "));
}
