//! What must be true once the faults of a schedule have ended.

use std::time::Duration;

use super::super::block::Block;
use super::super::machine::Standing;
use super::super::pool::Pool;
use super::super::store::{Key, Value};
use super::node::{Node, Wish};
use super::world::{World, ms};

fn is_running(node: &Node) -> bool {
    node.fits()
        && node.machine.as_ref().is_some_and(|machine| machine.standing() == Standing::Connected)
}

fn fail(world: &mut World, what: String) {
    if world.violation.is_none() {
        world.log(|| format!("VIOLATION {what}"));
        world.violation = Some(what);
    }
}

/// Ends the faults, and looks at what is left.
pub fn end(world: &mut World) {
    let checks = [calm, require_running, boot_withdrawn, require_reachable, require_nothing_left];
    for check in checks {
        if world.violation.is_some() {
            return;
        }
        check(world);
    }
}

/// The network works, and every machine runs or is reclaimed.
fn calm(world: &mut World) {
    world.log(|| "---- the faults end".to_owned());
    (world.is_rough, world.quiet_since) = (false, world.now);
    if !world.is_up {
        world.run_until(world.down_until);
    }
    (world.is_up, world.is_other) = (true, false);
    world.publish();
    for number in 0..world.nodes.len() {
        world.tell(number);
        world.nodes[number].stalled_until = Duration::ZERO;
        let (name, is_odd) = (world.nodes[number].name.clone(), world.nodes[number].is_odd);
        let is_alone = !world.nodes.iter().any(|node| node.is_on && node.name == name);
        if world.nodes[number].is_on {
            world.start(number);
        } else if world.faults.reclaims && is_alone && !is_odd && world.one_in(2) {
            world.nodes[number].is_retired = true;
            world.log(|| format!("n{number} retires"));
            world.reclaim(&name);
        } else {
            world.power_on(number);
        }
    }
    world.run(ms(45_000));
    let goes_on = |node: &&Node| !node.before.is_empty() && node.fits();
    if world.nodes.iter().filter(goes_on).count() > 1 {
        return fail(world, "I8 a machine and its resumed copy both go on".to_owned());
    }
    world.run(ms(205_000));
}

/// Nothing has stopped a machine that was only treated as it may be.
fn require_running(world: &mut World) {
    for number in 0..world.nodes.len() {
        let node = &world.nodes[number];
        if node.is_odd || node.is_retired || is_running(node) {
            continue;
        }
        let standing = node.machine.as_ref().map(|machine| machine.standing());
        let is_taken = world.faults.same_name && standing == Some(Standing::NameTaken);
        if !is_taken {
            return fail(world, format!("I4 n{number} is stuck: {standing:?}"));
        }
    }
    let is_contested = |node: &Node| {
        node.disk.nets.iter().any(|net| net.blocks.blocks.iter().any(|held| held.contested))
    };
    let contested = world.nodes.iter().position(|node| !node.is_odd && is_contested(node));
    if let (true, Some(number)) = (world.faults.clones, contested) {
        fail(world, format!("I7 a clone contests a block of n{number}"));
    }
}

/// Machines that were withdrawn boot again; containers of earlier boots are deleted.
fn boot_withdrawn(world: &mut World) {
    let mut is_any = false;
    for number in 0..world.nodes.len() {
        let node = &world.nodes[number];
        if !node.is_retired && !is_running(node) {
            is_any = true;
            world.power_off(number);
            world.power_on(number);
        }
    }
    if is_any {
        world.run(ms(450_000));
    }
    for node in &mut world.nodes {
        let boot = node.boot;
        for net in &mut node.disk.nets {
            net.leases.retain(|_, lease| lease.1 == boot);
        }
    }
    world.run(ms(100_000));
}

/// Each machine that runs gets an address, and that of a new name, while one is free: within ten seconds,
/// or 130 if what is free is claimed by a record that no file knows.
fn require_reachable(world: &mut World) {
    if world.restores > 0 && world.faults.outage.is_none() {
        return;
    }
    for number in 0..world.nodes.len() {
        let wishes = [Wish::Any, Wish::Name(format!("new{number}"))];
        for (place, wish) in wishes.into_iter().enumerate() {
            let node = &world.nodes[number];
            if node.is_retired || !is_running(node) || world.violation.is_some() {
                continue;
            }
            let blocks = &node.disk.nets[0].blocks;
            let Some(pool) = [&blocks.pools, &blocks.names][place].first().cloned() else {
                continue;
            };
            let Some(patience) = patience(world, &pool) else { continue };
            let before = world.served;
            world.nodes[number].adds.clear();
            world.log(|| format!("---- n{number} must get {wish:?} within {patience:?}"));
            world.add(number, 0, wish.clone());
            world.run(patience);
            if world.served == before {
                let what = format!("I5 n{number} gets no address for {wish:?} in {patience:?}");
                return fail(world, what);
            }
        }
    }
}

/// How long an ADD of a pool may wait; None if nothing of it is free.
fn patience(world: &World, pool: &Pool) -> Option<Duration> {
    let is_free = |block: &Block| {
        let running = || world.nodes.iter().filter(|node| node.is_on);
        let leases = || running().flat_map(|node| &node.disk.nets).flat_map(|it| it.leases.keys());
        let is_leased = |block: Block| leases().any(|ip| block.contains(*ip));
        let may_be = |key: &Key, value: &Value| match (key, value) {
            (Key::Block(_, of), Value::Divided(size)) => {
                *of != block.chunk() || u64::from(*size) == block.size()
            }
            (Key::Block(_, of), Value::Claim(claim)) => {
                let owner_runs = running().any(|node| node.name == claim.node);
                !of.overlaps(*block) || owner_runs && !is_leased(*of)
            }
            (Key::Conflict(_, of), _) => !of.overlaps(*block),
            _ => true,
        };
        let mut records = world.store.0.values().map(|it| &it.record);
        !is_leased(*block) && records.all(|it| may_be(&it.key, &it.value))
    };
    let blocks = (0..pool.count()).filter_map(|place| pool.block(place));
    let free: Vec<Block> = blocks.filter(is_free).collect();
    let is_orphan = |block: &Block| {
        let key = Key::Block("default".parse().unwrap(), *block);
        let stored = world.store.0.get(&key);
        stored.is_some_and(|stored| match &stored.record.value {
            Value::Claim(claim) => !world.nodes.iter().any(|it| it.claims().contains(&claim.token)),
            _ => false,
        })
    };
    match free.iter().all(is_orphan) {
        true if free.is_empty() => None,
        true => Some(ms(130_000)),
        false => Some(ms(10_000)),
    }
}

/// After the last DEL only the store's id, nodes and divisions are left.
fn require_nothing_left(world: &mut World) {
    if world.faults.other_store || world.restores > 0 && world.faults.outage.is_none() {
        return;
    }
    world.log(|| "---- the last DEL".to_owned());
    for number in 0..world.nodes.len() {
        if world.nodes[number].is_retired {
            continue;
        }
        world.nodes[number].alive.clear();
        for net in 0..world.nodes[number].disk.nets.len() {
            let net = &mut world.nodes[number].disk.nets[net];
            net.leases.clear();
            (net.blocks.pools, net.blocks.names) = (vec![], vec![]);
        }
        // A daemon that starts finds what was claimed after it had ended.
        world.crash(number, ms(10));
    }
    world.run(ms(400_000));
    let gone = |world: &World, key: &Key, value: &Value| {
        let has_node = |node: &super::super::name::Name| {
            world.nodes.iter().any(|it| it.is_on && !it.is_retired && it.name == *node)
        };
        match (key, value) {
            // What a node that is gone has left is deleted by `reclaim --gone`.
            (_, Value::Claim(claim)) => !has_node(&claim.node),
            (Key::Conflict(..), Value::Conflict(by)) => !has_node(by),
            (Key::Want(node), _) => !has_node(node),
            _ => false,
        }
    };
    let left = world.store.0.values().find(|stored| {
        let (key, value) = (&stored.record.key, &stored.record.value);
        let stays = matches!(value, Value::Meta(_) | Value::Node(_) | Value::Divided(_));
        !stays && !gone(world, key, value)
    });
    if let Some(stored) = left.cloned() {
        fail(world, format!("I6 left after the last DEL: {stored:?}"));
    }
}
