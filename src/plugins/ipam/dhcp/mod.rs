//! `dhcp` gets a container's address from a DHCP server of its network; a daemon keeps the lease.
//!
//! <https://www.cni.dev/plugins/current/ipam/dhcp/>

pub mod v4;
pub mod v6;
