//! A network that is configured otherwise on another node.

use super::daemon::{SMALL, etcd};
use crate::support::etcd::Etcd;
use crate::support::node::Node;

/// The daemon learns of ranges by an ADD that asks it: these have no address of [`SMALL`].
const OTHER: &str = "10.2.0.0/24";

fn notes(etcd: &Etcd) -> usize {
    let notes = etcd.members[0].ctl("get --prefix /cni-multi/v1/test/r/default/pool/");
    notes.matches("\"network\":\"pods\"").count()
}

#[test]
fn other_ranges_on_two_nodes_are_reported_until_they_are_alike() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    one.add(SMALL, "a");
    one.wait_until(|_| notes(&etcd) == 1);
    let two = Node::join(&etcd, 2);
    two.add(OTHER, "b");
    let said = "network \"pods\": node \"n1\" has other ranges or another block size";
    two.wait_until(|node| node.log().contains(said));
    assert_eq!(notes(&etcd), 2);
    let differs = |node: &Node| {
        node.ipam("blocks").stdout.contains("node \"n1\" has other ranges or another block size")
    };
    two.wait_until(differs);
    let status = two.status(OTHER);
    assert_eq!(status.status, 0, "{status:?}");
    assert!(status.stderr.contains("node \"n1\" has other ranges"), "{status:?}");
    // The ranges of the other node: the notes of the old ones are deleted.
    two.del(OTHER, "b");
    two.add(SMALL, "c");
    two.wait_until(|node| !differs(node));
    two.wait_until(|_| notes(&etcd) == 1);
    assert_eq!(two.status(SMALL).stderr, "");
}
