//! Plugins that make an interface.

pub mod bridge;
pub mod dummy;
pub mod host_device;
pub mod loopback;
pub mod ptp;
pub mod tap;
