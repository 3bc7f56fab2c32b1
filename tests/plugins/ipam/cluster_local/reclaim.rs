//! `ipam reclaim`: the blocks of a node that is off, and the node if it comes back.

use serde_json::json;

use super::names;
use crate::support::etcd::Etcd;
use crate::support::node::{Node, SMALL};

/// What the page promises of the node that returns: another node's blocks are lost, and it claims
/// others with a new uid.
#[test]
fn the_page_of_operations_reclaims_a_lost_node() {
    let Some((etcd, [one, two])) = Node::cluster() else { return };
    let old: Vec<String> = ["a", "b", "c"].map(|id| one.add(SMALL, id)).into();
    two.add(SMALL, "d");
    one.kill();
    let page = include_str!("../../../../docs/cluster-operations.md");
    let printed = two.run_commands(page, "reclaim::the_page_of_operations_reclaims_a_lost_node");
    assert!(printed.starts_with("node \"n1\" is reclaimed; blocks freed: "), "{printed}");
    assert!(printed.contains(&format!("default  {}/32", old[0])), "{printed}");
    let keys = etcd.block_keys();
    assert!(!keys.iter().any(|key| key.ends_with(" n1")), "{keys:?}");
    assert_eq!(two.prints("reclaim n1"), "node \"n1\" has nothing in the cluster\n");

    let others = two.add_all(SMALL, "e f g h i j k l m n o p");
    assert_eq!(others.len(), 12, "each address but that of d");
    one.start();
    one.wait_until(|node| node.prints("blocks").matches(" lost ").count() == 3);
    one.check(SMALL, "a", &old[0]).fails(103, "which another node has");
    ["a", "b", "c"].iter().for_each(|id| one.del(SMALL, id));
    two.del(SMALL, "e");
    one.wait_until(|node| node.try_add(SMALL, "q").status == 0);
    assert!(!one.prints("blocks").contains(" lost "), "{}", one.prints("blocks"));
}

#[test]
fn a_living_node_is_not_reclaimed() {
    let Some((etcd, [one, two])) = Node::cluster() else { return };
    one.add(SMALL, "a");
    let before = etcd.block_keys();
    let refused = two.ipam("reclaim n1");
    assert_eq!((refused.status, refused.stdout.as_str()), (1, ""), "{refused:?}");
    assert!(refused.stderr.contains("a living node would answer in the next "), "{refused:?}");
    assert!(refused.stderr.contains("node \"n1\" lives: nothing was freed\n"), "{refused:?}");
    assert_eq!(etcd.block_keys(), before);
    one.add(SMALL, "b");
}

/// Its names are free as well.
#[test]
fn a_node_that_trusts_its_reboot_is_reclaimed_once_it_is_destroyed() {
    let Some(etcd) = Etcd::one() else { return };
    let one = Node::configured(&etcd, 1, json!({"trustReboot": true}));
    one.start();
    let two = Node::join(&etcd, 2);
    assert_eq!(names::add(&one, SMALL, "a", "web"), "10.1.0.14");
    let refused = two.ipam("reclaim n1");
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(refused.stderr.contains("add --destroyed"), "{refused:?}");
    one.kill();
    let freed = two.ipam("reclaim n1 --destroyed -o json").ok();
    let block = json!({"realm": "default", "block": "10.1.0.14/32", "addresses": 1,
        "name": "pods/web/eth0"});
    assert_eq!(freed, json!({"node": "n1", "freed": [block]}));
    let keys = etcd.block_keys();
    assert!(!keys.iter().any(|key| key.ends_with(" n1")), "{keys:?}");
    assert_eq!(names::add(&two, SMALL, "b", "web"), "10.1.0.14");
}

#[test]
fn wrong_names_and_configurations_name_the_next_step() {
    let Some((_etcd, [one, two])) = Node::cluster() else { return };
    one.add(SMALL, "a");
    two.add(SMALL, "b");
    let files = r#"cd /run; set -e
        cp /etc/cni-multi/ipam.json open.json; chmod 644 open.json
        sed s/10.78.0.254:2379/10.78.0.254:9/ /etc/cni-multi/ipam.json >away.json; chmod 600 away.json
        echo '{"cluster":' >torn.json; chmod 600 torn.json"#;
    two.lab.host.sh(files);
    for (line, said) in [
        ("reclaim n2", "NODE: \"n2\" is the node that this command runs on, expected another"),
        ("reclaim a/b", "NODE: \"a/b\" is not a valid name, expected lower-case letters"),
        ("reclaim n1 --config /run/none.json", "/run/none.json: no such file or directory"),
        ("reclaim n1 --config /run/none.json", "name the file with --config"),
        ("reclaim n1 --config /run/open.json", "mode 0644 of user 0, expected 0600"),
        ("reclaim n1 --config /run/torn.json", "/run/torn.json"),
        ("recover", "stop the daemon first"),
        ("join", "stop the daemon first"),
        ("blocks --all --config /run/away.json", "connect to http://10.78.0.254:9"),
    ] {
        let refused = two.ipam(line);
        assert_eq!((refused.status, refused.stdout.as_str()), (1, ""), "{line}: {refused:?}");
        assert!(refused.stderr.contains(said), "{line}: {refused:?}");
    }
    let said = "node \"n11\" has nothing in the cluster; did you mean \"n1\"?\n";
    assert_eq!(two.prints("reclaim n11"), said);
    assert_eq!(two.ipam("reclaim").status, 2);
}

#[test]
fn records_that_were_edited_by_hand_are_named_and_left_alone() {
    let Some((etcd, [one, two])) = Node::cluster() else { return };
    let first = two.add(SMALL, "b");
    let is_claimed = |last: &usize| {
        etcd.block_keys().iter().any(|key| key.contains(&format!("-0a0100{last:02x}-32 ")))
    };
    let edited = (2..15).find(|last| !is_claimed(last)).unwrap();
    let keys = [format!("b/default/4-0a0100{edited:02x}-32"), "n/n9".to_owned()]
        .map(|key| format!("/cni-multi/v2/test/{key}"));
    keys.iter().for_each(|key| drop(etcd.members[0].ctl(&format!("put {key} mine"))));
    let broken = two.ipam("reclaim n9");
    assert!(broken.stderr.contains("the node's record cannot be read"), "{broken:?}");
    let listed = two.ipam("blocks --all -o json").ok();
    let block = format!("10.1.0.{edited}/32");
    let problem = listed.as_array().unwrap().iter().find(|row| row["block"] == block.as_str());
    let problem = problem.unwrap_or_else(|| panic!("{listed}"));
    assert_eq!(problem["state"], "unreadable", "{listed}");
    // Every other address is used.
    let mut all = two.add_all(SMALL, "c d e f g h");
    all.extend(one.add_all(SMALL, "i j k l m"));
    all.insert(first);
    assert!(all.len() == 12 && !all.contains(&format!("10.1.0.{edited}")), "{all:?}");
    assert_eq!(one.try_add(SMALL, "n").err().code, 101);
    for key in keys {
        assert_eq!(etcd.members[0].ctl(&format!("get --print-value-only {key}")), "mine\n");
    }
}
