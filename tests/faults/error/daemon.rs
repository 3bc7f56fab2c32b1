//! Faults of a daemon: where they occur, and what is wrong with how it takes them.

use std::collections::BTreeMap;

use super::fault::{Fault, Trap, chosen, words};
use super::sweep::{assert_none, told_to_runtimes};
use crate::faults::Decide;
use crate::faults::dhcp::Lived;
use crate::faults::table::tell_points;
use crate::support::extent::is_long;
use crate::support::tracer::{Stop, Then};

/// A daemon in a phase.
pub struct Daemon<'a> {
    pub network: &'a str,
    pub operation: &'a str,
    /// The number of points in the short form.
    pub few: usize,
    /// The file that a daemon opens first when it starts, in a phase that is its start: earlier calls belong to the
    /// loader and libc.
    pub loads: Option<&'a str>,
}

/// Counts each system call separately, because the daemon interleaves several tasks in varying order.
#[derive(Default)]
struct Counts(BTreeMap<i64, usize>);

impl Counts {
    fn count(&mut self, stop: &Stop) -> (i64, usize) {
        let count = self.0.entry(stop.call).or_default();
        *count += usize::from(stop.result.is_none());
        (stop.call, *count)
    }
}

/// Fails the system calls of a daemon. `live` is one life of it, of whose system calls it decides; `recover` gets what
/// has failed and its number.
pub fn fail_each(
    daemon: &Daemon<'_>,
    mut live: impl FnMut(&mut Decide<'_>) -> Lived,
    recover: impl Fn(&str, usize),
) {
    let Daemon { network, operation, few, loads } = *daemon;
    let (mut points, mut counts, mut is_loaded) = (vec![], Counts::default(), loads.is_none());
    let lived = live(&mut |stop| {
        let call = counts.count(stop);
        is_loaded |= loads.is_some_and(|file| stop.describe().contains(file));
        if stop.result.is_none() && is_loaded {
            points.extend(chosen(stop, is_long()).into_iter().map(|fault| (call, fault)));
        }
        Then::Go
    });
    assert!(lived.calls.iter().all(|outcome| outcome.status == 0), "{:?}", lived.calls);
    recover("no fault", 0);
    let every = if is_long() { 1 } else { points.len().div_ceil(few).max(1) };
    let calls = counts.0.values().sum();
    let (mut tried, mut found) = (0, vec![]);
    for (turn, (wanted, fault)) in points.into_iter().step_by(every).enumerate() {
        let (mut trap, mut counts) = (Trap::new(fault), Counts::default());
        let lived = live(&mut |stop| {
            let call = counts.count(stop);
            trap.decide(stop, call == wanted)
        });
        let what = format!("{operation}: {}", trap.sprung.as_deref().unwrap_or("nothing fails"));
        recover(&what, turn);
        tried += usize::from(trap.sprung.is_some());
        let mistake = mistake(&lived, loads.is_some(), fault);
        found.extend(mistake.map(|mistake| format!("{what}: {mistake}: {:?}", lived.calls)));
    }
    assert_none(&found);
    assert!(tried > 0, "nothing has failed");
    tell_points("errors", [network, operation], [calls, tried, 0]);
}

/// What is wrong with what a daemon said and did when a call failed. It may only end while it starts,
/// and then says why.
fn mistake(lived: &Lived, starts: bool, fault: Fault) -> Option<String> {
    let said = &lived.daemon.outcome.stderr;
    if said.contains("panicked") || said.to_lowercase().contains("bug") {
        return Some(format!("a panic: {said}"));
    }
    if lived.died && !starts {
        return Some(format!("the daemon has died: {said}"));
    }
    if lived.died && !said.to_lowercase().contains(&words(fault.errno())) {
        return Some(format!("the daemon does not say why it cannot start: {said}"));
    }
    let failed = lived.calls.iter().filter(|outcome| outcome.status != 0);
    failed.map(told_to_runtimes).find_map(Result::err).map(str::to_owned)
}
