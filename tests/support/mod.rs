//! What every tier of the tests shares.

pub mod call;
pub mod peers;
pub mod scratch;
pub mod stdin;
