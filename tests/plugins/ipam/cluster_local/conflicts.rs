//! Blocks that two nodes have: neither allocates from them, both list them, and detaching ends it.

use serde_json::{Value, json};

use super::daemon_faults::{restore, take_snapshot};
use super::join::add_alone;
use crate::support::node::{Node, SMALL};

/// More containers than there are addresses left.
const OTHERS: &str = "c0 c1 c2 c3 c4 c5 c6 c7 c8 c9 c10 c11";

/// The nodes that the cluster has for the block of an address, each with its state.
fn listed(node: &Node, address: &str) -> Vec<[Value; 2]> {
    let listed = node.ipam("blocks --all -o json").ok();
    let block = format!("{address}/32");
    let rows = listed.as_array().unwrap().iter().filter(|row| row["block"] == block.as_str());
    rows.map(|row| [row["node"].clone(), row["state"].clone()]).collect()
}

/// Container `id` of a node has an address whose block is another one's, `owner`'s, which has given it to a
/// container of its own.
#[track_caller]
fn assert_conflict(lost: &Node, owner: &Node, id: &str, address: &str) {
    owner.wait_until(|owner| listed(owner, address).len() == 2);
    let [of_owner, of_lost] = [owner, lost].map(|node| format!("n{}", node.number));
    let rows = [[of_owner.as_str(), "live"], [of_lost.as_str(), "conflict"]];
    assert_eq!(listed(owner, address), rows.map(|row| row.map(Value::from)));
    for (node, state, says) in [
        (lost, " lost ", "another node has it"),
        (owner, " contested ", "another node has leases in it"),
    ] {
        node.wait_until(|node| node.prints("blocks").contains(state));
        assert!(node.log().contains(says), "{}", node.log());
    }
    assert_eq!(lost.lease_of(address), id, "its container lives");
    lost.check(SMALL, id, address).fails(103, "which another node has");
    // The address is free on its owner, and every other one is taken.
    owner.del(SMALL, &owner.lease_of(address));
    let refused = [lost, owner].map(|node| node.try_add(SMALL, "late"));
    assert!(refused.iter().all(|outcome| outcome.status != 0), "one of them got it: {refused:?}");
    lost.del(SMALL, id);
    owner.wait_until(|owner| owner.try_add(SMALL, "late").status == 0);
    owner.wait_until(|owner| listed(owner, address).len() == 1);
    for node in [lost, owner] {
        let is_over = |blocks: &str| !blocks.contains(" lost ") && !blocks.contains(" contested ");
        node.wait_until(|node| is_over(&node.prints("blocks")));
    }
}

/// The worst that a restore can do: the machine was off whose claim the snapshot lacks.
#[test]
fn a_claim_that_a_restore_has_lost_is_a_conflict() {
    let Some((mut etcd, [one, two])) = Node::cluster() else { return };
    one.add(SMALL, "a");
    take_snapshot(&etcd);
    let lost = one.add(SMALL, "b");
    one.kill();
    restore(&mut etcd);
    let taken = two.add_all(SMALL, OTHERS);
    assert!(taken.contains(&lost), "{taken:?} has no {lost}");
    one.start();
    assert_conflict(&one, &two, "b", &lost);
}

/// A machine with an address of a node joins all the same: its container runs on.
#[test]
fn an_address_of_a_machine_that_joins_may_be_a_conflict() {
    let Some((etcd, [one])) = Node::cluster() else { return };
    let three = Node::alone(&etcd, 3);
    let address = add_alone(&three, "a");
    let taken = one.add_all(SMALL, &format!("{OTHERS} c12"));
    assert!(taken.contains(&address), "{taken:?} has no {address}");
    let dry = three.ipam("join --dry-run -o json").ok();
    assert_eq!(dry[0]["address"], address.as_str(), "{dry}");
    assert!(three.blocks("pods").is_empty(), "a dry run changes nothing");
    assert_eq!(three.ipam("join -o json").ok(), dry);
    three.configure(json!({}));
    three.start();
    three.wait_until(|node| node.has_only("lost"));
    let keys = etcd.block_keys();
    assert!(!keys.iter().any(|key| key.ends_with(" n3")), "{keys:?}");
    assert_conflict(&three, &one, "a", &address);
}
