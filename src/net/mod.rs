//! The kernel's network: namespaces, netlink, nftables, iptables, sysctls. Knows nothing of CNI.

pub mod activation;
pub mod clock;
pub mod conntrack;
pub mod dbus;
pub mod iptables;
#[cfg(small_binary)]
mod left_out;
pub mod link_socket;
pub mod local_stream;
pub mod mac;
pub mod netlink;
pub mod netns;
pub mod nft;
pub mod packet_socket;
pub mod process;
pub mod random;
pub mod sysctl;
pub mod tuntap;
