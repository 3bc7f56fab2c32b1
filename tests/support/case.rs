//! The cases of a test: each call of `for_each_peer` and the like is one. Those that one machine skips run on another.

use std::cell::Cell;

thread_local! {
    static BEGUN: Cell<usize> = const { Cell::new(0) };
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The name of the test that this thread runs.
pub fn test() -> String {
    std::thread::current().name().unwrap_or("?").to_owned()
}

/// Runs the next case of this test: in the virtual machine of `tests/run` only if its skip is among those of the file
/// `CNI_SKIPPED`, or if that file has a skip of the test outside its cases.
pub fn run(case: impl FnOnce()) {
    let number = BEGUN.replace(BEGUN.get() + 1) + 1;
    if !is_wanted(number) {
        return;
    }
    let around = CURRENT.replace(Some(number));
    case();
    CURRENT.set(around);
}

/// The number by which runs of `tests/run --all` take turns, which it has from the commit; None elsewhere.
pub fn turn() -> Option<usize> {
    std::env::var("CNI_TURN").ok().map(|turn| turn.parse().unwrap())
}

/// Whether this run is one of those that have the test; elsewhere each has it.
pub fn is_its_turn(one_in: usize) -> bool {
    let number: usize = test().bytes().map(usize::from).sum();
    turn().is_none_or(|turn| (number + turn).is_multiple_of(one_in))
}

/// Every `one_in`th of these, others at each turn; all of them where the run takes no turns.
pub fn in_turn<T>(all: impl IntoIterator<Item = T>, one_in: usize) -> Vec<T> {
    let is_next = |number: usize| turn().is_none_or(|turn| (number + turn).is_multiple_of(one_in));
    let numbered = all.into_iter().enumerate();
    numbered.filter_map(|(number, item)| is_next(number).then_some(item)).collect()
}

/// How a line of the log ends that tells of a skip in the current case.
pub fn current() -> String {
    CURRENT.get().map_or_else(String::new, |number| format!(", case {number}"))
}

fn is_wanted(number: usize) -> bool {
    let Some(file) = std::env::var_os("CNI_SKIPPED") else { return true };
    let skipped = std::fs::read_to_string(file).unwrap();
    let beginning = format!("SKIP {}: needs ", test());
    let mut cases = skipped.lines().filter(|line| line.starts_with(&beginning)).peekable();
    let is_that = |line: &str| {
        line.rsplit_once(", case ").is_none_or(|(_, skipped)| skipped == number.to_string())
    };
    cases.peek().is_none() || cases.any(is_that)
}
