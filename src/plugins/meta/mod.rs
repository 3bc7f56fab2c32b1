//! Plugins that change what another plugin made.

pub mod sbr;
pub mod vrf;
