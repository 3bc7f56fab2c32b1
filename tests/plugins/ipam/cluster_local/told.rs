//! ADD, STATUS, the daemon's log and `ipam blocks` report why a node cannot claim, until it can.

use serde_json::{Value, json};

use super::etcd_access::{start_secure, with_certificates};
use super::rotation::{configured, put, put_client};
use crate::support::etcd::Etcd;
use crate::support::node::{Node, WIDE};

/// Etcd, and machines of which the last one cannot claim.
type World = (Etcd, Vec<Node>);

/// What is wrong, what is told, and what mends it.
type Row = (fn() -> Option<World>, &'static str, fn(&mut Etcd, &[Node]));

/// A machine beside an etcd with mutual TLS.
fn secure(ca: &str, client: &str) -> Option<World> {
    let mut etcd = with_certificates()?;
    start_secure(&mut etcd, "server");
    let node = configured(&etcd, ca, client);
    Some((etcd, vec![node]))
}

/// One beside an etcd without it.
fn plain(options: &str, keys: &[&str], changes: Value) -> Option<World> {
    let etcd = Etcd::one_with(options)?;
    keys.iter().for_each(|key| drop(etcd.members[0].ctl(&format!("put {key} oops"))));
    let node = Node::configured(&etcd, 1, changes);
    Some((etcd, vec![node]))
}

fn mend_client(etcd: &Etcd, nodes: &[Node], reason: &str) {
    // The member's alert does not say why: its log does.
    let log = etcd.members[0].log();
    assert!(log.contains(reason), "{log}");
    put_client(etcd, &nodes[0], "client");
}

/// Starts a daemon again with another configuration.
fn reconfigure(node: &Node, changes: Value) {
    node.kill();
    let blocks = node.prints("blocks");
    assert!(blocks.contains("; it does not run: start cni-multi-ipam.socket or "), "{blocks}");
    assert!(!blocks.contains("scope"), "{blocks}");
    node.lab.host.sh("chmod 644 /etc/cni-multi/ipam.json");
    let blocks = node.prints("blocks");
    assert!(blocks.contains("mode 0644") && blocks.contains("expected 0600"), "{blocks}");
    node.configure(changes);
    node.start();
}

const OF_CLIENT: &str = "and not have expired";
const OF_CONTROL_PLANE: &str = "this etcd has the objects of a Kubernetes control plane, and the user can \
    read them: use an etcd of its own, or a role for the prefix /cni-multi/ alone, or set \
    etcd.acceptControlPlane";

const ROWS: [Row; 8] = [
    (
        || plain("", &[], json!({"etcd": {"endpoints": ["http://10.78.0.254:1"]}})),
        "connect to http://10.78.0.254:1: connection refused",
        |_, nodes| reconfigure(&nodes[0], json!({})),
    ),
    (
        || plain("--enable-grpc-gateway=false", &[], json!({})),
        ": the member has no JSON gateway; start etcd without --enable-grpc-gateway=false",
        |etcd, _| {
            etcd.members.clear();
            etcd.start_one("");
        },
    ),
    (
        || plain("", &["/registry/secrets/default/token"], json!({})),
        OF_CONTROL_PLANE,
        |etcd, _| {
            let written = etcd.members[0].ctl("get --prefix --keys-only /cni-multi/");
            assert_eq!(written.trim(), "");
            etcd.members[0].ctl("del --prefix /registry/");
        },
    ),
    (
        || plain("", &["/cni-multi/v2/test/n/n1"], json!({})),
        "the node's record in the store cannot be read",
        |etcd, _| drop(etcd.members[0].ctl("del /cni-multi/v2/test/n/n1")),
    ),
    (
        || {
            let (etcd, [one]) = Node::cluster()?;
            let two = Node::configured(&etcd, 2, json!({"node": "n1"}));
            Some((etcd, vec![one, two]))
        },
        "another machine has the name of this node",
        |_, nodes| {
            nodes[0].add(WIDE, "more");
            reconfigure(&nodes[1], json!({}));
        },
    ),
    (
        || secure("other", "client"),
        "etcd.ca must have the CA of the members' certificates",
        |etcd, nodes| put(etcd, &nodes[0], "ca.crt", "ca.crt"),
    ),
    (
        || secure("ca", "expired"),
        OF_CLIENT,
        |etcd, nodes| mend_client(etcd, nodes, "certificate has expired"),
    ),
    (
        || secure("ca", "foreign"),
        OF_CLIENT,
        |etcd, nodes| mend_client(etcd, nodes, "certificate signed by unknown authority"),
    ),
];

#[test]
fn why_a_node_cannot_claim_is_told_until_it_can() {
    for (arrange, text, mend) in ROWS {
        let Some((mut etcd, nodes)) = arrange() else { continue };
        let node = nodes.last().unwrap();
        node.start();
        // The watch tells it at once, the standing once it has lasted.
        let is_standing = |line: &str| line.contains(text) && !line.contains("the watch has ended");
        node.wait_until(|node| node.log().lines().any(is_standing));
        let refused = node.try_add(WIDE, "a").err();
        assert!(matches!(refused.code, 11 | 50) && refused.text().contains(text), "{refused:?}");
        node.status(WIDE).fails(50, text);
        assert!(node.prints("blocks").contains(text), "{}", node.prints("blocks"));
        let rows: Value = serde_json::from_str(&node.prints("blocks -o json")).unwrap();
        let problem = rows.as_array().unwrap().last().unwrap()["problem"].as_str();
        assert!(problem.is_some_and(|problem| problem.contains(text)), "{rows}");

        mend(&mut etcd, &nodes);
        node.wait_until(|node| node.status(WIDE).status == 0);
        let blocks = node.prints("blocks");
        assert!(!blocks.contains("store") && !blocks.contains(text), "{blocks}");
        node.add(WIDE, "a");
    }
}
