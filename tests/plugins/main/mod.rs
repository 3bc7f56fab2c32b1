//! Plugins that make an interface.

pub mod bridge;
pub mod ipvlan;
pub mod loopback;
pub mod macvlan;
pub mod ptp;
pub mod stacked;
pub mod vlan;
