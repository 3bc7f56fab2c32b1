//! The store of host-local.

use crate::support::netns::Lab;

pub const STORE: &str = "/var/lib/cni/networks/net1";

/// The reservation files of the store.
pub fn leases(lab: &Lab) -> Vec<String> {
    let names =
        lab.host.sh(&format!("ls {STORE} | grep -v -e '^lock$' -e last_reserved_ip || true"));
    names.lines().map(str::to_owned).collect()
}
