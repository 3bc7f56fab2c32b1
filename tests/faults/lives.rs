//! Attachments created and deleted at random by twenty workers at a time, in networks of all
//! plugins, with killed plugins, vanished namespaces, interleaved GCs, and DELs that are repeated,
//! out of order or without a result.
//!
//! Nothing is left of a deleted attachment, nothing is taken from a living one, and no address is
//! in use twice. The kernel and the disk are asked in every pause; in every second generation no GC
//! helps DEL.
//!
//! `CNI_SEED` repeats the choices; `CNI_LIVES` sets the number of attachments in the long form.

mod calls;
pub mod chance;
pub mod networks;
mod planted;
mod witness;
mod worker;
mod world;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use self::calls::{CACHE_DIR, CONF_DIR, End};
use self::networks::{Able, Driver, Network, of_modules, usual};
use self::witness::{assert_leases_are_those_of_the_living, assert_names_are_those_of_the_living};
use self::worker::Worker;
use self::world::{LO, Life, World};
use crate::support::call::Peer;
use crate::support::dhcp::servers::{Program, Server};
use crate::support::dhcp::{Daemon, Kind};
use crate::support::kernel::has_link;
use crate::support::netns::{Lab, Namespace};
use crate::support::networks::stacked::{IPVLAN, VLAN};
use crate::support::networks::{bandwidth, bond, dummy, tap, vrf};
use crate::support::snapshot::Watch;

/// The number of workers, and how many of them use `cni-multi net`.
const WORKERS: usize = 20;
const BY_NET: usize = 6;

/// The parameters of one run on a host.
struct Story {
    seed: u64,
    workers: usize,
    by_net: usize,
    /// The number of times that all attachments come and go.
    generations: usize,
    /// The number of attachments begun in each generation.
    births: usize,
}

impl Story {
    fn of(births: usize, generations: usize) -> Story {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let given =
            std::env::var("CNI_SEED").ok().map(|seed| seed.parse().expect("CNI_SEED is a number"));
        let seed = given.unwrap_or(u64::try_from(now % 1_000_000_007).unwrap());
        Story { seed, workers: WORKERS, by_net: BY_NET, generations, births: births / generations }
    }

    fn driver(&self, worker: usize) -> Driver {
        if worker < self.workers - self.by_net { Driver::Plugins } else { Driver::Net }
    }

    fn workers_of(&self, driver: Driver) -> Vec<usize> {
        (0..self.workers).filter(|worker| self.driver(*worker) == driver).collect()
    }

    /// Runs all generations and prints the result.
    fn run(&self, lab: &Lab, networks: Vec<Network>, prepare: &'static str) {
        let start = Instant::now();
        let world = World::new(lab, networks, prepare);
        let outcome = catch_unwind(AssertUnwindSafe(|| self.tell(&world)));
        let Story { seed, workers, .. } = self;
        let (networks, seconds) = (world.networks.len(), start.elapsed().as_secs_f64());
        let counts = world.tally.lines();
        let report = format!(
            "seed {seed}: {workers} workers, {networks} networks, {seconds:.0} s\n{counts}"
        );
        if let Err(reason) = outcome {
            eprintln!("{}\n{report}", world.history());
            eprintln!("CNI_SEED={seed} makes the same choices again");
            resume_unwind(reason);
        }
        say(&format!(
            "{report}nothing has leaked, nothing was taken from the living, no address was given twice"
        ));
    }

    fn tell(&self, world: &World<'_>) {
        write_networks(world);
        warm_up(world);
        let before = Watch::start(world.lab, &[]);
        let worker = |number| Worker::new(world, self.seed, number, self.driver(number));
        let mut workers: Vec<Worker<'_>> = (0..self.workers).map(worker).collect();
        for generation in 0..self.generations {
            world.collects.store(generation % 2 == 1, Ordering::Relaxed);
            let begun =
                |part: usize| (generation * self.births + self.births * part / 2) / self.workers;
            for part in [1, 2] {
                all_at_once(world, &mut workers, |worker| worker.go_on(begun(part)));
                in_a_pause(world, &workers);
            }
            all_at_once(world, &mut workers, Worker::end_all);
            world.networks.iter().for_each(|network| network.make_ready(world.lab));
            if world.collects() {
                collect_everywhere(world);
            }
            assert_leases_are_those_of_the_living(world);
            before.assert_unchanged(&format!("generation {generation}: LEAKED"));
            let count = world.tally.of("attachments");
            say(&format!("generation {generation}: {count} attachments have come and gone"));
        }
    }
}

/// eprintln! would be shown for failed tests only.
fn say(text: &str) {
    let mut stderr = std::io::stderr();
    writeln!(stderr, "{text}").unwrap();
}

/// Runs `work` for each worker in its own thread. The first failure stops the others.
fn all_at_once<'a>(
    world: &World<'_>,
    workers: &mut [Worker<'a>],
    work: impl Fn(&mut Worker<'a>) + Sync,
) {
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let work = &work;
        let one = |worker| {
            scope.spawn(move || {
                let outcome = catch_unwind(AssertUnwindSafe(|| work(worker)));
                outcome.inspect_err(|_| world.stop())
            })
        };
        let threads: Vec<_> = workers.iter_mut().map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    if let Some(Err(reason)) = outcomes.into_iter().find(Result::is_err) {
        resume_unwind(reason);
    }
}

/// While no worker runs: every living attachment has what it needs, and nothing else is left.
fn in_a_pause(world: &World<'_>, workers: &[Worker<'_>]) {
    world.tell("a pause".to_owned());
    world.tally.count("pauses");
    let places: Vec<_> = workers.iter().flat_map(|worker| &worker.places).collect();
    if world.collects() {
        collect_everywhere(world);
    }
    assert_leases_are_those_of_the_living(world);
    let inhabited = places.iter().filter(|place| !place.lives.is_empty());
    let living: BTreeSet<String> = inhabited.map(|place| place.id.clone()).collect();
    assert_names_are_those_of_the_living(world, &living);
    if world.collects() {
        let some = places.iter().take(3);
        let namespaces: Vec<&Namespace> = some.map(|place| &*place.container).collect();
        let before = Watch::start(world.lab, &namespaces);
        collect_everywhere(world);
        before.assert_unchanged("a GC that has nothing to collect");
    }
    for worker in workers {
        for place in &worker.places {
            place.lives.iter().take(1).for_each(|life| worker.look_at(place, life, true));
        }
    }
}

fn collect_everywhere(world: &World<'_>) {
    for number in 0..world.networks.len() {
        world.tally.count("GCs");
        let end = world.gc(number, None);
        assert!(matches!(end, End::Whole(_)), "GC of {}: {end:?}", world.networks[number].name);
        world.collected(number);
    }
}

fn write_networks(world: &World<'_>) {
    world.lab.host.sh(&format!("mkdir -p {CACHE_DIR}"));
    for network in &world.networks {
        world.lab.write(&format!("{CONF_DIR}/{}.conflist", network.name), network.list());
    }
}

/// Creates what stays by contract: bridges and the chains of iptables.
fn warm_up(world: &World<'_>) {
    for (number, network) in world.networks.iter().enumerate() {
        network.make_ready(world.lab);
        let container = world.lab.container();
        let ifname = network.ifname.unwrap_or("warm0").to_owned();
        let (id, netns) = ("life-warm-up".to_owned(), container.netns.clone());
        let capabilities = network.capabilities(0, 0);
        let life = Life { network: number, id, ifname, netns, capabilities, result: None };
        let end = world.add(&life, None);
        assert!(matches!(end, End::Whole(_)), "the first ADD of {}: {end:?}", network.name);
        let order = (0..network.plugins.len()).rev().collect();
        let manner = calls::Manner { order, has_result: false, has_netns: true };
        let end = world.del(&life, &manner, None);
        assert!(matches!(end, End::Whole(_)), "the first DEL of {}: {end:?}", network.name);
    }
}

/// The networks of both drivers on a host with a DHCP server, as far as this machine supports them.
fn live_usual_lives(story: &Story) {
    let lab = Lab::new(Peer::Ours);
    let able = Able {
        taps: tap::makes_taps(&lab),
        limits: bandwidth::can_limit(&lab),
        leases: Program::Dnsmasq.is_there(),
    };
    lab.lan(Kind::Macvlan);
    let _server = able.leases.then(|| Server::for_many(&lab));
    let _daemon = able.leases.then(|| Daemon::start(&lab));
    let networks = [Driver::Plugins, Driver::Net]
        .map(|driver| usual(driver, &story.workers_of(driver), &able));
    story.run(&lab, networks.into_iter().flatten().collect(), LO);
}

#[test]
fn four_hundred_lives_leave_nothing_and_spare_each_other() {
    live_usual_lives(&Story::of(400, 2));
}

/// Run by `tests/faults/run lives`.
#[test]
#[ignore = "takes a quarter of an hour"]
fn ten_thousand_lives_leave_nothing_and_spare_each_other() {
    // About one attachment in twenty is killed or refused before it is complete.
    let lives = std::env::var("CNI_LIVES")
        .map_or(10_700, |lives| lives.parse().expect("CNI_LIVES is a number"));
    live_usual_lives(&Story::of(lives, lives.div_ceil(500)));
}

/// The first VRF of a namespace makes the kernel add rules that stay.
const VRF: &str = "ip link add probe type vrf table 9999 && ip link del probe";

/// The links for which not every kernel has modules.
#[test]
fn lives_of_links_of_modules_leave_nothing_and_spare_others() {
    let lab = Lab::new(Peer::Ours);
    let missing = [
        ("ipvlan", IPVLAN.is_in(&lab)),
        ("vlan", VLAN.is_in(&lab)),
        ("dummy", dummy::makes_dummies(&lab)),
        ("vrf", vrf::has_vrf(&lab.container())),
        ("bonding", bond::has_bonds(&lab)),
    ];
    if missing.iter().any(|(_, is_there)| !is_there) {
        return; // the missing features have been reported as skipped
    }
    if !has_link(&lab.host, "bridges with VLANs", "probe type bridge vlan_filtering 1") {
        return;
    }
    let story = Story { workers: 6, by_net: 2, ..Story::of(20, 2) };
    let networks =
        [Driver::Plugins, Driver::Net].map(|driver| of_modules(driver, &story.workers_of(driver)));
    story.run(&lab, networks.into_iter().flatten().collect(), VRF);
}
