//! One module a plugin, as in src/plugins.

pub mod ipam;
pub mod main;
