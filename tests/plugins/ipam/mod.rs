//! Tests of the plugins that assign addresses.

pub mod cluster_local;
pub mod dhcp;
pub mod host_local;
mod host_local_store;
mod static_;
mod whereabouts;
