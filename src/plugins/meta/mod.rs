//! Plugins that are chained after one that makes an interface, and change what it made.

pub mod bandwidth;
pub mod firewall;
pub mod portmap;
pub mod sbr;
pub mod tuning;
pub mod vrf;
