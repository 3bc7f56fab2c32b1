//! Stores of tests: one in memory, and a server whose answers are texts.

#[cfg(feature = "cluster")]
pub mod fake;
pub mod memory;
