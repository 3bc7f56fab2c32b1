//! What happens in a schedule: wishes and faults.

use super::kind::Kind;
use super::node::{Disk, Wish};
use super::world::{World, ms};

/// How a schedule ended.
pub struct Done {
    pub steps: u64,
    pub served: u64,
    pub failure: Option<String>,
}

/// One wish or fault.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Nothing,
    Add,
    Del,
    Crash,
    PowerOff,
    PowerOn,
    Reclaim,
    HastyReclaim,
    Stall,
    Snapshot,
    Restore,
    OtherStore,
    Clone,
    SaveDisk,
    RestoreDisk,
    ReplaceDirectory,
    SaveMemory,
    Resume,
}

fn possible(world: &World) -> Vec<Happens> {
    use Happens as H;
    let faults = &world.faults;
    let mut all = vec![H::Nothing, H::Add, H::Add, H::Add, H::Add, H::Del, H::Del];
    let further = [
        (faults.crashes, &[H::Crash][..]),
        (faults.power, &[H::PowerOff, H::PowerOn]),
        (faults.reclaims, &[H::Reclaim, H::Reclaim]),
        (faults.hasty_reclaims, &[H::HastyReclaim]),
        (faults.stalls, &[H::Stall]),
        (faults.restores > 0, &[H::Snapshot, H::Restore]),
        (faults.other_store, &[H::OtherStore]),
        (faults.clones, &[H::Clone]),
        (faults.disks, &[H::SaveDisk, H::RestoreDisk]),
        (faults.replaces, &[H::SaveDisk, H::ReplaceDirectory]),
        (faults.resumes, &[H::SaveMemory, H::Resume]),
    ];
    for (is_possible, them) in further {
        all.extend(them.iter().filter(|_| is_possible));
    }
    all
}

/// Lets something happen.
pub fn happen(world: &mut World) {
    let all = possible(world);
    let what = all[world.below(all.len())];
    let number = world.below(world.nodes.len());
    match what {
        Happens::Nothing => (),
        Happens::Add => add(world, number),
        Happens::Del => {
            let nets = world.nodes[number].disk.nets.iter();
            let ips: Vec<_> = nets.flat_map(|net| net.leases.keys().copied()).collect();
            if !ips.is_empty() && world.nodes[number].is_on {
                let ip = ips[world.below(ips.len())];
                world.del(number, ip);
            }
        }
        Happens::Crash => {
            let after = world.pick(&[10, 1000, 5000, 40_000]);
            world.crash(number, after);
        }
        Happens::PowerOff => {
            world.power_off(number);
            let after = world.pick(&[100, 5000, 60_000, 130_000, 300_000]);
            world.power_on_after(number, after);
        }
        Happens::PowerOn => world.power_on(number),
        Happens::Reclaim => {
            let name = world.nodes[number].name.clone();
            if !world.nodes.iter().any(|node| node.is_on && node.name == name) {
                world.reclaim(&name);
                if world.faults.hasty_reclaims {
                    world.reclaim(&name);
                }
            }
        }
        Happens::HastyReclaim => {
            let name = world.nodes[number].name.clone();
            world.reclaim(&name);
        }
        Happens::Stall => {
            let stall = world.pick(&[1000, 8000, 40_000]);
            world.nodes[number].stalled_until = world.now + stall;
            world.log(|| format!("n{number} daemon stalls for {stall:?}"));
        }
        Happens::Snapshot => {
            if !world.store.0.is_empty() && (world.snapshot.is_none() || !world.one_in(3)) {
                world.log(|| "SNAPSHOT".to_owned());
                world.snapshot = Some(world.store.clone());
            }
        }
        Happens::Restore => {
            let runs = |node: &super::node::Node| !node.is_on || node.machine.is_some();
            if world.is_up
                && world.nodes.iter().all(runs)
                && world.restores < world.faults.restores
                && let Some(snapshot) = world.snapshot.take()
            {
                world.restore(snapshot);
            }
        }
        Happens::OtherStore => {
            let knows = |node: &super::node::Node| {
                node.disk.file.as_ref().is_some_and(|file| file.store.is_some())
            };
            if world.is_up && world.nodes.iter().all(knows) {
                world.is_other = !world.is_other;
                world.publish();
                let is_other = world.is_other;
                world.log(|| format!("another store: {is_other}"));
            }
        }
        Happens::Clone => clone(world, number),
        Happens::SaveDisk => {
            let node = &mut world.nodes[number];
            node.saved_disk = Some((node.disk.clone(), node.boot));
            world.log(|| format!("n{number} disk saved"));
        }
        Happens::RestoreDisk => restore_disk(world, number),
        Happens::ReplaceDirectory => replace(world, number),
        Happens::SaveMemory => {
            let node = &mut world.nodes[number];
            if let (Some(machine), true) = (&node.machine, node.saved_memory.is_none()) {
                let memory = (node.disk.clone(), (**machine).clone(), node.confirmed);
                node.saved_memory = Some(Box::new(memory));
                world.log(|| format!("n{number} memory saved"));
            }
        }
        Happens::Resume => {
            if let (true, Some(memory)) =
                (world.nodes.len() == 3, world.nodes[number].saved_memory.take())
            {
                world.resume(number, *memory);
            }
        }
    }
}

pub fn add(world: &mut World, number: usize) {
    if world.nodes[number].adds.len() >= 2 {
        return;
    }
    let net = world.below(world.nodes[number].disk.nets.len());
    let wish = match (world.faults.names, world.below(6)) {
        (true, 0..=3) => Wish::Name(["a", "b", "c", "d"][world.below(4)].to_owned()),
        (_, 5) => Wish::Address([10, 0, 0, world.below(4) as u8].into()),
        _ => Wish::Any,
    };
    world.add(number, net, wish);
}

/// A new disk with the same content.
fn copied(world: &mut World, disk: &Disk) -> Disk {
    let stamp = world.fresh();
    Disk { stamp, ..disk.clone() }
}

fn empty(world: &mut World, number: usize) -> Disk {
    let (faults, stamp) = (world.faults, world.fresh());
    let networks = world.nodes[number].disk.nets.len();
    Disk::new(number % 3, &faults, stamp, networks)
}

/// The third machine gets a copy of another's directory before its first start.
fn clone(world: &mut World, from: usize) {
    let to = 2;
    let is_new = world.nodes[to].disk.file.is_none() && world.nodes[to].alive.is_empty();
    if from == to || world.nodes[from].disk.file.is_none() || !is_new {
        return;
    }
    world.power_off(to);
    let disk = world.nodes[from].disk.clone();
    world.nodes[to].disk = copied(world, &disk);
    world.nodes[to].is_odd = true;
    world.log(|| format!("the directory of n{from} is copied to n{to}"));
    world.power_on_after(to, ms(100));
}

fn restore_disk(world: &mut World, number: usize) {
    let is_empty = world.one_in(3);
    let disk = match (is_empty, world.nodes[number].saved_disk.clone()) {
        (true, _) => empty(world, number),
        (false, Some((disk, _))) => copied(world, &disk),
        (false, None) => return,
    };
    world.power_off(number);
    (world.nodes[number].is_odd, world.nodes[number].disk) = (true, disk);
    world.log(|| format!("n{number} disk RESTORED, empty: {is_empty}"));
    let after = world.pick(&[100, 10_000, 60_000]);
    world.power_on_after(number, after);
}

fn replace(world: &mut World, number: usize) {
    let node = &world.nodes[number];
    let saved = node.saved_disk.clone().filter(|(_, boot)| *boot == node.boot);
    if !node.is_on {
        return;
    }
    let is_empty = world.one_in(3);
    let disk = match (is_empty, saved) {
        (true, _) => empty(world, number),
        (false, Some((disk, _))) => copied(world, &disk),
        (false, None) => return,
    };
    world.crash(number, ms(1000));
    let node = &mut world.nodes[number];
    let leases: Vec<_> = node.disk.nets.iter().map(|net| net.leases.clone()).collect();
    (node.is_odd, node.disk) = (true, disk);
    for (net, leases) in node.disk.nets.iter_mut().zip(leases) {
        net.leases = leases;
    }
    world.log(|| format!("n{number} directory REPLACED, empty: {is_empty}"));
}

/// Runs a schedule.
pub fn run(kind: Kind, seed: u64) -> Done {
    let world = play(kind, seed, false);
    Done { steps: world.steps, served: world.served, failure: world.violation }
}

/// Runs a schedule, and tells what happened.
pub fn traced(kind: Kind, seed: u64) -> (Vec<String>, Option<String>) {
    let world = play(kind, seed, true);
    (world.trace.unwrap_or_default(), world.violation)
}

fn play(kind: Kind, seed: u64, is_traced: bool) -> World {
    let mut world = World::new(kind, seed, is_traced);
    for number in 0..3 {
        if world.faults.clones && number == 2 {
            world.nodes[number].is_on = false;
            if world.faults.same_name {
                world.nodes[number].name = world.nodes[0].name.clone();
            }
        } else {
            world.start(number);
        }
    }
    world.begin_faults();
    world.run_until(crate::sys::clock::NEVER);
    super::ends::end(&mut world);
    world
}
