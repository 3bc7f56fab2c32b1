//! Nothing leaks, whatever happens: faults at every step of every plugin.

#[cfg(feature = "cluster")]
pub mod cluster_local;
mod contention;
pub mod dhcp;
mod error;
mod kill;
mod life;
mod lives;
mod orphan;
mod power_loss;
mod table;
