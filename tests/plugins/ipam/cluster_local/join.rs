//! `ipam join` and `ipam import`: a machine becomes a node of a cluster, and keeps every address.

use std::collections::BTreeSet;

use serde_json::json;

use crate::support::attachment::ips;
use crate::support::node::{Node, SMALL, conf};

/// ADD without a cluster.
#[track_caller]
pub fn add_alone(node: &Node, id: &str) -> String {
    ips(&node.attachment(&conf(SMALL, json!({"scope": "machine"})), id).add()).join(" ")
}

#[test]
fn a_machine_joins_with_its_addresses() {
    let Some((etcd, [one])) = Node::cluster() else { return };
    let three = Node::alone(&etcd, 3);
    let kept = ["a", "b", "c"].map(|id| add_alone(&three, id));
    let page = include_str!("../../../../docs/cluster-operations.md");
    let printed = three.run_commands(page, "join::a_machine_joins_with_its_addresses");
    assert!(printed.starts_with("NETWORK  ADDRESS   CONTAINER  REALM"), "{printed}");
    assert!(printed.ends_with(" and start the daemon\n"), "{printed}");
    assert!(three.has_only("claiming"));
    assert_eq!(three.ipam("join -o json").ok(), json!([]));
    three.configure(json!({}));
    three.start();
    three.wait_until(|node| node.has_only("active"));
    for (id, address) in ["a", "b", "c"].iter().zip(&kept) {
        three.check(SMALL, id, address).ok();
        assert_eq!(three.lease_of(address), *id);
    }
    let mut all = BTreeSet::from(kept);
    all.extend(three.add_all(SMALL, "d e f"));
    all.extend(one.add_all(SMALL, "g h i j k l m"));
    assert_eq!(all.len(), 13, "each address has one owner: {all:?}");
}

/// The configuration of the network that [`Node::add`] attaches to, and a document with its leases.
fn write(node: &Node, leases: &[(&str, &str)]) {
    let ipam = json!({"type": "cluster-local", "ranges": [[{"subnet": SMALL}]]});
    let plugin = json!({"type": "bridge", "bridge": "pods0", "ipam": ipam});
    let list = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [plugin]});
    let lease = |(address, id): &(&str, &str)| json!({"address": address, "containerId": id, "ifname": "eth0"});
    let leases: Vec<_> = leases.iter().map(lease).collect();
    let network = json!({"network": "pods", "ipam": "cluster-local", "leases": leases});
    let document = json!({"cniMultiLeases": 1, "networks": [network]});
    node.lab.host.sh(&format!(
        "mkdir -p /run/net.d; echo '{list}' >/run/net.d/pods.conflist; echo '{document}' >/run/leases.json"
    ));
}

#[test]
fn leases_are_imported_before_the_daemon_starts() {
    const LINE: &str = "import --conf-dir /run/net.d /run/leases.json";
    let Some((etcd, [one])) = Node::cluster() else { return };
    let three = Node::configured(&etcd, 3, json!({}));
    write(&three, &[("10.1.0.4", "a"), ("10.1.0.9", "b")]);
    let dry = three.ipam(&LINE.replace("import", "import --dry-run"));
    dry.assert_is(0, "pods: would import 2, already there 0\n", "");
    assert!(three.leases("pods").is_empty() && three.blocks("pods").is_empty());
    for said in ["pods: imported 2, already there 0\n", "pods: imported 0, already there 2\n"] {
        assert_eq!(three.prints(LINE), said);
    }
    assert!(three.has_only("claiming"));
    three.start();
    three.wait_until(|node| node.has_only("active"));
    for (id, address) in [("a", "10.1.0.4"), ("b", "10.1.0.9")] {
        three.check(SMALL, id, address).ok();
    }
    let all = one.add_all(SMALL, "c d e f g h i j k l m");
    assert_eq!(all.len(), 11, "{all:?}");
    assert!(!all.contains("10.1.0.4") && !all.contains("10.1.0.9"), "{all:?}");

    write(&three, &[("10.1.0.5", "n")]);
    let refused = three.ipam(LINE);
    assert_eq!((refused.status, refused.stdout.as_str()), (1, ""), "{refused:?}");
    assert!(refused.stderr.contains("stop the daemon first"), "{refused:?}");
}
