//! Plugins that assign addresses.

pub mod host_local;
mod static_;
