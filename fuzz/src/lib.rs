//! The fuzz targets: the places where the program parses bytes from other programs.
//!
//! Each module has one target: a function that takes any bytes and panics if the program does, or
//! if the program's output cannot be true of its input. `fuzz_targets` passes them to libFuzzer,
//! [`short`] runs them without it.

pub mod config;
pub mod conntrack;
pub mod dbus;
pub mod delegate;
pub mod dhcp_client;
pub mod dhcp_daemon;
pub mod dhcp_message;
pub mod dhcpv6_message;
pub mod environment;
pub mod etcd;
pub mod host_local;
pub mod iptables_save;
mod kernel;
pub mod network_list;
pub mod nftables;
pub mod ovsdb;
pub mod packets;
pub mod result;
pub mod rtnetlink;
mod scratch;
pub mod short;
pub mod state_files;
pub mod static_ipam;
pub mod validate;

use cni_multi::cni::json::Value;

/// A target with its name.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("config", config::run),
    ("result", result::run),
    ("environment", environment::run),
    ("static_ipam", static_ipam::run),
    ("host_local", host_local::run),
    ("state_files", state_files::run),
    ("network_list", network_list::run),
    ("validate", validate::run),
    ("delegate", delegate::run),
    ("rtnetlink", rtnetlink::run),
    ("nftables", nftables::run),
    ("conntrack", conntrack::run),
    ("iptables_save", iptables_save::run),
    ("dbus", dbus::run),
    ("ovsdb", ovsdb::run),
    ("packets", packets::run),
    ("dhcp_daemon", dhcp_daemon::run),
    ("dhcp_message", dhcp_message::run),
    ("dhcpv6_message", dhcpv6_message::run),
    ("dhcp_client", dhcp_client::run),
    ("etcd", etcd::run),
];

/// The parts of an input, separated by lines of three hyphens.
fn parts<const N: usize>(bytes: &[u8]) -> [&[u8]; N] {
    let mut rest = Some(bytes);
    std::array::from_fn(|place| {
        let text = rest.take().unwrap_or_default();
        let end = text.windows(SEAM.len()).position(|window| window == SEAM).filter(|_| place + 1 < N);
        rest = end.map(|end| &text[end + SEAM.len()..]);
        &text[..end.unwrap_or(text.len())]
    })
}

/// Whether a number is not an integer. With seventeen digits the last one may change when it is
/// parsed again; no plugin of ours reads such numbers.
fn has_fraction(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(items) => items.iter().any(has_fraction),
        Value::Object(members) => members.iter().any(|(_, value)| has_fraction(value)),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

const SEAM: &[u8] = b"\n---\n";
