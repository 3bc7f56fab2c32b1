//! Nothing leaks, whatever happens: faults at every step of every plugin.

mod contention;
mod error;
mod kill;
pub mod subject;

/// Whether the sweeps go over everything, which takes long: `CNI_LONG=1`, as `tests/faults/run` sets it.
pub fn is_long() -> bool {
    std::env::var_os("CNI_LONG").is_some_and(|long| long == "1")
}
