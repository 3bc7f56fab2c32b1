//! The state machine against a model of the cluster, under random schedules: the promise of the design's
//! §1 and the invariants of its §4, one test a kind of faults.
//!
//! After each step no address is leased twice, no block is used twice, a block that is used has its key,
//! and of a machine and its resumed copy one alone takes new blocks. When the faults have ended, one of
//! these two stops within a beat, every machine that was treated as it may be runs, each gets an address
//! within ten seconds while one is free, and after the last DEL nothing is left in the store. A failure prints its seed and
//! what happened; `CNI_SIMULATION_SEED` repeats it. `CNI_SIMULATION` is the number of schedules.

mod ends;
mod kind;
mod mutants;
mod network;
mod node;
mod promise;
mod schedule;
mod store;
mod world;

use std::time::Instant;

use self::kind::Kind;
use self::schedule::{run, traced};

/// Schedules of a kind in `tests/run --all`, and in `tests/run`, which sets `CNI_SHORT`.
const WHOLE: u64 = 100;
const ORDINARY: u64 = 20;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Writes a line of a run to stdout, which the test harness shows with `--nocapture`.
#[allow(clippy::explicit_write)] // tests/layers.rs keeps the macro out of src
fn report(line: std::fmt::Arguments<'_>) {
    use std::io::Write as _;
    writeln!(std::io::stdout(), "{line}").unwrap();
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
    let count = number("CNI_SIMULATION").unwrap_or(if is_short { ORDINARY } else { WHOLE });
    let first = number("CNI_SIMULATION_FIRST").unwrap_or(0);
    let (began, mut steps, mut served) = (Instant::now(), 0, 0);
    for seed in first..first + count {
        let done = run(kind, seed);
        if let Some(failure) = done.failure {
            let (trace, _) = traced(kind, seed);
            let tail = &trace[trace.len().saturating_sub(60)..];
            panic!("{kind:?} seed {seed}: {failure}\n{}", tail.join("\n"));
        }
        (steps, served) = (steps + done.steps, served + done.served);
    }
    assert!(served >= count, "schedules that attach nothing prove nothing: {served} of {count}");
    let seconds = began.elapsed().as_secs_f64();
    report(format_args!(
        "{kind:?}: {count} schedules, {steps} steps, {served} ADDs, {seconds:.1} s"
    ));
}

macro_rules! simulations {
    ($($name:ident: $kind:ident,)*) => {
        $(#[test] fn $name() { simulate(Kind::$kind); })*
    };
}

simulations! {
    nothing_is_held_twice_under_network_faults: Network,
    nothing_is_held_twice_under_crashes: Crashes,
    nothing_is_held_twice_when_nodes_are_reclaimed: Reclaims,
    nothing_is_held_twice_with_blocks_of_other_sizes: Sizes,
    nothing_is_held_twice_with_names: Names,
    nothing_is_held_twice_after_a_restore: Restore,
    nothing_is_held_twice_after_several_restores: Restores,
    nothing_is_held_twice_after_restores_with_other_sizes: RestoreOfSizes,
    a_rough_restore_is_over_after_100_seconds: RoughRestore,
    nothing_is_held_twice_after_a_disk_was_restored: RestoredDisk,
    a_clone_takes_nothing_from_its_original: Clone,
    a_clone_with_the_name_of_its_original_is_refused: CloneOfName,
    a_replaced_directory_stops_the_node: ReplacedDirectory,
    of_a_machine_and_its_resumed_copy_one_claims: ResumedMemory,
    beside_another_store_nothing_is_claimed: OtherStore,
    nothing_is_held_twice_after_a_join: Joined,
    nothing_is_held_twice_after_trusted_reboots: TrustedReboot,
}
