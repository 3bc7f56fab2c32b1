//! After all is healed: every free address can be allocated from every machine, and nothing is left
//! once all are detached.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{NETWORKS, World, conf};
use crate::support::attachment::ips;
use crate::support::etcd::Etcd;
use crate::support::extent::is_long;
use crate::support::node::Node;
use crate::support::patience;

/// The addresses of the large network: of 64, without the network's own, the gateway and the last.
const ADDRESSES: usize = 61;
/// The longest patience of an ADD, in seconds: daemons may have lost contact a moment ago.
const PATIENCE: u64 = 25;

pub fn assert_all_is_free(world: &World, etcd: &Etcd) {
    let nodes: Vec<&Node> = world.machines.iter().map(|machine| &machine.node).collect();
    assert_no_lease(&nodes);
    // Two in a row, so that one gets what another had; the first one begins with any state.
    let count = if is_long() { nodes.len() } else { 2 };
    let first = (world.seed % nodes.len() as u64) as usize;
    for turn in 0..count {
        let node = nodes[(first + turn) % nodes.len()];
        let began = Instant::now();
        take_every_address(node, world.seed);
        eprintln!("n{} had every address after {:.1?}", node.number, began.elapsed());
    }
    assert_no_lease(&nodes);
    let idle = if is_long() { Duration::from_secs(480) } else { Duration::ZERO };
    assert_only_held_blocks_have_keys(&nodes, etcd, idle);
}

fn assert_no_lease(nodes: &[&Node]) {
    for node in nodes {
        let leases = NETWORKS.map(|network| node.leases(network));
        assert!(leases.iter().all(BTreeSet::is_empty), "n{}: {leases:?}", node.number);
    }
}

/// Attaches as many containers as there are addresses, one more, and detaches them.
fn take_every_address(node: &Node, seed: u64) {
    let conf = |patience| conf(seed, NETWORKS[0], patience);
    let ids: Vec<String> = (0..ADDRESSES).map(|number| format!("last-{number}")).collect();
    let mut found = BTreeSet::new();
    for id in &ids {
        let outcome = node.attachment(&conf(PATIENCE), id).try_add();
        let held = || format!("{} of {ADDRESSES}: {outcome:?}\n{}", found.len(), node.log());
        assert_eq!(outcome.status, 0, "n{}: {}", node.number, held());
        found.extend(ips(&outcome.ok()));
    }
    assert_eq!(found.len(), ADDRESSES, "each is another one: {found:?}");
    let full = node.attachment(&conf(3), "last").try_add().err();
    assert_eq!(full.code, 101, "{full:?}");
    ids.iter().for_each(|id| node.attachment(&conf(PATIENCE), id).del());
}

/// In etcd are divisions and the blocks that machines have on their disks, and no more blocks than are
/// spare after a while.
fn assert_only_held_blocks_have_keys(nodes: &[&Node], etcd: &Etcd, idle: Duration) {
    // A daemon lists its claims once a minute while any node wants some.
    let until = Instant::now() + patience(70) + idle;
    loop {
        let mut keys = etcd.block_keys();
        keys.retain(|key| !key.ends_with(" ?")); // divisions
        let held = held(nodes);
        let has_surplus = !idle.is_zero() && nodes.iter().any(|node| has_surplus(node));
        if keys == held && !has_surplus {
            return;
        }
        assert!(Instant::now() < until, "keys: {keys:#?}\nheld: {held:#?}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Whether a network has more blocks than the one that is spare.
fn has_surplus(node: &Node) -> bool {
    NETWORKS.iter().any(|network| node.blocks(network).len() > 1)
}

/// The keys that all machines together should have: of each block its own, and no other.
fn held(nodes: &[&Node]) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for node in nodes {
        for (block, state) in NETWORKS.iter().flat_map(|network| node.blocks(network)) {
            let key = format!("{block} n{}", node.number);
            assert!(keys.insert(key.clone()), "twice: {key} {state}");
            assert_ne!(state, "conflict", "{key}");
        }
    }
    keys
}
