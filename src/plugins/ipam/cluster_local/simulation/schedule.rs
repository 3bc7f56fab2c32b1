//! A schedule: what happens at random, and what must be true when it stops.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::super::engine::Operation;
use super::super::held::{Blocks, State};
use super::super::machine::Event;
use super::super::pool::{BlockSize, Pool};
use super::store::Store;
use super::world::{Coming, SETTLE, World};
use crate::steps::allocation::ranges::{RangeConf, RangeSet};

/// What goes wrong in a schedule, beside ADDs and DELs at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Network,
    Crashes,
    Reclaims,
    /// The store is restored, the epoch is raised before it serves, and every daemon reaches it.
    OrderlyRestore,
    /// The store is restored in the midst of other faults, with or without a new epoch.
    RoughRestore,
}

/// A schedule that was run.
pub struct Done {
    pub failure: Option<String>,
    pub steps: u64,
    pub served: u64,
}

/// Runs the schedule of a seed.
pub fn run(kind: Kind, seed: u64) -> Done {
    let mut world = world(seed);
    let failure = play(&mut world, kind).err();
    Done { failure, steps: world.steps, served: world.served }
}

/// Runs it and tells what happened.
pub fn traced(kind: Kind, seed: u64) -> (Vec<String>, Option<String>) {
    let mut world = world(seed);
    world.trace = Some(vec![]);
    let failure = play(&mut world, kind).err();
    (world.trace.take().unwrap_or_default(), failure)
}

/// Two to four nodes, and pools from a few single addresses to some blocks of four.
fn world(seed: u64) -> World {
    let (subnet, length) =
        [("10.1.0.0/29", 32), ("10.1.0.0/28", 30), ("10.1.0.0/28", 29), ("10.1.0.0/27", 29)]
            [(seed % 4) as usize];
    let conf = RangeConf { subnet: subnet.parse().ok(), ..RangeConf::default() };
    let set = RangeSet::new(&[conf], "ranges[0]").unwrap();
    let pool = Pool::new(&set, &[], BlockSize::Length(length)).unwrap();
    let blocks = Blocks::new("default".parse().unwrap(), vec![pool], (seed / 4 % 2) as u32);
    World::new(seed, 2 + (seed / 8 % 3) as usize, &blocks)
}

fn play(world: &mut World, kind: Kind) -> Result<(), String> {
    world.faults = 10;
    let mut snapshot = world.store.clone();
    for _ in 0..40 {
        disturb(world, kind, &mut snapshot);
        let span = if world.percent(5) { world.millis(90_000) } else { world.millis(400) };
        world.run(span);
        no_violation(world)?;
    }
    stop_faults(world);
    no_violation(world)?;
    require_no_overlap(world)?;
    require_reachable(world)?;
    require_nothing_left(world)
}

fn no_violation(world: &World) -> Result<(), String> {
    world.violation.clone().map_or(Ok(()), Err)
}

/// One random event.
fn disturb(world: &mut World, kind: Kind, snapshot: &mut Store) {
    let node = world.below(world.nodes.len() as u64) as usize;
    match world.below(12) {
        0..=5 => attach(world, node),
        6..=8 => detach(world, node),
        9 => toggle_cut(world, node),
        _ => go_wrong(world, node, (kind, snapshot)),
    }
}

fn attach(world: &mut World, node: usize) {
    if world.nodes[node].is_on {
        world.add(node);
    }
}

fn detach(world: &mut World, node: usize) {
    let leases: Vec<IpAddr> = world.nodes[node].disk.leases.iter().copied().collect();
    if !leases.is_empty() {
        let ip = leases[world.below(leases.len() as u64) as usize];
        world.del(node, ip);
    }
}

fn toggle_cut(world: &mut World, node: usize) {
    let is_cut = !world.nodes[node].is_cut;
    world.say(|| format!("n{node} cut: {is_cut}"));
    world.nodes[node].is_cut = is_cut;
}

fn go_wrong(world: &mut World, node: usize, (kind, snapshot): (Kind, &mut Store)) {
    match kind {
        Kind::Network => (),
        Kind::Crashes => restart(world, node),
        Kind::Reclaims => power(world, node),
        Kind::OrderlyRestore if world.percent(50) => *snapshot = world.store.clone(),
        Kind::OrderlyRestore => restore_in_order(world, snapshot),
        Kind::RoughRestore if world.percent(40) => *snapshot = world.store.clone(),
        Kind::RoughRestore if world.percent(60) => restart(world, node),
        Kind::RoughRestore => restore_roughly(world, snapshot),
    }
}

fn restart(world: &mut World, node: usize) {
    if world.nodes[node].machine.is_some() {
        world.crash(node);
        let after = world.millis(3000);
        world.push(after, Coming::Start(node));
    }
}

/// A node loses power; it may be reclaimed, and comes back.
fn power(world: &mut World, node: usize) {
    if world.nodes[node].is_on {
        return world.power_off(node);
    }
    if world.percent(60) {
        world.say(|| format!("n{node} is reclaimed"));
        let name = world.nodes[node].name.clone();
        let now = world.now;
        world.store.reclaim(&name, now);
        world.spread_changes();
    } else {
        world.power_on(node);
    }
}

fn restore(world: &mut World, snapshot: &Store, raise: bool) {
    world.say(|| format!("the store is restored, new epoch: {raise}"));
    let epoch = world.store.epoch;
    world.store = snapshot.clone();
    if raise {
        // The operator raises the epoch beyond any that a daemon has seen.
        world.store.epoch = epoch;
        let now = world.now;
        world.store.apply(&Operation::Recover { seen: epoch }, now);
    }
    world.store.changes.clear();
    for node in 0..world.nodes.len() {
        if let Some(watch) = world.nodes[node].watch {
            let generation = world.nodes[node].generation;
            let ended = super::super::engine::Outcome::Compacted { revision: 1 };
            world.push(Duration::from_millis(1), Coming::Outcome(node, generation, watch, ended));
        }
    }
}

fn restore_in_order(world: &mut World, snapshot: &Store) {
    heal(world);
    world.run(Duration::from_secs(45)); // every daemon reaches the store before
    restore(world, snapshot, true);
    let faults = std::mem::take(&mut world.faults);
    world.run(SETTLE + Duration::from_secs(10));
    world.faults = faults;
}

fn restore_roughly(world: &mut World, snapshot: &Store) {
    let raise = world.percent(50);
    restore(world, snapshot, raise);
    world.forgive_lost_claims();
}

/// Every node has power, a daemon and a network.
fn heal(world: &mut World) {
    for node in 0..world.nodes.len() {
        world.nodes[node].is_cut = false;
        world.power_on(node);
    }
}

fn stop_faults(world: &mut World) {
    world.say(|| "faults stop".to_owned());
    world.faults = 0;
    heal(world);
    world.run(Duration::from_secs(120));
}

/// No block is used by two nodes, not even after a restore that lost a claim.
fn require_no_overlap(world: &World) -> Result<(), String> {
    for (number, node) in world.nodes.iter().enumerate() {
        for other in &world.nodes[number + 1..] {
            for mine in node.usable() {
                if let Some(theirs) =
                    other.usable().find(|theirs| theirs.block.overlaps(mine.block))
                {
                    return Err(format!(
                        "{} uses {} and {} uses {}",
                        node.name, mine.block, other.name, theirs.block
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Ends the conflicts, as an operator does: by detaching what is in them.
fn end_conflicts(world: &mut World) {
    for node in 0..world.nodes.len() {
        let blocks = world.nodes[node].disk.blocks.blocks.clone();
        let bad = blocks.iter().filter(|held| matches!(held.state, State::Conflict | State::Lost));
        let bad: Vec<_> = bad.map(|held| held.block).collect();
        let leases = world.nodes[node].disk.leases.clone();
        for ip in leases.into_iter().filter(|ip| bad.iter().any(|block| block.contains(*ip))) {
            world.del(node, ip);
        }
    }
    world.run(Duration::from_secs(60));
}

/// One node can get every address that is free.
fn require_reachable(world: &mut World) -> Result<(), String> {
    end_conflicts(world);
    let pool = world.nodes[0].disk.blocks.pools[0].clone();
    let size: u64 = (0..pool.count())
        .filter_map(|place| pool.block(place))
        .map(|block| pool.allocatable(block))
        .sum();
    let node = world.below(world.nodes.len() as u64) as usize;
    let taken: BTreeSet<IpAddr> =
        world.nodes.iter().flat_map(|node| node.disk.leases.iter().copied()).collect();
    for number in taken.len() as u64..size {
        let served = world.served;
        world.add(node);
        for _ in 0..100 {
            if world.served > served || world.violation.is_some() {
                break;
            }
            world.run(Duration::from_millis(100));
        }
        no_violation(world)?;
        if world.served == served {
            return Err(format!("n{node} got {number} of {size} addresses, and no more"));
        }
    }
    Ok(())
}

/// After the last DEL and without pools, neither the store nor a disk has anything of the network.
fn require_nothing_left(world: &mut World) -> Result<(), String> {
    for node in 0..world.nodes.len() {
        let leases = world.nodes[node].disk.leases.clone();
        leases.into_iter().for_each(|ip| world.del(node, ip));
        world.crash(node);
        world.start(node);
        let none = Blocks::new("default".parse().unwrap(), vec![], 0);
        let network = world.network.clone();
        world.give(node, Event::Configured { network, blocks: none });
    }
    world.run(Duration::from_secs(420));
    no_violation(world)?;
    let blocks: Vec<String> = world.store.blocks.keys().map(|block| block.to_string()).collect();
    let on_disks: usize = world.nodes.iter().map(|node| node.disk.blocks.blocks.len()).sum();
    if !blocks.is_empty() || on_disks > 0 || !world.store.notes.is_empty() {
        return Err(format!(
            "the store still has {blocks:?}, disks have {on_disks}, notes: {:?}",
            world.store.notes
        ));
    }
    Ok(())
}
