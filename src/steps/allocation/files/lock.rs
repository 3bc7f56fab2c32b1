//! The lock of a network's directory: flock on its file `lock`, the one the reference takes.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::file_lock::{self, Mode, Patience};
use crate::plain_file;

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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
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
}
