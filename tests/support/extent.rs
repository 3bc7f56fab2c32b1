//! How much a test tries, and on which kind of machine.

use super::case;

/// How much of a sweep runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// The sample of `tests/run`, which sets `CNI_SHORT`.
    Ordinary,
    /// The complete set of `tests/run --all`.
    Whole,
    /// Everything: `tests/faults/run` sets `CNI_LONG`.
    Long,
}

pub fn extent() -> Extent {
    let is_set = |name| std::env::var_os(name).is_some();
    match (is_set("CNI_LONG"), is_set("CNI_SHORT")) {
        (true, _) => Extent::Long,
        (false, true) => Extent::Ordinary,
        (false, false) => Extent::Whole,
    }
}

pub fn is_long() -> bool {
    extent() == Extent::Long
}

/// In the ordinary form every `one_of`th item, in the whole one twice as many, in the long one all of them. Callers with
/// different turns start at different offsets, so that together they cover every item. A run that takes turns has every
/// `one_of`th, others at each commit.
pub fn sample<T>(all: Vec<T>, one_of: usize, turn: usize) -> Vec<T> {
    let step = match extent() {
        Extent::Whole if case::turn().is_none() => (one_of / 2).max(1),
        Extent::Ordinary | Extent::Whole => one_of,
        Extent::Long => 1,
    };
    all.into_iter().skip((turn + case::turn().unwrap_or_default()) % step).step_by(step).collect()
}

/// Of the points of a sweep one in so many is tried; every one by `tests/faults/run`, which sets `CNI_EVIDENCE` and writes
/// the tables.
pub fn one_in(many: usize) -> usize {
    if is_long() || std::env::var_os("CNI_EVIDENCE").is_some() { 1 } else { many }
}

/// Whether this is the virtual machine of `tests/vm/run`, which sets `CNI_VM`.
pub fn is_emulated() -> bool {
    std::env::var_os("CNI_VM").is_some()
}
