//! `ipam join`: a machine without a cluster becomes a node of one, and keeps every address.

use serde_json::json;

use super::daemon::{SMALL, WIDE, add_all, etcd};
use super::etcd::{claim, register, written};
use super::reclaim::{blocks, of_page};
use crate::support::etcd::{Driver, Etcd, ONE};
use crate::support::node::Node;

const DIRECTORY: &str = "/var/lib/cni/cluster-local";

/// The records of nodes and the blocks, with the revisions of their last writes.
fn store(etcd: &Etcd) -> Vec<String> {
    let get = |keys: &str| {
        etcd.members[0].ctl(&format!("get --prefix /cni-multi/v1/test/{keys} -w fields"))
    };
    let text = get("n/") + &get("r/default/b/");
    let is_of_key = |line: &&str| !line.starts_with("\"Revision\"") && !line.contains("RaftTerm");
    text.lines().filter(is_of_key).map(str::to_owned).collect()
}

/// Everything below the data directory.
fn disk(node: &Node) -> String {
    node.lab.host.sh(&format!(
        "cd {DIRECTORY}; find . -type f | sort | xargs -r sha256sum; find . -type d | sort"
    ))
}

#[test]
fn a_machine_joins_with_its_addresses_and_shares_the_rest() {
    let Some(etcd) = etcd() else { return };
    let three = Node::alone(&etcd, 3);
    let mut all = add_all(&three, WIDE, &["a", "b", "c", "d", "e"]);
    let kept = all.clone();
    three.del(WIDE, "c");
    three.configure(&json!({"node": "n3"}));
    let daemon = three.ipam("daemon");
    assert_eq!(daemon.status, 1, "{daemon:?}");
    assert!(daemon.stderr.contains("run `cni-multi ipam join` once"), "{daemon:?}");
    let page = include_str!("../../../../docs/cluster-operations.md");
    let test = "join::a_machine_joins_with_its_addresses_and_shares_the_rest";
    let printed = three.run_commands(&of_page(page, test));
    assert!(printed.starts_with("NETWORK  BLOCK"), "{printed}");
    assert!(
        printed.ends_with("joined; start the daemon now: `cni-multi ipam daemon`\n"),
        "{printed}"
    );
    assert_eq!(blocks(&etcd).matches("\"node\":\"n3\"").count(), 2, "{}", blocks(&etcd));
    for (id, address) in ["a", "b", "d", "e"].iter().zip(kept.iter().filter(|ip| *ip != "10.1.0.4"))
    {
        assert_eq!(three.check(WIDE, id, address).status, 0, "{id} {address}");
    }
    let again = three.ipam("join");
    assert_eq!(again.stdout, "n3 is a node of cluster test already: nothing is to be done\n");
    three.start();
    three.wait_until(|node| node.log().contains("the store answers"));
    let two = Node::join(&etcd, 2);
    all.remove("10.1.0.4");
    all.extend(add_all(&three, WIDE, &["f", "g", "h", "i", "j", "k"]));
    all.extend(add_all(&two, WIDE, &["l", "m", "n", "o", "p", "q"]));
    assert_eq!(all.len(), 16, "each address has one owner: {all:?}");
}

#[test]
fn a_cluster_that_has_the_address_is_obeyed_and_nothing_changes() {
    let Some(etcd) = etcd() else { return };
    let three = Node::alone(&etcd, 3);
    let address = three.add(SMALL, "a");
    let two = Node::join(&etcd, 2);
    let ids = ["b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"];
    add_all(&two, SMALL, &ids);
    three.configure(&json!({"node": "n3"}));
    let ip = &address;
    let (store_before, disk_before) = (store(&etcd), disk(&three));
    for line in ["join", "join --dry-run"] {
        let refused = three.ipam(line);
        assert_eq!((refused.status, refused.stdout.as_str()), (1, ""), "{refused:?}");
        let said = format!(
            "{ip} of network \"pods\" is held by \"a\" here, and node \"n2\" has {ip}/32\n"
        );
        assert!(refused.stderr.starts_with(&said), "{refused:?}");
        assert!(refused.stderr.contains("nothing was changed"), "{refused:?}");
    }
    assert_eq!(store(&etcd), store_before);
    assert_eq!(disk(&three), disk_before);
    three.configure(&json!({"node": "n2"}));
    let taken = three.ipam("join");
    assert!(
        taken.stderr.starts_with("another machine of the cluster has the name \"n2\""),
        "{taken:?}"
    );
    three.lab.host.sh("mv /etc/cni-multi/ipam.json /run/ipam.json");
    let elsewhere = three.ipam("join --config /run/ipam.json");
    assert!(
        elsewhere.stderr.starts_with("/etc/cni-multi/ipam.json does not exist"),
        "{elsewhere:?}"
    );
    assert_eq!(disk(&three), disk_before);
    three.lab.host.sh("mv /run/ipam.json /etc/cni-multi/ipam.json");
    three.configure(&json!({"node": "n3"}));
    three.del(SMALL, "a");
    let joined = three.ipam("join");
    assert_eq!(joined.status, 0, "{joined:?}");
}

/// Another node has a part of the block, and none of the addresses that are in use.
#[test]
fn a_block_that_is_shared_is_joined_by_single_addresses() {
    let Some(etcd) = etcd() else { return };
    let three = Node::alone(&etcd, 3);
    assert_eq!(three.add(WIDE, "a"), "10.1.0.2");
    three.configure(&json!({"node": "n3"}));
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        let ground = register(&mut driver, "n9");
        written(&driver.run(claim("n9", "4-0a010003-32", ground)));
    });
    let before = store(&etcd);
    let dry = three.ipam("join --dry-run -o json").ok();
    assert_eq!(dry[0]["block"], "10.1.0.2/32", "{dry}");
    assert_eq!(dry[0]["held"], 1, "{dry}");
    assert_eq!(store(&etcd), before);
    assert_eq!(three.ipam("join -o json").ok(), dry);
    assert!(blocks(&etcd).contains("b/4-0a010002-32"), "{}", blocks(&etcd));
    // Died before its last write: the next run finds its own keys.
    let record = format!("{DIRECTORY}/.node/node.json");
    three.lab.host.sh(&format!("sed -i 's/\"epoch\":0/\"epoch\":null/' {record}"));
    let claimed = store(&etcd);
    assert_eq!(three.ipam("join -o json").ok(), dry);
    assert_eq!(store(&etcd), claimed, "the same keys, not written again");
    assert!(three.lab.host.sh(&format!("cat {record}")).contains("\"epoch\":0"));
}
