//! Operations on one container wait for each other, as the specification demands of a runtime, and GC for all of them.
//!
//! Of two ADDs of one attachment at the same time one fails, and its undo would take down what the other has made; a GC
//! would take an address for nobody's that an ADD has just been given. libcni leaves this to its caller, and where that is
//! a person nobody else sees to it.
//!
//! There is one file for a cache, `lock`; a container has one byte of it, by the hash of its id, and GC takes all. So
//! nothing is made or removed for a container, and what readers of the cache list stays as it is. Other runtimes do not
//! look at it: they know their own containers only.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use super::cache::{Cache, create_dir};
use crate::cni::attachment::{ContainerId, hash8};
use crate::error::warn;

/// As far as a file can be locked.
const TO_THE_END: i64 = 0;

impl Cache {
    /// Waits until nobody works on this container, or with None on any; it is so until the file is closed.
    ///
    /// None where there can be no lock: a directory that cannot be written must not keep DEL from its work.
    pub(super) fn lock(&self, container: Option<&ContainerId>) -> Option<File> {
        create_dir(self.dir()).ok()?;
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(self.dir().join("lock")).ok()?;
        let (start, length) = container.map_or((0, TO_THE_END), |id| (place(id), 1));
        let wanted = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: start,
            l_len: length,
            l_pid: 0,
        };
        if fcntl(&file, FcntlArg::F_OFD_SETLK(&wanted)).is_err() {
            warn("waiting for another operation on the same container, or gc");
            fcntl(&file, FcntlArg::F_OFD_SETLKW(&wanted)).ok()?;
        }
        Some(file)
    }
}

/// The container's byte.
fn place(id: &ContainerId) -> i64 {
    i64::from_be_bytes(hash8(id.as_str())) & (i64::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    fn id(text: &str) -> ContainerId {
        ContainerId::parse(text).unwrap()
    }

    /// Whether somebody who holds `held` keeps away who wants `wanted`, for as long and no longer.
    fn excludes(held: Option<&str>, wanted: Option<&'static str>) -> bool {
        let dir = Scratch::new();
        let cache = Cache::new(dir.path());
        let first = cache.lock(held.map(id).as_ref()).unwrap();
        let (got_it, wait) = mpsc::channel();
        let second = thread::spawn(move || {
            let _lock = cache.lock(wanted.map(id).as_ref()).unwrap();
            got_it.send(()).unwrap();
        });
        let excluded = wait.recv_timeout(Duration::from_millis(200)).is_err();
        drop(first);
        second.join().unwrap();
        excluded
    }

    #[test]
    fn a_container_has_a_lock_of_its_own_and_gc_has_all() {
        assert!(excludes(Some("a"), Some("a")));
        assert!(!excludes(Some("a"), Some("b")));
        assert!(excludes(Some("a"), None) && excludes(None, Some("b")) && excludes(None, None));
    }

    #[test]
    fn where_no_lock_can_be_there_is_none() {
        let dir = Scratch::new();
        dir.write("file", "");
        assert!(Cache::new(dir.path().join("file")).lock(None).is_none());
    }
}
