//! Tests of the plugins that create an interface.

mod alike;
pub mod bond;
pub mod bridge;
mod check;
pub mod dummy;
pub mod fastpath;
mod flannel;
pub mod host_device;
pub mod ipvlan;
pub mod loopback;
pub mod macvlan;
pub mod ovs;
pub mod ptp;
mod repair;
mod sentences;
pub mod stacked;
pub mod tap;
pub mod vlan;
