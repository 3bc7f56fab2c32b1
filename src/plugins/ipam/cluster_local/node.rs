//! Whether the blocks on this machine's disk are this node's.

use std::path::Path;

use super::confirmed::{self, Confirmation};
#[cfg(feature = "cluster")]
use super::daemon::identity;
#[cfg(feature = "cluster")]
use super::store::settings::Settings;
use super::wire::SOCKET;
use crate::steps::allocation::files::lock::boot_id;

/// The configuration of the machine's part in a cluster.
pub const CONFIGURATION: &str = "/etc/cni-multi/ipam.json";

/// Whether plugins may allocate from the blocks in a data directory: the daemon has confirmed them in
/// this boot, or the machine may do without.
pub fn is_confirmed(data_dir: &Path) -> bool {
    match Confirmation::read(&confirmed::path(Path::new(SOCKET))) {
        Some(confirmed) => confirmed.fits(boot_id().trim(), data_dir),
        None => trusts_reboot(data_dir),
    }
}

/// Whether `trustReboot` is set, and the node's record is of this name and machine, and was not
/// withdrawn.
#[cfg(feature = "cluster")]
fn trusts_reboot(data_dir: &Path) -> bool {
    let settings = Settings::load(Path::new(CONFIGURATION));
    let Some(settings) = settings.ok().filter(|settings| settings.trusts_reboot) else {
        return false;
    };
    let Ok(Some(file)) = identity::read(data_dir) else { return false };
    let is_own = file.node == settings.node && file.withdrawn.is_none();
    is_own && identity::of_this_machine().is_ok_and(|machine| machine == file.machine)
}

/// No daemon was built that could have claimed the blocks.
#[cfg(not(feature = "cluster"))]
fn trusts_reboot(_: &Path) -> bool {
    false
}
