//! What every tier of the tests shares.

pub mod call;
