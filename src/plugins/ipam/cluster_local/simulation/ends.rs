//! What must be true once the faults of a schedule have ended.

use std::time::Duration;

use super::super::machine::Standing;
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
    world.run(ms(250_000));
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

/// Each machine that runs gets an address while one is free.
fn require_reachable(world: &mut World) {
    if world.faults.sizes
        || world.faults.names
        || world.restores > 0 && world.faults.outage.is_none()
    {
        return;
    }
    for number in 0..world.nodes.len() {
        if world.nodes[number].is_retired || !is_running(&world.nodes[number]) {
            continue;
        }
        let leased = world.nodes.iter().filter(|node| node.is_on).flat_map(|node| &node.disk.nets);
        let leased: usize = leased.map(|net| net.leases.len()).sum();
        let names: Vec<_> =
            world.nodes.iter().filter(|node| node.is_on).map(|node| node.name.clone()).collect();
        let dead = world.store.0.values().filter(|stored| match &stored.record.value {
            Value::Claim(claim) => !names.contains(&claim.node),
            _ => false,
        });
        if leased + dead.count() >= 4 {
            continue;
        }
        let before = world.served;
        for _ in 0..3 {
            if world.served == before && world.violation.is_none() {
                world.nodes[number].adds.clear();
                world.add(number, 0, Wish::Any);
                world.run(ms(30_000));
            }
        }
        if world.served == before {
            return fail(world, format!("I5 n{number} gets no address, {leased} of 4 are leased"));
        }
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
