//! Copied data directories: templates and clones of machines, restored and lost disks. Whatever a copy
//! thinks that it holds, no address is given to two containers, also not by a third node.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::attachment::ips;
use crate::support::call::Outcome;
use crate::support::etcd::Etcd;
use crate::support::node::{DATA, Node, SMALL, conf};

const TAKEN: &str = "another machine has the name of this node";
const OLDER: &str = "the disk of this node is older than its record in the store";
const REPLACED: &str = "the data directory was replaced in this boot";

fn try_add(node: &Node, id: &str) -> Outcome {
    node.attachment(&conf(SMALL, json!({"patience": 3})), id).try_add()
}

/// Addresses of this many containers, or of fewer if no more are free.
fn add_most(node: &Node, prefix: &str, most: usize) -> Vec<String> {
    let add = |number| {
        let add = || try_add(node, &format!("{prefix}{number}"));
        // On a busy machine the store may not answer in time.
        let is_final = |outcome: &Outcome| outcome.status == 0 || outcome.err().code != 11;
        (0..5).map(|_| add()).find(is_final).unwrap_or_else(add)
    };
    let added = (0..most).map(add).take_while(|outcome| outcome.status == 0);
    added.flat_map(|outcome| ips(&outcome.ok())).collect()
}

/// Copies the data directory of a machine over that of another.
fn copy(from: &Node, from_path: &str, to: &Node, to_path: &str) {
    let (from, to) = (from.lab.path(from_path), to.lab.path(to_path));
    let _ = std::fs::remove_dir_all(&to); // there may be none
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    let copied = Command::new("cp").arg("-a").args([&from, &to]).status().unwrap();
    assert!(copied.success(), "{from:?} {to:?}");
}

/// A machine with three containers, whose directory was copied to /run/copy before it got two more.
fn original(etcd: &Etcd) -> (Node, Vec<String>) {
    let one = Node::join(etcd, 1);
    let mut held = add_most(&one, "a", 3);
    one.kill();
    copy(&one, DATA, &one, "/run/copy");
    one.start();
    held.extend(add_most(&one, "b", 2));
    assert_eq!(held.len(), 5, "{}", one.log());
    (one, held)
}

/// How many addresses are claimed.
fn claims(etcd: &Etcd) -> usize {
    etcd.block_keys().iter().filter(|key| !key.ends_with(" ?")).count()
}

/// The node allocates nothing, for this reason.
#[track_caller]
fn assert_refused(what: &str, node: &Node, reason: &str) {
    node.wait_until(|node| node.log().contains(reason));
    for refused in [try_add(node, "refused").err(), node.status(SMALL).err()] {
        assert_eq!((refused.code, refused.msg.as_str()), (50, reason), "{what}: {}", node.log());
    }
}

#[track_caller]
fn assert_new(what: &str, all: &mut BTreeSet<String>, added: Vec<String>) {
    for ip in added {
        assert!(all.insert(ip.clone()), "{what}: {ip} is given twice");
    }
}

#[test]
fn a_copy_on_another_machine_gives_no_address_of_the_original() {
    // The name of the copy, whether the original is off, and why the copy is refused, if it is.
    for (what, name, is_off, refused) in [
        ("a machine of the template", "n2", false, None),
        ("a machine of the template, which is off", "n2", true, None),
        ("a clone with the same name", "n1", false, Some(TAKEN)),
        ("a clone with the same name instead of the original", "n1", true, Some(TAKEN)),
    ] {
        let Some(etcd) = Etcd::one() else { return };
        let (one, held) = original(&etcd);
        let mut all = BTreeSet::from_iter(held);
        if is_off {
            one.kill();
        }
        let two = Node::configured(&etcd, 2, json!({"node": name}));
        two.set_boot(2);
        copy(&one, "/run/copy", &two, DATA);
        two.start();
        let three = Node::join(&etcd, 3);
        match refused {
            Some(reason) => assert_refused(what, &two, reason),
            None => {
                two.wait_until(|two| try_add(two, "first").status == 0);
                let first = two.leases("pods").iter().map(ToString::to_string).collect();
                assert_new(what, &mut all, first);
                assert_new(what, &mut all, add_most(&two, "c", 2));
            }
        }
        assert_new(what, &mut all, add_most(&three, "d", 9));
        if !is_off {
            assert_new(what, &mut all, add_most(&one, "e", 2));
        }
        assert_eq!(claims(&etcd), 13, "{what}: every address is reached: {all:?}");
    }
}

#[test]
fn a_machine_with_an_older_disk_allocates_nothing() {
    /// What happens to the disk of the machine, while its daemon is off.
    type Change = fn(&Node);
    let restored: Change = |one| copy(one, "/run/copy", one, DATA);
    let emptied: Change = |one| std::fs::remove_dir_all(one.lab.path(DATA)).unwrap();
    for (what, change, boots, reason) in [
        ("a restored disk", restored, true, OLDER),
        ("an empty disk", emptied, true, OLDER),
        ("a restored directory under containers", restored, false, REPLACED),
        ("an empty directory under containers", emptied, false, REPLACED),
    ] {
        let Some(etcd) = Etcd::one() else { return };
        let (one, held) = original(&etcd);
        one.kill();
        if boots {
            one.set_boot(2);
        }
        change(&one);
        let without = try_add(&one, "early").err();
        assert_eq!(without.code, 11, "{what}, and no daemon: {without:?}");
        one.start();
        assert_refused(what, &one, reason);
        let mut all = BTreeSet::from_iter(held);
        assert_new(what, &mut all, add_most(&Node::join(&etcd, 3), "d", 9));
        assert_eq!(claims(&etcd), 13, "{what}: {all:?}");
    }
}

/// Its record has to rest for so long that a copy of the machine, if one runs, has beaten.
#[test]
fn a_restored_disk_is_used_after_forty_seconds() {
    let Some(etcd) = Etcd::one() else { return };
    let (one, held) = original(&etcd);
    one.kill();
    one.set_boot(2);
    copy(&one, "/run/copy", &one, DATA);
    let began = Instant::now();
    one.start();
    let three = Node::join(&etcd, 3);
    let mut all = BTreeSet::from_iter(add_most(&three, "d", 7));
    assert!(held.iter().all(|ip| !all.contains(ip)), "{held:?} {all:?}");
    one.wait_until(|one| one.status(SMALL).status != 0);
    one.wait_until(|one| one.status(SMALL).status == 0);
    let rested = began.elapsed();
    assert!(rested >= Duration::from_secs(40), "{rested:?}\n{}", one.log());
    assert_new("restored", &mut all, add_most(&one, "c", 4));
    // The claims that the restored disk does not know are given back.
    assert_new("restored", &mut all, add_most(&three, "e", 2));
    assert_eq!(all.len(), 13, "{all:?}\n{}", one.log());
}
