//! What this machine is to its cluster.

use std::path::Path;

/// The configuration of the machine's part in a cluster.
pub const CONFIGURATION: &str = "/etc/cni-multi/ipam.json";

/// What a machine without a cluster says of its addresses.
pub const ALONE: &str =
    "cluster of one: no /etc/cni-multi/ipam.json; addresses are unique on this machine only";

/// Whether the machine is configured as a part of a cluster. A name that cannot be looked at counts
/// as one: to claim without the cluster could allocate an address twice.
pub fn is_of_cluster() -> bool {
    Path::new(CONFIGURATION).try_exists().unwrap_or(true)
}
