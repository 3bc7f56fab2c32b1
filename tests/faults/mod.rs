//! Nothing leaks, whatever happens: faults at every step of every plugin.

mod contention;
mod error;
mod kill;
mod lives;
mod orphan;
mod power_loss;
pub mod subject;
