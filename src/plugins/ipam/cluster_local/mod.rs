//! `cluster-local` allocates addresses of ranges that several hosts share.
//!
//! A node borrows blocks of addresses from the cluster's store and allocates from them with local
//! files alone. [`block`] and [`pool`] say what can be borrowed, [`held`] is the file with what a
//! node has borrowed, and [`engine`] is what the daemon asks of the cluster's store.
//! `etcd` (with the cargo feature `cluster`) is the engine that asks etcd.

pub mod block;
pub mod engine;
#[cfg(feature = "cluster")]
pub mod etcd;
pub mod held;
pub mod pool;
