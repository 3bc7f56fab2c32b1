//! Plugins that create an interface.

pub mod bond;
pub mod bridge;
pub mod dummy;
pub mod flannel;
pub mod host_device;
pub mod ipvlan;
pub mod loopback;
pub mod macvlan;
pub mod ovs;
pub mod ptp;
pub mod tap;
pub mod vlan;
