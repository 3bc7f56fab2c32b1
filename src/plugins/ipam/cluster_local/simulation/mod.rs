//! The state machine against a model of the cluster, under random schedules: requests are lost, late or
//! done twice, the store has no leader, writes to the disk fail, daemons crash at any step, nodes lose
//! power and are reclaimed, and the store is restored from a snapshot. Networks share ranges, have several
//! of them, keep names, and are configured after the contact.
//!
//! After each step no address is held twice, nothing is used twice, and no name has two addresses: each
//! write that makes a block usable is compared with what is usable elsewhere. When the faults stop, a node
//! can get every free address, and each unused name its own; after the last DEL nothing is left in the
//! store. Most schedules are short, and leave out the ends of a long one. A failure prints its seed and what
//! happened; `CNI_SIMULATION_SEED` repeats it. `CNI_SIMULATION` is the number of schedules.

mod ends;
mod node;
mod plugin;
mod schedule;
pub mod store;
mod transit;
mod wish;
mod world;

use std::time::Instant;

use self::schedule::{Kind, run, traced};

/// Schedules of a kind in `tests/run --all`, and in `tests/run`, which sets `CNI_SHORT`.
const WHOLE: u64 = 100;
const ORDINARY: u64 = 20;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs schedules of a kind, and prints how fast.
fn simulate(kind: Kind) {
    if let Some(seed) = number("CNI_SIMULATION_SEED") {
        let (trace, failure) = traced(kind, seed);
        report(format_args!("{}\n{failure:?}", trace.join("\n")));
        assert_eq!(failure, None);
        return;
    }
    let is_short = std::env::var_os("CNI_SHORT").is_some();
    let usual = if is_short { ORDINARY } else { WHOLE };
    let count = number("CNI_SIMULATION").unwrap_or(usual);
    let first = number("CNI_SIMULATION_FIRST").unwrap_or(0);
    let (began, mut steps, mut served, mut fenced) = (Instant::now(), 0, 0, 0);
    for seed in first..first + count {
        let done = run(kind, seed);
        if let Some(failure) = done.failure {
            let (trace, _) = traced(kind, seed);
            let tail = &trace[trace.len().saturating_sub(60)..];
            panic!("{kind:?} seed {seed}: {failure}\n{}", tail.join("\n"));
        }
        steps += done.steps;
        served += done.served;
        fenced += done.fenced;
    }
    assert!(
        served >= count,
        "schedules that attach nothing prove nothing: {served} ADDs in {count}"
    );
    let are_absent = kind == Kind::Absences;
    assert!(!are_absent || fenced >= count / 5, "only {fenced} nodes were fenced in {count}");
    let seconds = began.elapsed().as_secs_f64();
    report(format_args!(
        "{kind:?}: {count} schedules, {steps} steps, {served} ADDs, {fenced} fenced in {seconds:.1} s"
    ));
}

#[test]
fn nothing_is_held_twice_under_network_faults() {
    simulate(Kind::Network);
}

#[test]
fn nothing_is_held_twice_under_crashes() {
    simulate(Kind::Crashes);
}

#[test]
fn nothing_is_held_twice_when_nodes_are_reclaimed() {
    simulate(Kind::Reclaims);
}

#[test]
fn nothing_is_held_twice_when_absent_nodes_are_reclaimed() {
    simulate(Kind::Absences);
}

#[test]
fn nothing_is_held_twice_after_an_orderly_restore() {
    simulate(Kind::OrderlyRestore);
}

#[test]
fn a_lost_claim_is_a_conflict_after_a_rough_restore() {
    simulate(Kind::RoughRestore);
}

/// Writes a line of a run to stdout, which the test harness shows with `--nocapture`.
fn report(line: std::fmt::Arguments<'_>) {
    use std::io::Write as _;
    writeln!(std::io::stdout(), "{line}").unwrap();
}
