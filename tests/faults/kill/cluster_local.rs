//! The kill sweep of the daemon of cluster-local: it is killed after each call that changes something
//! while it starts with a block and a lease, claims a block, and gives one back.

use super::kill_daemon;
use crate::faults::Decide;
use crate::faults::cluster_local::{During, Site, test_each_phase};
use crate::support::extent::is_long;

fn sweep(during: During) {
    let Some(mut site) = Site::new() else { return };
    // In the short form, one of two points is tried.
    let changes = (1..).step_by(if is_long() { 1 } else { 2 });
    let live = |_, decide: &mut Decide<'_>| site.live(during, decide).daemon;
    kill_daemon(["ipam daemon", during.words()], changes, live);
}

test_each_phase!(sweep);
