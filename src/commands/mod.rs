//! What people type: one file or folder a command, named like it.

pub mod cnitool;
pub mod net;
