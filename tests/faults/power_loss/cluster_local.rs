//! Losses of power while the daemon of cluster-local writes its blocks and the identity of its
//! machine, beside a real etcd and another node.
//!
//! The sweep repeats the phase for each disk, so that etcd and the neighbour are in the state of the moment of
//! the power loss. The machine boots with that disk: its containers are gone and their leases are void, no
//! address is allocated twice, and in the end each address of the network can be allocated.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

use super::losses::{Depth, State};
use super::recording::Beside;
use crate::faults::cluster_local::{DATA, During, Site};
use crate::faults::table::{form, tell};
use crate::support::extent::is_long;
use crate::support::tracer::{Stop, Then};

/// The number of disks in the short form.
const FEW: usize = 4;
/// How many of ten points the daemon must reach again: its calls depend on how many messages of etcd and of the
/// neighbour come at once.
const SHARE: usize = 5;
/// The files that count as synced before the phase: other phases test their writes.
const SYNCED: [&str; 2] = [".node/node.json", "pods/blocks.json"];

/// A disk to try: the number of calls of the daemon that change something, and which one of the disks that
/// a loss of power may leave after them.
type Point = (usize, usize);

/// Records the calls of the daemon from the first one of the phase on.
struct Watch<'a> {
    here: &'a Path,
    beside: Option<Beside<'a>>,
}

impl<'a> Watch<'a> {
    fn new(here: &'a Path) -> Watch<'a> {
        Watch { here, beside: None }
    }

    /// Records a call; returns its number if it may have changed something.
    fn read(&mut self, stop: &Stop) -> Option<usize> {
        let new = || Beside::new(DATA, self.here, &SYNCED);
        let beside = self.beside.get_or_insert_with(new);
        beside.read(stop).then_some(beside.calls)
    }

    /// The disks that a loss of power may leave now.
    fn states(&self) -> Vec<State> {
        let recording = self.beside.as_ref().map(Beside::recording);
        recording.map(|recording| recording.without_power_at_last(Depth::Usual)).unwrap_or_default()
    }

    /// The number of changes.
    fn changes(&self) -> usize {
        self.beside.as_ref().map_or(0, |beside| beside.recording().changes.len())
    }
}

fn is_message(stop: &Stop) -> bool {
    stop.descriptor(0).starts_with("socket:")
}

/// The disks of a phase, and the number of changes in it. Equal disks count once, unless the daemon has sent
/// a message in between, which may have changed etcd.
fn points(site: &mut Site, during: During) -> (Vec<Point>, usize) {
    let here = site.data();
    let (mut watch, mut points) = (Watch::new(&here), vec![]);
    let mut known = BTreeSet::new();
    site.live(during, |stop| {
        if let Some(call) = watch.read(stop) {
            if is_message(stop) {
                known.clear();
            }
            let states = watch.states().into_iter().enumerate();
            let new = states.filter(|(_, state)| known.insert(state.disk.told()));
            points.extend(new.map(|(number, _)| (call, number)));
        }
        Then::Go
    });
    (points, watch.changes())
}

/// Loses power at this point. Returns whether the daemon reached it.
fn lose_power_at(site: &mut Site, during: During, (call, number): Point) -> bool {
    let here = site.data();
    let mut watch = Watch::new(&here);
    let left: Mutex<Option<State>> = Mutex::default();
    site.lose_power(
        during,
        |stop| match watch.read(stop) {
            Some(now) if now == call => {
                let mut states = watch.states();
                let other = number.min(states.len() - 1);
                if other != number {
                    eprintln!("call {call}: disk {other} in place of {number}, which is not there");
                }
                *left.lock().unwrap() = Some(states.swap_remove(other));
                Then::Kill
            }
            _ => Then::Go,
        },
        |root| {
            if let Some(state) = &*left.lock().unwrap() {
                eprintln!("{}: {}", during.words(), state.what);
                state.disk.write(root);
            }
        },
    );
    site.require_all(number % 2 == 0);
    let is_reached = left.into_inner().unwrap().is_some();
    if !is_reached {
        eprintln!("call {call}: not reached");
    }
    is_reached
}

fn sweep(during: During) {
    let Some(mut site) = Site::new() else { return };
    let (points, changes) = points(&mut site, during);
    let every = if is_long() { 1 } else { points.len().div_ceil(FEW).max(1) };
    let chosen: Vec<Point> = points.into_iter().step_by(every).collect();
    let reached = chosen.iter().filter(|point| lose_power_at(&mut site, during, **point));
    let tried = reached.count();
    eprintln!("{}: {tried} of {} points", during.words(), chosen.len());
    assert!(
        tried > 0 && tried * 10 >= chosen.len() * SHARE,
        "the daemon reached {tried} of {} points again",
        chosen.len()
    );
    // The kill sweep tries the disks after a kill.
    tell("power-loss", &[&form(), &"ipam daemon", &during.words(), &changes, &"", &tried, &0]);
}

#[test]
fn a_first_start_of_the_ipam_daemon_loses_no_address() {
    sweep(During::FirstStart);
}

#[test]
fn a_start_of_the_ipam_daemon_loses_no_address() {
    sweep(During::Start);
}

#[test]
fn a_start_of_the_ipam_daemon_after_a_boot_loses_no_address() {
    sweep(During::StartAfterBoot);
}

#[test]
fn a_claim_of_the_ipam_daemon_loses_no_address() {
    sweep(During::Claim);
}

#[test]
fn a_return_of_the_ipam_daemon_loses_no_address() {
    sweep(During::Return);
}
