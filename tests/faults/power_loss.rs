//! A kill or a power loss in the middle of a write to the disk.
//!
//! Each operation is traced once. Then fresh processes meet each disk that it may leave: its state
//! after the first, second, … change, and, after a power loss, what may be left of that state
//! without a sync. DEL of the old attachments and ADD of new ones must succeed, and nothing may be
//! left.
//!
//! `CNI_LONG=1` combines each damage of each file with each missing change; see [`Depth`] for the
//! other forms.

mod cache;
#[cfg(feature = "cluster")]
mod cluster_local;
mod dhcp;
mod disk;
mod host_local;
mod kept;
mod losses;
mod recording;

use std::fmt::Display;
use std::sync::Mutex;

use self::losses::{Depth, State};
use self::recording::Recording;
use super::in_turns;
use super::table::{form, tell};
use crate::support::call::Outcome;
use crate::support::extent::{is_long, one_in};

/// The depth of the long form, or the usual depth.
fn depth(usually: Depth) -> Depth {
    if is_long() { Depth::All } else { usually }
}

/// The states to try: all of a few, one in three of many, spread evenly by the golden ratio, which shares no period with
/// the damages that follow each other.
fn chosen(states: Vec<State>) -> impl Iterator<Item = State> {
    let one_in = if states.len() > FEW { one_in(3) as u32 } else { 1 };
    let is_chosen = move |at: usize| (at as u32).wrapping_mul(0x9e37_79b9) <= u32::MAX / one_in;
    states.into_iter().enumerate().filter(move |(at, _)| is_chosen(*at)).map(|(_, state)| state)
}

/// So many states are all tried.
const FEW: usize = 60;

/// An error says what is wrong after a state.
type Verdict = Result<(), String>;

/// Tries the states, using `places` in parallel. Tells and returns the row of the table, with the number of states.
#[track_caller]
fn sweep<P: Send>(
    [store, operation]: [&str; 2],
    recording: &Recording,
    [killed, without_power]: [Vec<State>; 2],
    places: Vec<P>,
    try_state: impl Fn(&P, &State, bool) -> Verdict + Sync,
) -> String {
    let counts = [killed.len(), without_power.len()];
    let killed = chosen(killed).map(|state| (true, state));
    let states: Vec<(bool, State)> =
        killed.chain(chosen(without_power).map(|state| (false, state))).collect();
    let (at_a_time, free) = (places.len(), Mutex::new(places));
    let failures = in_turns(states.len(), at_a_time, |number| {
        let place = free.lock().unwrap().pop().unwrap();
        let (has_power, state) = &states[number];
        let tried = try_state(&place, state, *has_power);
        free.lock().unwrap().push(place);
        tried.map_err(|failure| format!("{}: {failure}", state.what))
    });
    let failures: Vec<String> = failures.into_iter().filter_map(Result::err).collect();
    let changes = recording.changes.len();
    let cells: [&dyn Display; 7] =
        [&form(), &store, &operation, &changes, &counts[0], &counts[1], &failures.len()];
    let row = tell("power-loss", &cells);
    assert!(failures.is_empty(), "{row}\n{}", failures[..failures.len().min(8)].join("\n"));
    row
}

/// The table has the figures of the ordinary form.
#[track_caller]
fn assert_is_evidence(row: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/evidence/power-loss.csv");
    let table = std::fs::read_to_string(path).unwrap();
    let is_there = is_long() || table.lines().any(|line| line == row);
    assert!(is_there, "docs/evidence/power-loss.csv has another row than\n{row}");
}

/// Requires that a call succeeded.
fn succeeds(what: &str, outcome: &Outcome) -> Verdict {
    if outcome.status == 0 { Ok(()) } else { Err(format!("{what}: {outcome:?}")) }
}

fn require(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}
