//! The kill sweep: SIGKILL between the system calls of ADD, DEL, GC and CHECK, for every plugin.
//!
//! After each kill the runtime continues in one of the ways that runtimes do. Afterwards the host
//! and the container are as before, and a neighbour on the same network has not changed. The short
//! form kills after each call that changes something in the kernel or on the disk, with the ways in
//! rotation, or where programs are started, after every fourth: between two such calls all kills are alike. The long form (`tests/faults/run kill`)
//! tries every way at each of those points, and also kills before every single call of the plugin
//! itself.

#[cfg(feature = "cluster")]
mod cluster_local;
mod dhcp;
mod sweep;

use super::Decide;
use super::table::tell_points;
use crate::support::tracer::{Then, Traced};

super::life::test_each_runtime!(sweep::run);

/// Kills a daemon after each of these changes in a phase, until it makes fewer. `live` is one life of the daemon, with
/// all that must hold afterwards.
fn kill_daemon(
    what: [&str; 2],
    changes: impl Iterator<Item = usize>,
    mut live: impl FnMut(usize, &mut Decide<'_>) -> Traced,
) {
    let (mut points, mut calls) = (0, 0);
    for change in changes {
        let (mut made, mut killed) = (0, false);
        let daemon = live(change, &mut |stop| {
            made += usize::from(stop.changes() && stop.result.is_some_and(|result| result >= 0));
            killed |= made == change;
            if killed { Then::Kill } else { Then::Go }
        });
        (points, calls) = (points + usize::from(killed), daemon.calls);
        if !killed {
            break;
        }
    }
    assert!(points > 0, "it was not killed");
    tell_points("kills", what, [calls, points, 0]);
}
