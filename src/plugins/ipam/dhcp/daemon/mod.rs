//! The daemon.
pub mod flags;
