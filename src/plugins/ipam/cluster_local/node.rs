//! Whether the blocks on this machine's disk are this node's.

use std::path::Path;

use super::confirmed::{self, Confirmation};
#[cfg(feature = "cluster")]
use super::daemon::identity;
#[cfg(feature = "cluster")]
use super::store::settings::Settings;
use super::wire::SOCKET;
use crate::error::Result;
use crate::steps::allocation::files::lock::boot_id;

/// The configuration of the machine's part in a cluster.
pub const CONFIGURATION: &str = "/etc/cni-multi/ipam.json";

/// Whether plugins may allocate from the blocks in a data directory: the daemon has confirmed them in
/// this boot, or the machine may do without.
pub fn is_confirmed(data_dir: &Path) -> Result<bool> {
    let path = confirmed::path(Path::new(SOCKET));
    Ok(match Confirmation::read(&path)? {
        Some(confirmed) => confirmed.fits(boot_id().trim(), data_dir),
        // One that is not understood may say that nothing is confirmed.
        None if path.try_exists().unwrap_or(true) => false,
        None => trusts_reboot(Path::new(CONFIGURATION), data_dir),
    })
}

/// Whether `trustReboot` is set, and the node's record is of this name and machine, and was not
/// withdrawn.
#[cfg(feature = "cluster")]
fn trusts_reboot(configuration: &Path, data_dir: &Path) -> bool {
    let settings = Settings::load(configuration);
    let Some(settings) = settings.ok().filter(|settings| settings.trusts_reboot) else {
        return false;
    };
    let Ok(Some(file)) = identity::read(data_dir) else { return false };
    let is_own = file.node == settings.node && file.withdrawn.is_none();
    is_own && identity::of_this_machine().is_ok_and(|machine| machine == file.machine)
}

/// No daemon was built that could have claimed the blocks.
#[cfg(not(feature = "cluster"))]
fn trusts_reboot(_: &Path, _: &Path) -> bool {
    false
}

#[cfg(test)]
#[cfg(feature = "cluster")]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_reboot_is_trusted_on_the_machine_of_the_record_alone() {
        let dir = Scratch::new();
        let configuration = dir.path().join("ipam.json");
        let machine = identity::of_this_machine().unwrap();
        fs::create_dir(dir.path().join(".node")).unwrap();
        let trusts = |configured: &str, record: &str| {
            let etcd = r#""etcd":{"endpoints":["http://127.0.0.1:2379"]}"#;
            dir.write(
                "ipam.json",
                &format!(r#"{{"cluster":"test","node":"n1",{etcd}{configured}}}"#),
            );
            fs::set_permissions(&configuration, Permissions::from_mode(0o600)).unwrap();
            let uid = "000000000000000000000000000000ab";
            let rest = format!(r#""version":2,"uid":"{uid}","number":7"#);
            dir.write(confirmed::RECORD, &format!("{{{rest},{record}}}"));
            trusts_reboot(&configuration, dir.path())
        };
        let trusting = r#","trustReboot":true"#;
        let own = format!(r#""node":"n1","machine":"{machine}""#);
        assert!(trusts(trusting, &own));
        assert!(!trusts("", &own));
        assert!(!trusts(trusting, &own.replace("n1", "n2")));
        assert!(!trusts(trusting, &own.replace(&machine.to_string(), &"0".repeat(32))));
        let withdrawn = r#""withdrawn":{"boot":"b","is_copied":true}"#;
        assert!(!trusts(trusting, &format!("{own},{withdrawn}")));
        fs::remove_file(dir.path().join(confirmed::RECORD)).unwrap();
        assert!(!trusts_reboot(&configuration, dir.path()));
    }
}
