//! A schedule: what happens at random, and what must be true when it stops.

use std::net::IpAddr;
use std::time::Duration;

use super::super::engine::{Operation, Outcome};
use super::super::held::Blocks;
use super::super::pool::{BlockSize, Pool};
use super::super::sticky;
use super::ends;
use super::node::addresses;
use super::store::Store;
use super::wish::{Ask, Wish, name_of};
use super::world::{Coming, SETTLE, World};
use crate::steps::allocation::ranges::{RangeConf, RangeSet};

/// What goes wrong in a schedule, beside ADDs and DELs at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Network,
    Crashes,
    Reclaims,
    /// Nodes lose contact, daemon or power for long, and daemons reclaim the nodes whose configuration allows
    /// that.
    Absences,
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
    pub fenced: u64,
}

/// Runs the schedule of a seed.
pub fn run(kind: Kind, seed: u64) -> Done {
    let mut world = world(kind, seed);
    let failure = play(&mut world, kind, seed).err();
    Done { failure, steps: world.steps, served: world.served, fenced: world.fenced }
}

/// Runs it and tells what happened.
pub fn traced(kind: Kind, seed: u64) -> (Vec<String>, Option<String>) {
    let mut world = world(kind, seed);
    world.trace = Some(vec![]);
    let failure = play(&mut world, kind, seed).err();
    (world.trace.take().unwrap_or_default(), failure)
}

/// The networks of a schedule: the range sets of each, with the length of blocks, and whether it keeps
/// names. Networks share ranges.
type Plan = &'static [(&'static [(&'static str, u8)], bool)];

/// From a few single addresses to some blocks of eight.
const PLANS: [Plan; 8] = [
    &[(&[("10.1.0.0/29", 32)], false)],
    &[(&[("10.1.0.0/28", 30)], false)],
    &[(&[("10.1.0.0/27", 29)], false)],
    &[(&[("10.1.0.0/28", 30)], true)],
    &[(&[("10.1.0.0/27", 30)], true)],
    &[(&[("10.1.0.0/28", 30)], true), (&[("10.1.0.0/28", 31)], false)],
    &[(&[("10.1.0.0/29", 31), ("fd00::/124", 126)], true)],
    &[(&[("fd00::/124", 126)], true), (&[("10.1.0.0/29", 30), ("fd00::/125", 127)], true)],
];

/// The values of `reclaimAfter`, mostly the same.
const ABSENCES: [Option<Duration>; 5] = [
    Some(Duration::from_secs(120)),
    Some(Duration::from_secs(120)),
    Some(Duration::from_secs(120)),
    Some(Duration::from_secs(300)),
    None,
];

/// Two to four nodes, with the networks of a plan.
fn world(kind: Kind, seed: u64) -> World {
    let plan = PLANS[(seed % 8) as usize];
    let spare = (seed / 8 % 2) as u32;
    let networks = plan.iter().enumerate().map(|(number, (sets, keeps_names))| {
        let (pools, names) = sets.iter().map(|set| pools(*set, *keeps_names)).unzip();
        let names: Vec<Option<Pool>> = names;
        let names = names.into_iter().flatten().collect();
        let blocks = Blocks { names, ..Blocks::new("default".parse().unwrap(), pools, spare) };
        (format!("net{number}").parse().unwrap(), blocks)
    });
    let absences = if kind == Kind::Absences { &ABSENCES[..] } else { &[None] };
    World::new(seed, 2 + (seed / 16 % 3) as usize, &networks.collect::<Vec<_>>(), absences)
}

/// The pool of a range set for any attachment, and the one for names.
fn pools((subnet, length): (&str, u8), keeps_names: bool) -> (Pool, Option<Pool>) {
    let conf = RangeConf { subnet: subnet.parse().ok(), ..RangeConf::default() };
    let set = RangeSet::new(&[conf], "ranges[0]").unwrap();
    let size = BlockSize::Length(length);
    if keeps_names {
        let (any, names) = sticky::parts(&set, &[], size).unwrap();
        return (any, Some(names));
    }
    (Pool::new(&set, &[], size).unwrap(), None)
}

/// Most schedules are short; each of the ends is reached by one in so many.
fn play(world: &mut World, kind: Kind, seed: u64) -> Result<(), String> {
    world.faults = 10;
    let mut snapshot = world.store.clone();
    let events = if (seed / 8).is_multiple_of(8) { 40 } else { 10 };
    for _ in 0..events {
        disturb(world, kind, &mut snapshot);
        let span = if world.percent(5) { world.millis(90_000) } else { world.millis(400) };
        world.run(span);
        world.verdict()?;
    }
    stop_faults(world, kind);
    world.verdict()?;
    ends::require_no_overlap(world)?;
    if (seed / 8).is_multiple_of(2) {
        ends::require_reachable(world)?;
    }
    if (seed / 8).is_multiple_of(8) {
        ends::require_nothing_left(world)?;
    }
    Ok(())
}

/// One random event.
fn disturb(world: &mut World, kind: Kind, snapshot: &mut Store) {
    let node = world.below(world.nodes.len() as u64) as usize;
    if kind == Kind::Absences && world.percent(25) {
        return be_absent(world, node);
    }
    match world.below(12) {
        0..=5 => attach(world, node),
        6..=8 => detach(world, node),
        9 => toggle_cut(world, node),
        _ => go_wrong(world, node, (kind, snapshot)),
    }
}

fn attach(world: &mut World, node: usize) {
    if !world.nodes[node].is_on {
        return;
    }
    let net = world.below(world.nodes[node].nets.len() as u64) as usize;
    let Blocks { pools, names, .. } = &world.nodes[node].nets[net].blocks;
    let (sets, pool_names) = (pools.len() as u64, names.clone());
    let set = world.below(sets) as usize;
    let ask = match world.below(10) {
        0 => Ask::Address(any_address(world, net, set)),
        1..=4 if !pool_names.is_empty() => {
            Ask::Name(name_of(set, &format!("web-{}", world.below(3))))
        }
        _ => Ask::Any,
    };
    world.add(node, Wish { net, set, ask });
}

/// An address of the set.
fn any_address(world: &mut World, net: usize, set: usize) -> IpAddr {
    let Blocks { pools, names, .. } = &world.nodes[0].nets[net].blocks;
    let of_set = pools.get(set).into_iter().chain(names.get(set));
    let all: Vec<IpAddr> = of_set
        .flat_map(|pool| {
            let blocks = (0..pool.count()).filter_map(|place| pool.block(place));
            blocks.flat_map(addresses).filter(|ip| pool.allocates(*ip))
        })
        .collect();
    all[world.below(all.len() as u64) as usize]
}

fn detach(world: &mut World, node: usize) {
    let nets = world.nodes[node].nets.iter().enumerate();
    let leases: Vec<(usize, IpAddr)> =
        nets.flat_map(|(number, net)| net.leases.iter().map(move |ip| (number, *ip))).collect();
    if !leases.is_empty() {
        let (net, ip) = leases[world.below(leases.len() as u64) as usize];
        world.del(node, net, ip);
    }
}

fn toggle_cut(world: &mut World, node: usize) {
    let is_cut = !world.nodes[node].is_cut;
    world.say(|| format!("n{node} cut: {is_cut}"));
    world.nodes[node].is_cut = is_cut;
}

fn go_wrong(world: &mut World, node: usize, (kind, snapshot): (Kind, &mut Store)) {
    if kind == Kind::Network || world.percent(20) {
        return lose_leader(world);
    }
    match kind {
        Kind::Network => (),
        Kind::Crashes => restart(world, node),
        Kind::Reclaims => power(world, node),
        Kind::Absences => be_absent(world, node),
        Kind::OrderlyRestore if world.percent(50) => *snapshot = world.store.clone(),
        Kind::OrderlyRestore => restore_in_order(world, snapshot),
        Kind::RoughRestore if world.percent(40) => *snapshot = world.store.clone(),
        Kind::RoughRestore if world.percent(60) => restart(world, node),
        Kind::RoughRestore => restore_roughly(world, snapshot),
    }
}

/// The members elect another leader.
fn lose_leader(world: &mut World) {
    world.leaderless = world.now + world.millis(7000);
    world.say(|| "the store has no leader".to_owned());
}

fn restart(world: &mut World, node: usize) {
    if world.nodes[node].machine.is_some() {
        world.crash(node);
        let after = world.millis(3000);
        world.push(after, Coming::Start(node));
    }
}

/// A node loses contact, daemon or power, and a long time passes.
fn be_absent(world: &mut World, node: usize) {
    let long = Duration::from_secs(150) + world.millis(450_000);
    match world.below(4) {
        0 => return restart(world, node),
        1 if world.nodes[node].machine.is_some() => {
            world.crash(node);
            let after = long + world.millis(60_000);
            world.push(after, Coming::Start(node));
        }
        2 if world.nodes[node].is_on => world.power_off(node),
        2 => world.power_on(node),
        _ => toggle_cut(world, node),
    }
    let faults = std::mem::replace(&mut world.faults, 1); // each fault may restart the measurement of an absence
    world.run(long);
    world.faults = faults;
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
            let ended = Outcome::Compacted { revision: 1 };
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

fn stop_faults(world: &mut World, kind: Kind) {
    world.say(|| "faults stop".to_owned());
    world.faults = 0;
    heal(world);
    ends::rest(world);
    if matches!(kind, Kind::OrderlyRestore | Kind::RoughRestore) {
        // A daemon learns of the restore with its next heartbeat, and then its claims settle.
        world.run(Duration::from_secs(90));
    }
}
