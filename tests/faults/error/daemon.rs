//! Faults of a daemon: where they occur, and what is wrong with how it takes them.

use std::collections::BTreeMap;

use super::fault::{Fault, words};
use crate::support::tracer::Stop;

/// A failing call of the daemon: the system call, its count, and the fault. Calls are counted per
/// system call because the daemon interleaves several tasks in varying order.
pub type Point = ((i64, usize), Fault);

/// Counts each system call separately.
#[derive(Default)]
pub struct Counts(pub BTreeMap<i64, usize>);

impl Counts {
    pub fn count(&mut self, stop: &Stop) -> (i64, usize) {
        let count = self.0.entry(stop.call).or_default();
        *count += usize::from(stop.result.is_none());
        (stop.call, *count)
    }
}

/// What is wrong with what a daemon said and did when a call failed. It may only end while it starts,
/// and then says why.
pub fn mistake(said: &str, died: bool, starts: bool, fault: Fault) -> Option<String> {
    if said.contains("panicked") || said.to_lowercase().contains("bug") {
        return Some(format!("a panic: {said}"));
    }
    if died && !starts {
        return Some(format!("the daemon has died: {said}"));
    }
    if died && !said.to_lowercase().contains(&words(fault.errno())) {
        return Some(format!("the daemon does not say why it cannot start: {said}"));
    }
    None
}
