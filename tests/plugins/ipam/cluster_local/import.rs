//! `ipam import` into a network of a cluster: before the daemon starts.

use serde_json::json;

use super::daemon::{SMALL, add_all, etcd};
use crate::support::node::Node;

const LINE: &str = "import --conf-dir /run/net.d /run/leases.json";

/// The configuration of the network that [`Node::add`] attaches to, and a document with its leases.
fn write(node: &Node, leases: &[(&str, &str)]) {
    let ipam = json!({"type": "cluster-local", "ranges": [[{"subnet": SMALL}]]});
    let plugin = json!({"type": "bridge", "bridge": "pods0", "ipam": ipam});
    let list = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [plugin]});
    let lease = |(address, id): &(&str, &str)| json!({"address": address, "containerId": id, "ifname": "eth0"});
    let leases: Vec<_> = leases.iter().map(lease).collect();
    let network = json!({"network": "pods", "ipam": "cluster-local", "leases": leases});
    let document = json!({"cniMultiLeases": 1, "networks": [network]});
    node.lab.host.sh("mkdir -p /run/net.d");
    std::fs::write(node.lab.path("/run/net.d/pods.conflist"), list.to_string()).unwrap();
    std::fs::write(node.lab.path("/run/leases.json"), document.to_string()).unwrap();
}

#[test]
fn leases_are_imported_before_the_daemon_starts() {
    let Some(etcd) = etcd() else { return };
    let one = Node::configured(&etcd, 1, &json!({}));
    write(&one, &[("10.1.0.4", "a"), ("10.1.0.9", "b")]);
    let dry = one.ipam(&LINE.replace("import", "import --dry-run"));
    assert_eq!(dry.stdout, "pods: would import 2, already there 0\n", "{dry:?}");
    assert!(one.leases("pods").is_empty() && one.blocks("pods").is_empty());
    for said in ["pods: imported 2, already there 0\n", "pods: imported 0, already there 2\n"] {
        let imported = one.ipam(LINE);
        assert_eq!((imported.status, imported.stdout.as_str()), (0, said), "{imported:?}");
    }
    assert!(one.blocks("pods").iter().all(|(_, state)| state == "claiming"));
    one.start();
    one.wait_until(|node| node.blocks("pods").iter().all(|(_, state)| state == "active"));
    for (id, address) in [("a", "10.1.0.4"), ("b", "10.1.0.9")] {
        assert_eq!(one.check(SMALL, id, address).status, 0, "{address}");
    }
    let two = Node::join(&etcd, 2);
    let ids = ["c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m"];
    let all = add_all(&two, SMALL, &ids);
    assert_eq!(all.len(), 11, "{all:?}");
    assert!(!all.contains("10.1.0.4") && !all.contains("10.1.0.9"), "{all:?}");

    write(&one, &[("10.1.0.5", "n")]);
    let refused = one.ipam(LINE);
    assert_eq!((refused.status, refused.stdout.as_str()), (1, ""), "{refused:?}");
    assert!(refused.stderr.contains("stop the daemon first"), "{refused:?}");
}
