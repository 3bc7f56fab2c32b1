//! Nothing leaks, whatever happens: faults at every step of every plugin.

mod error;
mod kill;
pub mod subject;
