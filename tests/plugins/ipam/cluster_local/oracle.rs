//! An oracle over intervals: machines attach and detach at random, while members of etcd are cut
//! off, stopped and killed, daemons are killed, and machines start anew. An address that one
//! attachment certainly has, from the return of its ADD to the call of its DEL, must be no other's.
//!
//! `CNI_SEED` repeats the choices; what happens between them is the machine's. `CNI_LONG` runs it for
//! ten minutes, and waits until daemons have given back what they do not need.

mod end;
mod history;
mod machines;
mod members;
mod worker;

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cni_multi::sys::random::Random;
use serde_json::{Value, json};

use self::history::History;
use crate::support::etcd::Etcd;
use crate::support::extent::is_long;
use crate::support::node::Node;

/// How many machines there are.
const MACHINES: u8 = 10;
/// The networks. They share a realm, and the second one's range is a part of the first one's.
const NETWORKS: [&str; 2] = ["pods", "more"];

/// What the threads share.
struct World {
    seed: u64,
    machines: Vec<Machine>,
    history: History,
    is_over: AtomicBool,
}

/// A machine. Its lock is held for reading by each call, and for writing while it is off.
struct Machine {
    node: Node,
    power: RwLock<Boot>,
}

/// How often a machine has started. What was attached before is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Boot(u64);

impl World {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// The random numbers of a thread.
    fn random(&self, thread: u64) -> Random {
        Random::seeded(self.seed.wrapping_mul(1000).wrapping_add(thread))
    }

    /// Sleeps, but no longer than the test lasts.
    fn sleep(&self, how_long: Duration) {
        let until = Instant::now() + how_long;
        while Instant::now() < until && !self.is_over() {
            std::thread::sleep(Duration::from_millis(20).min(how_long));
        }
    }
}

/// The configuration of a network. Both have blocks of one size: the first claim of a chunk divides it.
fn conf(seed: u64, network: &str, patience: u64) -> Value {
    let range = match network {
        "pods" => json!({"subnet": "10.1.0.0/26"}),
        _ => json!({"subnet": "10.1.0.32/27", "gateway": "10.1.0.1"}),
    };
    let size = if seed.is_multiple_of(2) { 8 } else { 1 };
    json!({"cniVersion": "1.1.0", "name": network, "type": "cluster-local", "ipam": {
        "type": "cluster-local", "ranges": [[range]], "blockSize": size, "patience": patience}})
}

/// A number below a limit.
fn below(random: &mut Random, limit: u64) -> u64 {
    random.number() % limit
}

fn seed() -> u64 {
    let given = std::env::var("CNI_SEED").ok();
    given.map_or_else(|| Random::new().number() % 1_000_000, |seed| seed.parse().unwrap())
}

/// How long machines attach and detach.
fn duration() -> Duration {
    let given = std::env::var("CNI_ORACLE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(if is_long() { 600 } else { 30 }))
}

#[test]
fn no_address_is_held_twice_whatever_fails() {
    let Some(mut etcd) = Etcd::three() else { return };
    let seed = seed();
    eprintln!("CNI_SEED={seed}");
    let machine = |number| Machine { node: Node::join(&etcd, number), power: RwLock::new(Boot(0)) };
    let machines = (1..=MACHINES).map(machine).collect();
    let world = World { seed, machines, history: History::new(), is_over: AtomicBool::new(false) };
    run(&world, &mut etcd);
    eprintln!("seed {seed}: {}", world.history.summary());
    world.history.assert_no_overlap();
    end::assert_all_is_free(&world, &etcd);
}

/// Lets everything happen, until the time is over; then all is healed.
fn run(world: &World, etcd: &mut Etcd) {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..world.machines.len() * 2)
            .map(|number| scope.spawn(move || worker::work(world, number)))
            .collect();
        let of_members = scope.spawn(|| members::go_wrong(world, etcd));
        let of_machines = scope.spawn(|| machines::go_wrong(world));
        world.sleep(duration());
        world.is_over.store(true, Ordering::Relaxed);
        of_members.join().unwrap();
        of_machines.join().unwrap();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}
