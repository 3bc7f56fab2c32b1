//! The kernel's network: namespaces, netlink, nftables, iptables, sysctls. Knows nothing of CNI.

pub mod activation;
#[cfg(small_binary)]
mod backtrace;
pub mod capabilities;
pub mod clock;
pub mod conntrack;
pub mod dbus;
pub mod iptables;
pub mod link_socket;
pub mod local_stream;
pub mod mac;
pub mod namespaces;
pub mod netlink;
pub mod netns;
pub mod nft;
pub mod packet_socket;
pub mod process;
pub mod random;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub mod seccomp;
pub mod sysctl;
pub mod sysfs;
pub mod tuntap;
