//! One module per plugin, as in src/plugins.

mod contract;
pub mod ipam;
pub mod main;
pub mod meta;
mod pairs;
mod parts;
mod tables;
