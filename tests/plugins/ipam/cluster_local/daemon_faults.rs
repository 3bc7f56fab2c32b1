//! What happens under running daemons: to etcd, of which a snapshot is restored, which is full, or whose leader
//! moves, and to the node's files.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::etcd::Etcd;
use crate::support::node::{DATA, Node, SMALL, WIDE};

/// Replaces what etcd has by what it had when the snapshot was taken.
pub fn restore(etcd: &mut Etcd) {
    etcd.members[0].signal(Signal::SIGKILL);
    let (data, snapshot) = (etcd.data(1), etcd.scratch.join("snapshot"));
    etcd.lab.host.sh(&format!(
        "rm -r {0}; ETCDCTL_API=3 etcdctl snapshot restore {1} --data-dir {0} --name one0 --initial-cluster one0=http://localhost:2380",
        data.display(),
        snapshot.display()
    ));
    etcd.restart(1);
    etcd.wait_until_ready(1);
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
    let Some(mut etcd) = Etcd::one() else { return };
    // Long enough for both daemons to notice that their records went back, with an ADD's beat.
    let [one, two] = [1, 2].map(|number| Node::configured(&etcd, number, json!({"settle": 5})));
    one.start();
    two.start();
    let mut all = one.add_all(WIDE, "a");
    all.extend(two.add_all(WIDE, "b"));
    take_snapshot(&etcd);
    all.extend(one.add_all(WIDE, "c d e f g h i j"));
    restore(&mut etcd);
    all.extend(two.add_all(WIDE, "k l m n o p"));
    one.wait_until(|_| has_keys_of(&etcd, &[&one, &two]));
    assert!(one.log().contains("went back: every block is verified"), "{}", one.log());
    all.extend(one.add_all(WIDE, "q r s t"));
    assert_eq!(all.len(), 20, "each address has one owner: {all:?}");
}

/// ADD writes the file anew, and the daemon its blocks with leases; it gives the others back.
#[test]
fn a_file_of_blocks_that_was_removed_is_written_again() {
    let Some((etcd, [one, two])) = Node::cluster() else { return };
    let mut all = one.add_all(WIDE, "a b c d e f g h i");
    std::fs::remove_file(one.lab.path(&format!("{DATA}/pods/blocks.json"))).unwrap();
    all.extend(one.add_all(WIDE, "j k l"));
    all.extend(two.add_all(WIDE, "m n o p"));
    assert_eq!(all.len(), 16, "each address has one owner: {all:?}");
    one.wait_until(|_| has_keys_of(&etcd, &[&one, &two]) && one.has_only("active"));
    for address in one.leases("pods").iter().map(ToString::to_string) {
        one.check(WIDE, &one.lease_of(&address), &address).ok();
    }
}

/// The history is compacted while a daemon does not run, and its watch ends with the server.
#[test]
fn wants_are_seen_after_etcd_has_restarted() {
    let Some((mut etcd, [one, two])) = Node::cluster() else { return };
    let mut all = one.add_all(SMALL, "a b");
    one.signal(Signal::SIGSTOP);
    all.extend(two.add_all(SMALL, "c d e f"));
    etcd.members[0].ctl(&format!("compact {}", etcd.members[0].revision()));
    etcd.restart(1);
    one.signal(Signal::SIGCONT);
    all.extend(one.add_all(SMALL, "g h i j k l m"));
    assert_eq!(all.len(), 13, "{all:?}");
    one.del(SMALL, "a");
    two.add(SMALL, "n"); // the other machine has seen the want
}

#[test]
fn a_full_store_stops_claims_alone_and_is_told() {
    let Some((etcd, [one])) = Node::cluster_with("--quota-backend-bytes 200000") else { return };
    one.add(WIDE, "a");
    let fill = "for i in $(seq 9); do head -c 60000 /dev/zero | tr '\\0' x | ETCDCTL_API=3 etcdctl put big || break; done";
    etcd.lab.host.sh(fill);
    let held = |number: usize| one.try_add(WIDE, &format!("b{number}"));
    let refused = (0..24).map(held).find(|outcome| outcome.status != 0).unwrap();
    refused.fails(
        11,
        "etcdserver: mvcc: database space exceeded; compact and defragment the store or raise \
         --quota-backend-bytes, then `etcdctl alarm disarm`",
    );
    let member = &etcd.members[0];
    member.ctl("del big");
    member.ctl(&format!("compact {}", member.revision()));
    member.ctl("defrag");
    member.ctl("alarm disarm");
    one.wait_until(|one| one.try_add(WIDE, "c").status == 0);
    one.add_all(WIDE, "d e f g h");
}

/// On a node that has booted, pods start before the daemon has met the store.
#[test]
fn an_add_waits_for_a_daemon_that_has_just_started() {
    let Some((etcd, [one])) = Node::cluster() else { return };
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
fn claims_go_on_while_the_leader_moves() {
    let Some(etcd) = Etcd::three() else { return };
    let nodes: [Node; 2] = Node::all(&etcd);
    let mut all = BTreeSet::new();
    for round in 0..3 {
        etcd.move_leader(etcd.find_leader().unwrap() % 3 + 1);
        for node in &nodes {
            all.extend((0..6).map(|number| node.add(WIDE, &format!("c{round}-{number}"))));
        }
    }
    assert_eq!(all.len(), 36, "each address has one owner: {all:?}");
}
