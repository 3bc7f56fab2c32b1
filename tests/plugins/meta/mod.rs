//! Tests of the plugins that are chained after a main plugin.

pub mod portmap;
pub mod sbr;
pub mod vrf;
