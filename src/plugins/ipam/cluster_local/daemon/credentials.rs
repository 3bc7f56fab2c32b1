//! The files of certificates, key, CA and password. They are replaced while the daemon runs: before
//! each new connection it looks whether they are the same files as before.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::SystemTime;

use super::super::etcd::client;
use super::super::etcd::settings::Settings;
use crate::error::Result;

/// The files, as they were when they were read last.
pub struct Credentials {
    settings: Settings,
    seen: Vec<Option<Stamp>>,
}

/// What tells the content of a file from another without reading it: device, inode, length, and
/// the times of the last change of content and of the inode, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: [u64; 3],
    times: [i64; 4],
}

impl Credentials {
    /// The files of these settings, which are read after this.
    pub fn new(settings: &Settings) -> Credentials {
        Credentials { settings: settings.clone(), seen: stamps(settings) }
    }

    /// What the files have now, if any was replaced since the last call. They are looked at before
    /// they are read: a change in between is found by the next call.
    pub fn renewed(&mut self) -> Option<Result<client::Store>> {
        let now = stamps(&self.settings);
        if now == self.seen {
            return None;
        }
        self.seen = now;
        Some(self.settings.store(SystemTime::now()))
    }
}

fn stamps(settings: &Settings) -> Vec<Option<Stamp>> {
    let files = &settings.files;
    let password = settings.user.as_ref().map(|(_, file)| file);
    let paths = [&files.ca, &files.cert, &files.key].into_iter().chain(password);
    paths.map(|path| stamp(path)).collect()
}

/// None if there is no such file. A symlink counts as what it leads to.
fn stamp(path: &Path) -> Option<Stamp> {
    path.metadata().ok().map(|metadata| Stamp::of(&metadata))
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        let modified = [metadata.mtime(), metadata.mtime_nsec()];
        let changed = [metadata.ctime(), metadata.ctime_nsec()];
        Stamp {
            file: [metadata.dev(), metadata.ino(), metadata.len()],
            times: [modified[0], modified[1], changed[0], changed[1]],
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_file_that_was_replaced_or_written_has_another_stamp() {
        let dir = Scratch::new();
        let path = dir.path().join("cert");
        assert_eq!(stamp(&path), None);
        fs::write(&path, "one").unwrap();
        let first = stamp(&path);
        assert_eq!(stamp(&path), first);
        fs::write(dir.path().join("new"), "two").unwrap();
        fs::rename(dir.path().join("new"), &path).unwrap();
        assert_ne!(stamp(&path), first, "another inode");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let through = stamp(&link);
        assert_eq!(through, stamp(&path));
        fs::write(dir.path().join("other"), "two").unwrap();
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), &link).unwrap();
        assert_ne!(stamp(&link), through);
    }
}
