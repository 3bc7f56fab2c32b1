//! Plugins that change what another plugin made.

pub mod tuning;
