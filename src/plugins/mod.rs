//! The plugins, in the groups of the reference. A file's name is the `type` in configurations.

pub mod ipam;
pub mod main;
pub mod meta;
