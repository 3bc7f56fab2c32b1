//! The network configurations that several test suites share, and their kernel queries: one file
//! per plugin.

pub mod bandwidth;
pub mod bond;
pub mod bridge;
pub mod dhcp;
pub mod dummy;
pub mod fastpath;
pub mod firewall;
pub mod flannel;
pub mod host_device;
pub mod host_local;
pub mod ovs;
pub mod portmap;
pub mod ptp;
pub mod route_override;
pub mod sbr;
pub mod stacked;
pub mod tap;
pub mod tuning;
pub mod vrf;
