//! The lock of a network's directory: flock on its file `lock`, the one the reference takes.
//!
//! Leases of an earlier boot: no container survives a reboot, so their addresses are free.
//!
//! The file `boot` in the network's directory has the id of the boot that the leases are of. The
//! first locked operation of another boot removes them all, and then writes the new id. So the
//! lease files themselves are those of host-local, and neither the index nor a reader needs to know
//! of it. A directory with leases and without the file was copied here: its leases stay.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::lease;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::file_lock::{self, Mode, Patience};
use crate::plain_file;
use crate::sys::clock;

/// The lock; dropping the value releases it.
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock of the directory `dir`, which must exist; code 11 on timeout. The file is
    /// never removed: unlinking it would let two processes hold two locks.
    pub fn take(dir: &Path, deadline: Deadline) -> Result<Lock> {
        let path = &dir.join("lock");
        let failed = |e| Error::io(format_args!("lock {path:?}"), &e);
        loop {
            let file = plain_file::open_lock(path).map_err(failed)?;
            let patience = Patience::of_operation(deadline);
            let file = file_lock::take(file, path, Mode::Exclusive, patience)?;
            let metadata = file.metadata().map_err(failed)?;
            if !metadata.is_file() {
                return Err(failed(io::Error::other("not a regular file")));
            }
            // Another process may have removed the directory while we waited; a lock on an unlinked
            // file protects nothing.
            if metadata.nlink() > 0 {
                return Ok(Lock { _file: file });
            }
        }
    }
}

/// The name of the file.
const BOOT: &str = "boot";
/// The longest content.
const LIMIT: usize = 1 << 12;

/// The kernel's id of this boot; empty where /proc does not report it.
pub fn boot_id() -> String {
    clock::boot_line().unwrap_or_default()
}

/// Whether the leases of the directory are of an earlier boot.
pub fn is_of_earlier_boot(dir: &Path) -> bool {
    let now = boot_id();
    let then = plain_file::read(&dir.join(BOOT), LIMIT);
    !now.is_empty() && then.is_ok_and(|then| then != now.as_bytes())
}

/// Declares that the leases of the directory are of this boot; removes those of an earlier one.
pub fn begin_boot(dir: &Path, remove: impl Fn(IpAddr) -> io::Result<()>) -> io::Result<()> {
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
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_second_taker_waits_for_the_first() {
        let dir = Scratch::new();
        let first = Lock::take(dir.path(), Deadline::default()).unwrap();
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _second = Lock::take(dir.path(), Deadline::default()).unwrap();
                sender.send(()).unwrap();
            });
            assert!(receiver.recv_timeout(Duration::from_millis(50)).is_err());
            drop(first);
            receiver.recv_timeout(Duration::from_secs(5)).unwrap();
        });
    }

    #[test]
    fn a_lock_file_that_was_removed_meanwhile_is_taken_anew() {
        let dir = Scratch::new();
        let first = Lock::take(dir.path(), Deadline::default()).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| Lock::take(dir.path(), Deadline::default()).unwrap());
            std::thread::sleep(Duration::from_millis(50));
            std::fs::remove_file(dir.path().join("lock")).unwrap();
            drop(first);
            second.join().unwrap();
        });
        assert!(dir.path().join("lock").exists());
    }

    #[test]
    fn the_file_is_the_reference_s() {
        let dir = Scratch::new();
        drop(Lock::take(dir.path(), Deadline::default()).unwrap());
        let metadata = std::fs::metadata(dir.path().join("lock")).unwrap();
        assert_eq!((metadata.len(), metadata.permissions().mode() & 0o7777), (0, 0o750));
    }

    #[test]
    fn a_link_or_fifo_in_its_place_is_an_error() {
        let dir = Scratch::new();
        nix::unistd::mkfifo(&dir.path().join("lock"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(Lock::take(dir.path(), Deadline::default()).is_err());
        std::fs::remove_file(dir.path().join("lock")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("lock")).unwrap();
        assert!(Lock::take(dir.path(), Deadline::default()).is_err());
    }

    fn remaining(dir: &Path) -> usize {
        begin_boot(dir, |ip| plain_file::remove(&lease::path(dir, ip))).unwrap();
        lease::addresses(dir).unwrap().len()
    }

    #[test]
    fn leases_of_an_earlier_boot_are_removed_once() {
        let dir = Scratch::new();
        fs::write(dir.path().join("10.1.2.2"), "a\r\neth0").unwrap();
        assert!(!is_of_earlier_boot(dir.path()));
        assert_eq!(remaining(dir.path()), 1, "leases that were copied here stay");
        assert_eq!(remaining(dir.path()), 1);
        for earlier in ["another boot\n", ""] {
            fs::write(dir.path().join("10.1.2.2"), "a\r\neth0").unwrap();
            fs::write(dir.path().join(BOOT), earlier).unwrap();
            assert!(is_of_earlier_boot(dir.path()));
            assert_eq!(remaining(dir.path()), 0, "{earlier:?}");
            assert!(!is_of_earlier_boot(dir.path()));
        }
    }
}
