//! Tests of the chained plugins, which follow a main plugin.

pub mod bandwidth;
pub mod firewall;
pub mod portmap;
mod route_override;
pub mod sbr;
pub mod tuning;
pub mod vrf;
