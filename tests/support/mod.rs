//! What every tier of the tests shares.

pub mod attachment;
pub mod call;
pub mod netns;
pub mod snapshot;
pub mod traffic;
