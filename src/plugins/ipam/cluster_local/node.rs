//! What this machine is to its cluster.

use std::path::Path;

use super::confirmed::{self, Confirmation};
use super::wire::SOCKET;
use crate::steps::allocation::files::lock::boot_id;

/// The configuration of the machine's part in a cluster.
pub const CONFIGURATION: &str = "/etc/cni-multi/ipam.json";

/// Whether the blocks in a data directory are known to be this node's own in this boot.
pub fn is_confirmed(data_dir: &Path) -> bool {
    let confirmed = Confirmation::read(&confirmed::path(Path::new(SOCKET)));
    confirmed.is_some_and(|confirmed| confirmed.fits(boot_id().trim(), data_dir))
}
