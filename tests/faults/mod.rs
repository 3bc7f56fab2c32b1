//! Nothing leaks, whatever happens: faults at every step of every plugin.

mod kill;
pub mod subject;
