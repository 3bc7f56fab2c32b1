//! What every tier of the tests shares.

pub mod attachment;
pub mod call;
pub mod chain;
pub mod netns;
pub mod peers;
pub mod scratch;
pub mod snapshot;
pub mod stdin;
pub mod traffic;
