//! The kill sweep of the daemon of cluster-local: it is killed after each call that changes something
//! while it starts with a block and a lease, claims a block, and gives one back.

use crate::faults::cluster_local::{During, Site, test_each_phase};
use crate::faults::table::Row;
use crate::support::extent::is_long;
use crate::support::tracer::Then;

/// In the short form, one of so many points is tried.
const SHORT: usize = 2;

fn sweep(during: During) {
    let Some(mut site) = Site::new() else { return };
    let (mut points, mut calls) = (0, 0);
    let step = if is_long() { 1 } else { SHORT };
    for change in (1..).step_by(step) {
        let (mut changes, mut killed) = (0, false);
        let lived = site.live(during, |stop| {
            changes += usize::from(stop.changes() && stop.result.is_some_and(|result| result >= 0));
            killed |= changes == change;
            if killed { Then::Kill } else { Then::Go }
        });
        (points, calls) = (points + usize::from(killed), lived.daemon.calls);
        if !killed {
            break;
        }
    }
    assert!(points > 0, "it was not killed");
    Row { network: "ipam daemon", operation: during.words(), calls, points, failures: 0 }
        .tell("kills");
}

test_each_phase!(sweep);
