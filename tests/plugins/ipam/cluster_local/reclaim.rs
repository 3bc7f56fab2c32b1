//! `ipam reclaim`: the blocks of a node that is gone, and the node if it comes back.

use std::collections::BTreeSet;

use cni_multi::plugins::ipam::cluster_local::engine::{Answer, Operation, Outcome, Seen};
use serde_json::Value;

use super::daemon::{SMALL, WIDE, add_all, etcd};
use super::etcd::{name, node_state, written};
use crate::support::etcd::{Driver, Etcd, ONE};
use crate::support::node::Node;

/// The keys of the blocks of the realm, each with its value.
pub fn blocks(etcd: &Etcd) -> String {
    etcd.members[0].ctl("get --prefix /cni-multi/v1/test/r/default/b/")
}

/// The commands that a page has for a test.
pub fn of_page(page: &str, test: &str) -> String {
    let fence = format!("```sh run by plugins::ipam::cluster_local::{test}\n");
    let block = page.split(&fence).nth(1).unwrap_or_else(|| panic!("no block of {test}"));
    block.split("```").next().unwrap().to_owned()
}

/// Deletes the key `alive` of a node that is gone, as etcd does when it expires.
pub fn end_life(etcd: &Etcd, node: &str) {
    let key = format!("get -w json /cni-multi/v1/test/n/{node}/alive");
    let found: Value = serde_json::from_str(&etcd.members[0].ctl(&key)).unwrap();
    let lease = found["kvs"][0]["lease"].as_u64().unwrap();
    etcd.members[0].ctl(&format!("lease revoke {lease:x}"));
}

/// Waits until the daemon has sent its first heartbeat.
pub fn wait_for_life(etcd: &Etcd, node: &Node, name: &str) {
    let key = format!("get /cni-multi/v1/test/n/{name}/alive");
    node.wait_until(|_| !etcd.members[0].ctl(&key).trim().is_empty());
}

fn reclaimed(node: &Node, name: &str) -> Value {
    node.ipam(&format!("reclaim {name} -o json")).ok()
}

#[test]
fn the_addresses_of_a_node_that_is_gone_are_free_again() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    add_all(&one, SMALL, &["a", "b", "c"]);
    add_all(&two, SMALL, &["d"]);
    wait_for_life(&etcd, &one, "n1");
    one.kill();
    let alive = two.ipam("reclaim n1");
    assert_eq!((alive.status, alive.stdout.as_str()), (1, ""), "{alive:?}");
    assert!(alive.stderr.starts_with("node \"n1\" is alive\n"), "{alive:?}");
    assert!(
        alive
            .stderr
            .contains("a heartbeat lasts 60 s: if the machine is gone, try again after that"),
        "{alive:?}"
    );
    assert!(blocks(&etcd).contains("\"node\":\"n1\""));
    end_life(&etcd, "n1");
    let done = reclaimed(&two, "n1");
    assert_eq!(
        (&done["standing"], &done["incarnation"]),
        (&Value::from("fenced"), &Value::from(1))
    );
    assert!(done["freed"].as_array().unwrap().len() >= 3, "{done}");
    assert_eq!(done["freed"][0]["realm"], "default");
    assert!(!blocks(&etcd).contains("\"node\":\"n1\""), "{}", blocks(&etcd));
    let all = add_all(&two, SMALL, &["e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"]);
    assert_eq!(all.len(), 12, "each address but that of d: {all:?}");
    let again = two.ipam("reclaim n1");
    let said = "node \"n1\" is fenced until it registers again; blocks freed: 0\n";
    assert_eq!((again.status, again.stdout.as_str()), (0, said), "{again:?}");
}

#[test]
fn the_page_of_operations_reclaims_a_lost_node() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    one.add(WIDE, "a");
    wait_for_life(&etcd, &one, "n1");
    one.kill();
    end_life(&etcd, "n1");
    let page = include_str!("../../../../docs/cluster-operations.md");
    let test = "reclaim::the_page_of_operations_reclaims_a_lost_node";
    let printed = two.run_commands(&of_page(page, test));
    let head = "node \"n1\" is fenced until it registers again; blocks freed: 1\n";
    assert!(printed.starts_with(head), "{printed}");
    assert!(printed.contains("REALM    BLOCK"), "{printed}");
    assert_eq!(blocks(&etcd), "");
}

/// What the design promises of a node that returns: nothing of the old blocks, code 50, and a new
/// registration after the last old lease.
#[test]
fn a_reclaimed_node_that_returns_is_fenced_until_it_is_empty() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    let old = one.add(WIDE, "a");
    assert_eq!(one.check(WIDE, "a", &old).status, 0);
    wait_for_life(&etcd, &one, "n1");
    one.kill();
    end_life(&etcd, "n1");
    reclaimed(&two, "n1");
    one.start();
    one.wait_until(|node| node.log().contains("this node was reclaimed"));
    let refused = one.try_add(WIDE, "b").err();
    assert_eq!(refused.msg, "this node was reclaimed", "{refused:?}\n{}", one.log());
    let status = one.status(WIDE).err();
    assert_eq!((status.code, status.msg.as_str()), (50, "this node was reclaimed"));
    assert!(status.details.contains("detach what still has addresses"), "{status:?}");
    let check = one.check(WIDE, "a", &old).err();
    assert_eq!(check.code, 103, "{check:?}");
    assert!(check.msg.contains("this node was reclaimed"), "{check:?}");
    assert!(one.ipam("blocks").stdout.contains(" lost "), "{:?}", one.ipam("blocks"));
    one.del(WIDE, "a");
    one.wait_until(|node| node.try_add(WIDE, "c").status == 0);
    assert!(one.log().contains("registered, incarnation 1"), "{}", one.log());
    assert!(blocks(&etcd).contains("\"incarnation\":1"));
}

/// The command dies after the fence and the first block; meanwhile a new machine has the name.
#[test]
fn an_interrupted_reclaim_goes_on_although_the_name_is_in_use() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    add_all(&one, SMALL, &["a", "b", "c"]);
    two.add(SMALL, "d");
    wait_for_life(&etcd, &one, "n1");
    one.kill();
    end_life(&etcd, "n1");
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        let seen = node_state(driver.run(Operation::ReadNode { node: name("n1") })).record.unwrap();
        written(&driver.run(Operation::Fence { node: name("n1"), seen }));
        let Outcome::Done { answer: Answer::Cluster(state), .. } = driver.run(Operation::Survey)
        else {
            panic!("no survey")
        };
        let found = state.realms[&name("default")].blocks.iter();
        let of_one = |claimed: &&_| {
            let claimed: &cni_multi::plugins::ipam::cluster_local::engine::Claimed = claimed;
            claimed.owner.node == name("n1")
        };
        let first = found
            .filter_map(|found| Some((found, found.claimed.as_ref().filter(of_one)?)))
            .next()
            .unwrap();
        let seen =
            Seen { block: first.0.block, claimed: first.1.clone(), revision: first.0.revision };
        written(&driver.run(Operation::Release { realm: name("default"), seen }));
    });
    let new = Node::named(&etcd, 3, "n1");
    new.start();
    let own = new.add(SMALL, "e");
    wait_for_life(&etcd, &new, "n1");
    let done = reclaimed(&two, "n1");
    assert_eq!(done["standing"], "live", "{done}");
    assert!(done["freed"].as_array().unwrap().len() >= 2, "{done}");
    let left = blocks(&etcd);
    assert!(!left.contains("\"node\":\"n1\",\"uid\":\"0\",\"incarnation\":0"), "{left}");
    assert!(left.contains("\"incarnation\":1"), "the new machine keeps its block: {left}");
    assert_eq!(new.check(SMALL, "e", &own).status, 0);
    let alive = two.ipam("reclaim n1");
    assert!(alive.stderr.starts_with("node \"n1\" is alive"), "{alive:?}");
}

#[test]
fn wrong_names_and_configurations_name_the_next_step() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    one.add(WIDE, "a");
    two.add(WIDE, "b");
    let files = r#"cd /run; set -e
        cp /etc/cni-multi/ipam.json open.json; chmod 644 open.json
        sed s/10.78.0.254:2379/10.78.0.254:9/ /etc/cni-multi/ipam.json >away.json; chmod 600 away.json
        echo '{"cluster":' >torn.json; chmod 600 torn.json"#;
    two.lab.host.sh(files);
    for (line, said) in [
        ("reclaim n11", "did you mean \"n1\"?"),
        ("reclaim somewhere", "NODE: no node of the cluster was ever called \"somewhere\""),
        ("reclaim somewhere", "the nodes are n1, n2"),
        ("reclaim n2", "NODE: \"n2\" is the node that this command runs on, expected another"),
        ("reclaim a/b", "NODE: \"a/b\" is not a valid name, expected letters"),
        ("reclaim n1 --config /run/none.json", "/run/none.json: no such file or directory"),
        ("reclaim n1 --config /run/none.json", "name the file with --config"),
        ("reclaim n1 --config /run/open.json", "mode 0644 of user 0, expected 0600"),
        ("reclaim n1 --config /run/torn.json", "/run/torn.json"),
        ("reclaim n1 --config /run/away.json", "connect to http://10.78.0.254:9"),
        ("recover --config /run/away.json", "connect to http://10.78.0.254:9"),
        ("recover --config /run/none.json", "no such file or directory"),
        ("join --config /run/open.json", "mode 0644 of user 0"),
    ] {
        let refused = two.ipam(line);
        assert_eq!((refused.status, refused.stdout.as_str()), (1, ""), "{line}: {refused:?}");
        assert!(refused.stderr.contains(said), "{line}: {refused:?}");
    }
    let usage = two.ipam("reclaim");
    assert_eq!(usage.status, 2, "{usage:?}");
}

#[test]
fn keys_that_were_edited_by_hand_are_named_and_left_alone() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    one.add(WIDE, "a");
    two.add(WIDE, "b");
    wait_for_life(&etcd, &one, "n1");
    one.kill();
    end_life(&etcd, "n1");
    let key = "/cni-multi/v1/test/r/default/b/4-0b000000-26";
    etcd.members[0].ctl(&format!("put {key} mine"));
    etcd.members[0].ctl("put /cni-multi/v1/test/n/n9 '{\"uid\":7}'");
    let broken = two.ipam("reclaim n9");
    assert!(broken.stderr.starts_with("the record of node \"n9\" cannot be read"), "{broken:?}");
    let done = two.ipam("reclaim n1");
    assert_eq!(done.status, 0, "{done:?}");
    let named = format!("the key \"{key}\" cannot be read and was left alone");
    assert!(done.stdout.contains(&named), "{done:?}");
    assert!(done.stdout.contains("blocks freed: 1"), "{done:?}");
    assert!(blocks(&etcd).contains("mine"));
    let listed = two.ipam("conflicts -o json").ok();
    let problems: BTreeSet<&str> =
        listed.as_array().unwrap().iter().filter_map(|row| row["problem"].as_str()).collect();
    assert!(problems.contains(format!("the key \"{key}\" cannot be read").as_str()), "{listed}");
}
