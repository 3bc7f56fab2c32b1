//! Runs two calls at a time: one is stopped at a system call while the other runs.

use std::time::{Duration, Instant};

use super::call::{Call, Outcome};
use super::tracer::{Then, old_calls, trace};

/// The numbers of the program's own system calls that change something, start another program or
/// wait for it.
pub fn stops(call: &Call) -> Vec<usize> {
    let mut stops = vec![];
    let traced = trace(call, |stop| {
        let is_of_another =
            [libc::SYS_clone, libc::SYS_clone3, old_calls::SYS_vfork, libc::SYS_wait4]
                .contains(&stop.call);
        if stop.is_own && stop.result.is_none() && (stop.changes() || is_of_another) {
            stops.push(stop.number);
        }
        Then::Go
    });
    traced.outcome.ok();
    assert!(!stops.is_empty());
    stops
}

/// The outcomes of a call that is stopped before the system call of this number, and of the other
/// call. The first call continues when the other has finished, when `is_held` says that the first
/// blocks it, or after the limit.
pub fn run_beside(
    stopped: &Call,
    number: usize,
    other: &Call,
    is_held: impl Fn() -> bool + Sync,
    limit: Duration,
) -> [Outcome; 2] {
    std::thread::scope(|scope| {
        let mut running = None;
        let traced = trace(stopped, |stop| {
            if stop.number == number && stop.result.is_none() {
                let begun = scope.spawn(|| other.run());
                let deadline = Instant::now() + limit;
                while !begun.is_finished() && !is_held() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(1));
                }
                running = Some(begun);
            }
            Then::Go
        });
        // Two runs may differ by a few system calls, so the stop may never have been reached.
        [traced.outcome, running.map_or_else(|| other.run(), |running| running.join().unwrap())]
    })
}
