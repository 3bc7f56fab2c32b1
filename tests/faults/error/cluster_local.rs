//! The error sweep of the daemon of cluster-local: it reports a failure or tries again, keeps running,
//! and loses no block. A daemon that cannot start says why.

use super::daemon::{Counts, Point, mistake};
use super::fault::{Trap, chosen};
use super::sweep::assert_none;
use crate::faults::cluster_local::{During, Site, test_each_phase};
use crate::faults::table::Row;
use crate::support::extent::is_long;
use crate::support::tracer::Then;

/// The number of points in the short form: each is a life of two daemons.
const FEW: usize = 8;

/// The points of failure in this phase, and the number of system calls that the phase makes.
fn points(site: &mut Site, during: During) -> (Vec<Point>, usize) {
    let (mut points, mut counts) = (vec![], Counts::default());
    // Calls before the daemon reads its configuration belong to the loader and libc.
    let mut is_loaded = during != During::Start;
    site.live(during, |stop| {
        let call = counts.count(stop);
        is_loaded = is_loaded || stop.describe().contains("cni-multi/ipam.json");
        if stop.result.is_none() && is_loaded {
            points.extend(chosen(stop, is_long()).into_iter().map(|fault| (call, fault)));
        }
        Then::Go
    });
    (points, counts.0.values().sum())
}

fn sweep(during: During) {
    let Some(mut site) = Site::new() else { return };
    let (points, calls) = points(&mut site, during);
    let every = if is_long() { 1 } else { points.len().div_ceil(FEW).max(1) };
    let (mut tried, mut found) = (0, vec![]);
    for (wanted, fault) in points.into_iter().step_by(every) {
        let (mut trap, mut counts) = (Trap::new(fault), Counts::default());
        let lived = site.live(during, |stop| {
            let call = counts.count(stop);
            trap.decide(stop, call == wanted)
        });
        tried += usize::from(trap.sprung.is_some());
        let what = trap.sprung.unwrap_or_else(|| "nothing fails".to_owned());
        let said = &lived.daemon.outcome.stderr;
        let mistake = mistake(said, lived.died, during == During::Start, fault);
        found.extend(mistake.map(|mistake| format!("{during:?}: {what}: {mistake}")));
    }
    assert_none(&found);
    assert!(tried > 0, "nothing has failed");
    Row { network: "ipam daemon", operation: during.words(), calls, points: tried, failures: 0 }
        .tell("errors");
}

test_each_phase!(sweep);
