//! `"onFence": "down"` and `ipam isolate`: the containers of a node that was reclaimed and still runs.

use serde_json::{Value, json};

use super::daemon::etcd;
use super::reclaim::{end_life, of_page, wait_for_life};
use crate::support::call::binary;
use crate::support::etcd::Etcd;
use crate::support::node::Node;
use crate::support::programs::need_programs;

/// What the daemon writes for systemd.
const LOST: &str = "/var/lib/cni/cluster-local/.node/lost";

/// A bridge with addresses of the node's blocks, a bridge with addresses of host-local, and a macvlan,
/// which has no link on the host.
fn write_networks(node: &Node) {
    let blocks =
        json!({"type": "cluster-local", "ranges": [[{"subnet": "10.1.0.0/24"}]], "patience": 10});
    let own = json!({"type": "host-local", "ranges": [[{"subnet": "10.2.0.0/24"}]]});
    let bridge = |name: &str, ipam: &Value| json!({"type": "bridge", "bridge": name, "isGateway": true, "ipam": ipam});
    let macvlan = json!({"type": "macvlan", "master": "uplink", "ipam": blocks});
    for (name, plugin) in
        [("pods", bridge("br1", &blocks)), ("own", bridge("br2", &own)), ("lan", macvlan)]
    {
        let list = json!({"cniVersion": "1.1.0", "name": name, "plugins": [plugin]});
        node.lab.host.sh(&format!("echo '{list}' >/etc/cni/net.d/{name}.conflist"));
    }
}

/// A node with the container `red`, attached to the three networks.
fn node_with_containers(etcd: &Etcd, changes: &Value) -> Node {
    let node = Node::configured(etcd, 1, changes);
    node.start();
    node.lab.host.sh("mkdir -p /etc/cni/net.d && ip netns add red");
    write_networks(&node);
    for (network, ifname) in [("pods", "eth0"), ("own", "eth1"), ("lan", "eth2")] {
        net(&node, &format!("add {network} red --ifname {ifname}"));
    }
    node
}

fn net(node: &Node, line: &str) -> String {
    node.lab.host.sh(&format!("{} net {line}", binary().display()))
}

/// The node is off, is reclaimed, and is back.
fn reclaim_and_return(etcd: &Etcd, node: &Node) {
    let other = Node::join(etcd, 2);
    wait_for_life(etcd, node, "n1");
    node.kill();
    end_life(etcd, "n1");
    other.ipam("reclaim n1 -o json").ok();
    node.start();
    node.wait_until(|node| node.log().contains("this node was reclaimed"));
}

/// Whether the address of the container on an interface answers the host.
fn answers(node: &Node, ifname: &str) -> bool {
    need_programs(&["jq"]);
    let find = format!("ip -n red -j -4 addr show {ifname} | jq -r '.[0].addr_info[0].local'");
    let ping = format!("ping -q -c 1 -W 1 \"$({find})\" >/dev/null");
    node.lab.host.try_sh(&ping).status.success()
}

fn isolated(node: &Node) -> Value {
    node.ipam("isolate -o json").ok()
}

#[test]
fn isolate_cuts_off_the_containers_in_lost_blocks() {
    let Some(etcd) = etcd() else { return };
    let node = node_with_containers(&etcd, &json!({"onFence": "down"}));
    assert_eq!(isolated(&node), json!([]));
    assert!(answers(&node, "eth0") && answers(&node, "eth1"));
    assert!(!node.lab.path(LOST).exists());
    reclaim_and_return(&etcd, &node);
    node.wait_until(|node| node.lab.path(LOST).exists());
    node.wait_until(|node| isolated(node).as_array().unwrap().len() == 2);
    let rows = isolated(&node);
    let of = |network: &str| {
        let all = rows.as_array().unwrap();
        all.iter().find(|row| row["network"] == network).cloned().unwrap()
    };
    let [pods, lan] = [of("pods"), of("lan")];
    assert_eq!((&pods["state"], &pods["ifname"]), (&"down".into(), &"eth0".into()), "{rows}");
    assert_eq!(
        (&lan["state"], &lan["link"]),
        (&"no host end: delete the container".into(), &Value::Null)
    );
    let link = node.lab.host.link(pods["link"].as_str().unwrap()).unwrap();
    assert!(!link["flags"].as_array().unwrap().contains(&"UP".into()), "{link}");
    assert!(!answers(&node, "eth0"), "it is cut off");
    assert!(answers(&node, "eth1"), "another network is not");
    // A repair does not connect it again.
    let repaired = node.lab.host.try_sh(&format!("{} net sync pods", binary().display()));
    let said = String::from_utf8_lossy(&repaired.stderr).into_owned();
    assert!(!repaired.status.success(), "{repaired:?}");
    assert!(said.contains("this node was reclaimed"), "{said}");
    assert!(!answers(&node, "eth0"), "a repair leaves it alone");
    for (network, ifname) in [("pods", "eth0"), ("lan", "eth2")] {
        net(&node, &format!("del {network} red --ifname {ifname}"));
    }
    assert_eq!(isolated(&node), json!([]));
    node.wait_until(|node| node.log().contains("registered, incarnation 1"));
    net(&node, "add pods red --ifname eth0");
    assert!(answers(&node, "eth0"), "a new attachment is connected");
    assert_eq!(isolated(&node), json!([]));
    assert!(answers(&node, "eth0"));
}

/// Without the key the daemon announces nothing; an operator runs the command.
#[test]
fn the_page_of_operations_cuts_off_containers() {
    let Some(etcd) = etcd() else { return };
    let node = node_with_containers(&etcd, &json!({}));
    reclaim_and_return(&etcd, &node);
    node.wait_until(|node| node.ipam("blocks").stdout.contains(" lost "));
    assert!(!node.lab.path(LOST).exists());
    assert!(answers(&node, "eth0"));
    let page = include_str!("../../../../docs/cluster-operations.md");
    let commands = of_page(page, "isolate::the_page_of_operations_cuts_off_containers");
    let printed = node.run_commands(&commands);
    assert!(printed.starts_with("NETWORK  ADDRESS "), "{printed}");
    assert!(
        printed.lines().any(|line| line.starts_with("pods ") && line.ends_with(" down")),
        "{printed}"
    );
    assert!(!answers(&node, "eth0"));
}

/// A daemon that was killed between the loss and the announcement announces when it starts.
#[test]
fn a_daemon_that_starts_with_lost_blocks_announces_them() {
    let Some(etcd) = etcd() else { return };
    let node = node_with_containers(&etcd, &json!({"onFence": "down"}));
    reclaim_and_return(&etcd, &node);
    node.wait_until(|node| node.lab.path(LOST).exists());
    node.kill();
    std::fs::remove_file(node.lab.path(LOST)).unwrap();
    node.start();
    node.wait_until(|node| node.lab.path(LOST).exists());
}

/// The unit has what the command needs, and no more.
#[test]
fn the_capability_of_the_unit_is_enough() {
    let Some(etcd) = etcd() else { return };
    let node = node_with_containers(&etcd, &json!({"onFence": "down"}));
    reclaim_and_return(&etcd, &node);
    let service = include_str!("../../../../packaging/systemd/cni-multi-ipam-isolate.service");
    assert!(service.contains("\nCapabilityBoundingSet=CAP_NET_ADMIN\n"));
    let path = include_str!("../../../../packaging/systemd/cni-multi-ipam-isolate.path");
    assert!(path.contains(&format!("\nPathChanged={LOST}\n")));
    let isolate = format!(
        "setpriv --no-new-privs --bounding-set=-all,+net_admin --inh-caps=-all {} ipam isolate",
        binary().display()
    );
    node.wait_until(|node| node.lab.host.sh(&isolate).contains(" down"));
    assert!(!answers(&node, "eth0"));
}

/// `lan` comes first.
#[test]
fn a_torn_file_keeps_no_other_network_connected() {
    let Some(etcd) = etcd() else { return };
    let node = node_with_containers(&etcd, &json!({}));
    reclaim_and_return(&etcd, &node);
    node.wait_until(|node| node.blocks("pods").iter().any(|(_, state)| state == "lost"));
    node.kill();
    let unreadable = node.ipam("isolate --data-dir /dev/null");
    assert_eq!((unreadable.status, unreadable.stdout.as_str()), (1, ""), "{unreadable:?}");
    assert!(unreadable.stderr.contains("/dev/null"), "{unreadable:?}");
    node.lab.host.sh("echo '{' >/var/lib/cni/cluster-local/lan/blocks.json");
    let failed = node.ipam("isolate");
    assert_eq!(failed.status, 1, "{failed:?}");
    assert!(failed.stderr.contains("lan/blocks.json"), "{failed:?}");
    assert!(!answers(&node, "eth0"));
}
