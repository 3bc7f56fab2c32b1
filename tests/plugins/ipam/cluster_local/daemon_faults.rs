//! What happens to etcd under running daemons: a snapshot is restored, the history is compacted, the
//! store is full, tokens expire, another member leads.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use super::daemon::{SMALL, WIDE, add_all, etcd, etcd_with};
use super::etcd_access::enable_users;
use crate::support::etcd::Etcd;
use crate::support::node::Node;

/// Replaces what etcd has by what it had when the snapshot was taken.
pub fn restore(etcd: &mut Etcd) {
    etcd.members[0].signal(Signal::SIGKILL);
    let (data, snapshot) = (etcd.scratch.join("one0"), etcd.scratch.join("snapshot"));
    etcd.lab.host.sh(&format!(
        "rm -r {0}; ETCDCTL_API=3 etcdctl snapshot restore {1} --data-dir {0} --name one0 --initial-cluster one0=http://localhost:2380",
        data.display(),
        snapshot.display()
    ));
    etcd.restart(1);
    etcd.wait_until_ready("one0");
}

pub fn take_snapshot(etcd: &Etcd) {
    etcd.members[0].ctl(&format!("snapshot save {}", etcd.scratch.join("snapshot").display()));
}

/// Whether etcd has a key for each block on the disk, and no other.
fn has_keys_of(etcd: &Etcd, nodes: &[&Node]) -> bool {
    let held = nodes.iter().flat_map(|node| {
        node.blocks("pods").into_iter().map(|(block, _)| format!("{block} n{}", node.number))
    });
    let claimed = etcd.block_keys().into_iter().filter(|key| !key.ends_with(" ?")); // divisions
    claimed.collect::<BTreeSet<String>>() == held.collect()
}

#[test]
fn claims_that_a_snapshot_lacks_are_made_again() {
    let Some(mut etcd) = etcd() else { return };
    // Long enough for both daemons to notice that their records went back, with an ADD's beat.
    let settling = |number| Node::configured(&etcd, number, &json!({"settle": 5}));
    let [one, two] = [settling(1), settling(2)];
    one.start();
    two.start();
    let mut all = add_all(&one, WIDE, &["a"]);
    all.extend(add_all(&two, WIDE, &["b"]));
    take_snapshot(&etcd);
    all.extend(add_all(&one, WIDE, &["c", "d", "e", "f", "g", "h", "i", "j"]));
    restore(&mut etcd);
    all.extend(add_all(&two, WIDE, &["k", "l", "m", "n", "o", "p"]));
    one.wait_until(|_| has_keys_of(&etcd, &[&one, &two]));
    assert!(one.log().contains("went back: every block is verified"), "{}", one.log());
    all.extend(add_all(&one, WIDE, &["q", "r", "s", "t"]));
    assert_eq!(all.len(), 20, "each address has one owner: {all:?}");
}

/// The worst that a restore can do: the machine was off whose claim the snapshot lacks.
#[test]
fn in_a_conflict_no_machine_allocates() {
    let Some(mut etcd) = etcd() else { return };
    let [one, two] = [1, 2].map(|number| Node::join(&etcd, number));
    one.add(SMALL, "a");
    take_snapshot(&etcd);
    let lost = one.add(SMALL, "b");
    one.kill();
    restore(&mut etcd);
    let ids: Vec<String> = (0..12).map(|number| format!("c{number}")).collect();
    let taken: BTreeSet<String> = ids.iter().map(|id| two.add(SMALL, id)).collect();
    assert!(taken.contains(&lost), "{taken:?} has no {lost}");
    one.start();
    let is_in_conflict = |node: &Node| {
        let blocks = node.blocks("pods");
        blocks.iter().any(|(_, state)| ["lost", "contested"].contains(&state.as_str()))
    };
    for (node, says) in [(&one, "another node has it"), (&two, "another node has leases in it")] {
        node.wait_until(is_in_conflict);
        assert!(node.log().contains(says), "{}", node.log());
        assert!(node.leases("pods").contains(&lost.parse().unwrap()), "its container lives");
    }
    let of_two = ids.iter().find(|id| two.lease_of("pods", &lost) == **id).unwrap();
    two.del(SMALL, of_two);
    let refused = [&one, &two].map(|node| node.try_add(SMALL, "late"));
    assert!(refused.iter().all(|outcome| outcome.status != 0), "one of them got it: {refused:?}");
    one.del(SMALL, "b");
    two.wait_until(|two| two.try_add(SMALL, "late").status == 0);
    assert!(!is_in_conflict(&one) && !is_in_conflict(&two));
}

#[test]
fn a_watch_that_was_compacted_away_begins_anew() {
    let Some(mut etcd) = etcd() else { return };
    let [one, two] = [1, 2].map(|number| Node::join(&etcd, number));
    add_all(&one, SMALL, &["a", "b"]);
    one.signal(Signal::SIGSTOP);
    let held = add_all(&two, SMALL, &["c", "d", "e", "f"]);
    let status = etcd.members[0].ctl("get /nothing -w json");
    let revision = status.split("\"revision\":").nth(1).unwrap().split(',').next().unwrap();
    etcd.members[0].ctl(&format!("compact {revision}"));
    etcd.restart(1);
    one.signal(Signal::SIGCONT);
    let mut all = add_all(&one, SMALL, &["g", "h", "i", "j", "k", "l", "m"]);
    all.extend(held);
    assert_eq!(all.len(), 11, "{all:?}");
    one.del(SMALL, "a");
    two.add(SMALL, "n"); // the other machine has seen the want
}

#[test]
fn a_full_store_stops_claims_alone_and_is_told() {
    let Some(etcd) = etcd_with(&["--quota-backend-bytes", "200000"]) else { return };
    let one = Node::join(&etcd, 1);
    one.add(WIDE, "a");
    let fill = "for i in $(seq 9); do head -c 60000 /dev/zero | tr '\\0' x | ETCDCTL_API=3 etcdctl put big || break; done";
    etcd.lab.host.sh(fill);
    let held = |number: usize| one.try_add(WIDE, &format!("b{number}"));
    let refused = (0..24).map(held).find(|outcome| outcome.status != 0).unwrap().err();
    assert_eq!(refused.code, 11, "{refused:?}\n{}", one.log());
    assert!(refused.msg.contains("database space exceeded; compact and defragment"), "{refused:?}");
    etcd.lab.host.sh("export ETCDCTL_API=3; etcdctl del big
         at=$(etcdctl get /nothing -w fields | sed -n 's/^\"Revision\" : //p')
         etcdctl compact $at && etcdctl defrag && etcdctl alarm disarm");
    one.wait_until(|one| one.try_add(WIDE, "c").status == 0);
    add_all(&one, WIDE, &["d", "e", "f", "g", "h"]);
}

/// On a node that has booted, pods start before the daemon has met the store.
#[test]
fn an_add_waits_for_a_daemon_that_has_just_started() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    one.add(WIDE, "a");
    one.kill();
    one.set_boot(2);
    etcd.members[0].signal(Signal::SIGSTOP);
    one.start();
    let added = thread::scope(|scope| {
        let add = scope.spawn(|| one.try_add(WIDE, "b"));
        thread::sleep(Duration::from_millis(300)); // it asks while the store does not answer
        etcd.members[0].signal(Signal::SIGCONT);
        add.join().unwrap()
    });
    assert_eq!(added.status, 0, "{added:?}\n{}", one.log());
}

#[test]
fn the_daemon_renews_a_token_that_has_expired() {
    let Some(etcd) = etcd_with(&["--auth-token-ttl", "1"]) else { return };
    enable_users(&etcd, "--endpoints 127.0.0.1:2379");
    let login = json!({"etcd": {"user": "cni", "passwordFile": "/etc/cni-multi/password"}});
    let one = Node::configured(&etcd, 1, &login);
    one.lab.host.sh("umask 077; echo secret >/etc/cni-multi/password");
    one.start();
    one.add(WIDE, "a");
    std::thread::sleep(Duration::from_millis(3500));
    add_all(&one, WIDE, &["b", "c", "d", "e", "f", "g"]);
    assert!(!one.log().contains("refused"), "{}", one.log());
}

#[test]
fn claims_go_on_while_the_leader_moves() {
    let Some(etcd) = Etcd::three() else { return };
    let [one, two] = [1, 2].map(|number| Node::join_three(&etcd, number));
    let mut all = BTreeSet::new();
    for round in 0..3 {
        etcd.move_leader(etcd.leader() % 3 + 1);
        for node in [&one, &two] {
            all.extend((0..6).map(|number| node.add(WIDE, &format!("c{round}-{number}"))));
        }
    }
    assert_eq!(all.len(), 36, "each address has one owner: {all:?}");
}
