//! Plugins that hand out addresses.

pub mod cluster_local;
pub mod dhcp;
pub mod host_local;
pub mod r#static;
pub mod whereabouts;
