//! The plugins, grouped as in the reference. A file is named after the `type` in configurations.

pub mod ipam;
pub mod main;
pub mod meta;
