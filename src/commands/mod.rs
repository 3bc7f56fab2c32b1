//! What people type: one file or folder a command, named like it.

pub mod net;
pub mod schema;
pub mod validate;
