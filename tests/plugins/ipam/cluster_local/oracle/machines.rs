//! What happens to machines, one thing after another.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Boot, Machine, World, below};

/// Lets one thing after another go wrong and heals it, until the time is over.
pub fn go_wrong(world: &World) {
    let mut random = world.random(2);
    while !world.is_over() {
        let pause = random.below(Duration::from_secs(2));
        world.sleep(pause);
        let machine = &world.machines[below(&mut random, world.machines.len() as u64) as usize];
        let lasts = random.below(Duration::from_secs(3));
        let what = match below(&mut random, 6) {
            0 | 1 => kill_daemon(world, machine, lasts),
            2 => stop_daemon(world, machine, lasts),
            3 => cut_off(world, machine, lasts),
            4 | 5 => start_anew(world, machine, lasts),
            _ => unreachable!("below 6"),
        };
        world.history.count(what);
    }
}

fn kill_daemon(world: &World, machine: &Machine, lasts: Duration) -> &'static str {
    machine.node.kill();
    world.sleep(lasts);
    machine.node.start();
    "daemon killed"
}

fn stop_daemon(world: &World, machine: &Machine, lasts: Duration) -> &'static str {
    machine.node.signal(Signal::SIGSTOP);
    world.sleep(lasts);
    machine.node.signal(Signal::SIGCONT);
    "daemon stopped"
}

fn cut_off(world: &World, machine: &Machine, lasts: Duration) -> &'static str {
    machine.node.set_link("down");
    world.sleep(lasts);
    machine.node.set_link("up");
    "machine cut off"
}

/// The machine is off, with all its containers, and boots after a while.
fn start_anew(world: &World, machine: &Machine, lasts: Duration) -> &'static str {
    let mut power = machine.power.write().unwrap();
    machine.node.kill();
    world.history.end_all(machine.node.number);
    world.sleep(lasts);
    *power = Boot(power.0 + 1);
    machine.node.set_boot(power.0);
    machine.node.start();
    "machine rebooted"
}
