//! STATUS, the daemon's log and `ipam blocks` report why a node cannot claim.

use serde_json::{Value, json};

use super::daemon::WIDE;
use super::etcd_access::{Certificates, start_secure};
use super::rotation::configured;
use crate::support::etcd::Etcd;
use crate::support::node::{LISTENING, Node};

/// Asserts that all three contain the text.
#[track_caller]
fn assert_told(node: &Node, text: &str) {
    // The watch tells it at once, the standing once it has lasted.
    let is_standing = |line: &str| line.contains(text) && !line.contains("the watch has ended");
    node.wait_until(|node| node.log().lines().any(is_standing));
    let status = node.status(WIDE).err();
    assert_eq!(status.code, 50, "{status:?}");
    assert!(status.text().contains(text), "{status:?}");
    assert_listed(node, text);
}

/// Asserts that `ipam blocks` contains the text, as a table and as JSON.
#[track_caller]
fn assert_listed(node: &Node, text: &str) {
    assert!(node.ipam_text("blocks").contains(text), "{}", node.ipam_text("blocks"));
    let rows: Value = serde_json::from_str(&node.ipam_text("blocks -o json")).unwrap();
    let problem = rows.as_array().unwrap().last().unwrap()["problem"].clone();
    assert!(problem.as_str().is_some_and(|problem| problem.contains(text)), "{rows}");
}

#[test]
fn members_that_cannot_be_reached_are_told() {
    let Some(etcd) = Etcd::one_with(&LISTENING) else { return };
    let nobody = json!({"etcd": {"endpoints": ["http://10.78.0.254:1"]}});
    let node = Node::configured(&etcd, 1, &nobody);
    node.start();
    assert_told(&node, "connect to http://10.78.0.254:1: connection refused");
    node.kill();
    assert_listed(&node, "; it does not run: start cni-multi-ipam.socket or ");
    assert!(!node.ipam_text("blocks").contains("scope"), "{}", node.ipam_text("blocks"));
    node.configure(&json!({}));
    node.start();
    node.wait_until(|node| node.status(WIDE).status == 0);
    assert!(!node.ipam_text("blocks").contains("store"), "{}", node.ipam_text("blocks"));
}

#[test]
fn members_of_another_ca_are_told() {
    let Some(mut etcd) = Certificates::lab() else { return };
    start_secure(&mut etcd, "server");
    let node = configured(&etcd, "other", "client");
    node.start();
    assert_told(&node, "etcd.ca must have the CA of the members' certificates");
}

#[test]
fn an_expired_certificate_is_told() {
    let Some(mut etcd) = Certificates::lab() else { return };
    start_secure(&mut etcd, "server");
    let node = configured(&etcd, "ca", "expired");
    node.start();
    assert_told(&node, "and not have expired");
}

#[test]
fn a_name_that_another_machine_has_is_told() {
    let Some(etcd) = Etcd::one_with(&LISTENING) else { return };
    let _one = Node::join(&etcd, 1);
    let two = Node::named(&etcd, 2, "n1");
    two.start();
    two.wait_until(|two| two.log().contains("another machine"));
    assert_told(&two, "another machine has the name of this node");
}

#[test]
fn the_control_plane_s_etcd_is_told() {
    let Some(etcd) = Etcd::one_with(&LISTENING) else { return };
    etcd.members[0].ctl("put /registry/secrets/default/token secret");
    let node = Node::join(&etcd, 1);
    node.wait_until(|node| node.log().contains("control plane"));
    assert_told(&node, "Kubernetes control plane");
}

#[test]
fn a_record_of_the_node_that_was_edited_is_told() {
    let Some(etcd) = Etcd::one_with(&LISTENING) else { return };
    etcd.members[0].ctl("put /cni-multi/v2/test/n/n1 oops");
    let node = Node::join(&etcd, 1);
    assert_told(&node, "the node's record in the store cannot be read");
    etcd.members[0].ctl("del /cni-multi/v2/test/n/n1");
    node.wait_until(|node| node.status(WIDE).status == 0);
}
