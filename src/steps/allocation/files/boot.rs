//! Leases of an earlier boot: no container survives a reboot, so their addresses are free.
//!
//! The file `boot` in the network's directory has the id of the boot that the leases are of. The
//! first locked operation of another boot removes them all, and then writes the new id. So the
//! lease files themselves are those of host-local, and neither the index nor a reader needs to know
//! of it. A directory with leases and without the file was copied here: its leases stay.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use super::lease;
use crate::plain_file;
use crate::sys::boot;

/// The name of the file.
const BOOT: &str = "boot";
/// The longest content.
const LIMIT: usize = 1 << 12;

/// The kernel's id of this boot; empty where /proc does not report it.
pub fn boot_id() -> String {
    boot::line().unwrap_or_default()
}

/// Whether the leases of the directory are of an earlier boot.
pub fn has_passed(dir: &Path) -> bool {
    let now = boot_id();
    let then = plain_file::read(&dir.join(BOOT), LIMIT);
    !now.is_empty() && then.is_ok_and(|then| then != now.as_bytes())
}

/// Declares that the leases of the directory are of this boot; removes those of an earlier one.
pub fn begin(dir: &Path, remove: impl Fn(IpAddr) -> io::Result<()>) -> io::Result<()> {
    let path = dir.join(BOOT);
    let now = boot_id();
    match plain_file::read(&path, LIMIT) {
        Ok(then) if now.is_empty() || then == now.as_bytes() => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => (),
        _ => lease::addresses(dir)?.into_iter().try_for_each(remove)?,
    }
    plain_file::put(&path, now.as_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;
    use crate::scratch::Scratch;

    fn remaining(dir: &Path) -> usize {
        begin(dir, |ip| plain_file::remove(&lease::path(dir, ip))).unwrap();
        lease::addresses(dir).unwrap().len()
    }

    #[test]
    fn leases_of_an_earlier_boot_are_removed_once() {
        let dir = Scratch::new();
        fs::write(dir.path().join("10.1.2.2"), "a\r\neth0").unwrap();
        assert!(!has_passed(dir.path()));
        assert_eq!(remaining(dir.path()), 1, "leases that were copied here stay");
        assert_eq!(remaining(dir.path()), 1);
        for earlier in ["another boot\n", ""] {
            fs::write(dir.path().join("10.1.2.2"), "a\r\neth0").unwrap();
            fs::write(dir.path().join(BOOT), earlier).unwrap();
            assert!(has_passed(dir.path()));
            assert_eq!(remaining(dir.path()), 0, "{earlier:?}");
            assert!(!has_passed(dir.path()));
        }
    }
}
