//! Tests of the plugins that are chained after a main plugin.

pub mod bandwidth;
pub mod firewall;
pub mod portmap;
pub mod sbr;
pub mod tuning;
pub mod vrf;
