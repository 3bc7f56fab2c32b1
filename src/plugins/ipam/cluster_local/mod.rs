//! `cluster-local` allocates addresses of ranges that several hosts share.
//!
//! A node borrows blocks of addresses from the cluster's store and allocates from them with local
//! files alone. [`block`] and [`pool`] say what can be borrowed, [`held`] is the file with what a
//! node has borrowed, [`engine`] is what the daemon asks of the cluster's store, and [`machine`]
//! decides what it asks. `etcd` (with the cargo feature `cluster`) is the engine that asks etcd, and
//! `daemon` joins them.

mod add;
mod alone;
pub mod block;
mod claims;
mod client;
pub mod conf;
mod contested;
#[cfg(feature = "cluster")]
mod daemon;
pub mod ended;
pub mod engine;
#[cfg(feature = "cluster")]
pub mod etcd;
pub mod held;
mod import;
pub mod leases;
pub mod machine;
mod need;
pub mod node;
#[cfg(feature = "cluster")]
mod operator;
mod plugin;
pub mod pool;
mod prune;
mod room;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod simulation;
mod sizes;
mod status;
mod sticky;
mod store;
pub mod wire;

pub use self::plugin::ClusterLocal;
