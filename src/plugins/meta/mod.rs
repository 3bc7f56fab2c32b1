//! Chained plugins: each follows a plugin that creates an interface, and changes that interface.

pub mod bandwidth;
pub mod firewall;
pub mod portmap;
pub mod route_override;
pub mod sbr;
pub mod tuning;
pub mod vrf;
