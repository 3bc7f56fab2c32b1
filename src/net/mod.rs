//! The kernel's network: namespaces, netlink, nftables, iptables, sysctls. Knows nothing of CNI.

pub mod conntrack;
pub mod dbus;
pub mod iptables;
#[cfg(small_binary)]
mod left_out;
pub mod mac;
pub mod netlink;
pub mod netns;
pub mod nft;
pub mod process;
pub mod sysctl;
pub mod tuntap;
