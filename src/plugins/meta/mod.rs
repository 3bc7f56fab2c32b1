//! Plugins that change what another plugin made.

pub mod firewall;
pub mod portmap;
pub mod tuning;
