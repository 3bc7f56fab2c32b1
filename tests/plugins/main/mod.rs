//! Plugins that make an interface.

pub mod bridge;
mod loopback;
mod ptp;
