//! What happens to machines, one thing after another.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Boot, Machine, World, below};
use crate::support::extent::is_long;

/// How often a reclaim is tried while members are in disarray.
const TRIES: usize = 5;

/// Lets one thing after another go wrong and heals it, until the time is over.
pub fn go_wrong(world: &World) {
    let mut random = world.random(2);
    while !world.is_over() {
        let pause = random.below(Duration::from_secs(2));
        world.sleep(pause);
        let machine = &world.machines[below(&mut random, world.machines.len() as u64) as usize];
        let lasts = random.below(Duration::from_secs(3));
        let node = &machine.node;
        // A reclaim takes 100 s.
        let what = match below(&mut random, if is_long() { 6 } else { 5 }) {
            0 | 1 => {
                node.kill();
                world.sleep(lasts);
                node.start();
                "daemon killed"
            }
            2 => {
                node.signal(Signal::SIGSTOP);
                world.sleep(lasts);
                node.signal(Signal::SIGCONT);
                "daemon stopped"
            }
            3 => {
                node.set_link("down");
                world.sleep(lasts);
                node.set_link("up");
                "machine cut off"
            }
            4 => start_anew(world, machine, || world.sleep(lasts)),
            5 => start_anew(world, machine, || reclaim(world, machine)),
            _ => unreachable!("below 6"),
        };
        world.history.count(what);
    }
}

/// The machine is off, with all its containers, and boots after a while.
fn start_anew(world: &World, machine: &Machine, meanwhile: impl FnOnce()) -> &'static str {
    let mut power = machine.power.write().unwrap();
    machine.node.kill();
    world.history.end(machine.node.number, None);
    meanwhile();
    *power = Boot(power.0 + 1);
    machine.node.set_boot(power.0);
    machine.node.start();
    "machine rebooted"
}

/// An operator frees the blocks of a machine that is off, from another machine. The members may be
/// in disarray: then it is tried again, and left if it has begun, for the machine finds its record ended.
fn reclaim(world: &World, machine: &Machine) {
    let next = usize::from(machine.node.number) % world.machines.len();
    let operator = &world.machines[next].node;
    for _ in 0..TRIES {
        world.sleep(Duration::from_millis(300));
        if operator.ipam(&format!("reclaim n{}", machine.node.number)).status == 0 {
            return world.history.count("machine reclaimed");
        }
    }
    world.history.count("machine not reclaimed");
}
