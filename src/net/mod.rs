//! The kernel's network: namespaces, netlink, nftables, iptables, sysctls. Knows nothing of CNI.
//! Kernel interfaces unrelated to networks are in [`sys`](crate::sys).

pub mod conntrack;
pub mod dns_query;
pub mod echo;
pub mod filter_rule;
pub mod iptables;
pub mod link_socket;
pub mod mac;
pub mod module;
pub mod namespaces;
pub mod netlink;
pub mod netns;
mod nfnetlink;
pub mod nft;
pub mod packet_socket;
pub mod packet_trace;
pub mod private;
pub mod request;
pub mod sock_diag;
pub mod syn;
pub mod sysctl;
pub mod sysfs;
pub mod temporary;
pub mod tuntap;
pub mod xtables_legacy;
