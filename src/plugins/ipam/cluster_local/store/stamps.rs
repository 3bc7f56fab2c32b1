//! Files of credentials. They are replaced while the daemon runs: before each request it looks
//! whether they are the same files as before.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Files, and what they were when they were looked at last.
#[derive(Debug)]
pub struct Stamps {
    paths: Vec<PathBuf>,
    seen: Vec<Option<Stamp>>,
}

/// What tells the content of a file from another without reading it: device, inode, length, and
/// the times of the last change of content and of the inode, in nanoseconds.
type Stamp = ([u64; 3], [i64; 4]);

impl Stamps {
    /// These files, which are read after this.
    pub fn new(paths: Vec<PathBuf>) -> Stamps {
        let seen = paths.iter().map(|path| stamp(path)).collect();
        Stamps { paths, seen }
    }

    /// Whether a file has changed since the last call. A change after it is found by the next call.
    pub fn have_changed(&mut self) -> bool {
        let now: Vec<_> = self.paths.iter().map(|path| stamp(path)).collect();
        let before = std::mem::replace(&mut self.seen, now);
        before != self.seen
    }
}

/// None if there is no such file. A symlink counts as what it leads to.
fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = path.metadata().ok()?;
    let file = [metadata.dev(), metadata.ino(), metadata.len()];
    let modified = [metadata.mtime(), metadata.mtime_nsec()];
    Some((file, [modified[0], modified[1], metadata.ctime(), metadata.ctime_nsec()]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_file_that_was_replaced_or_written_has_changed() {
        let dir = Scratch::new();
        let [path, link] = ["cert", "link"].map(|name| dir.path().join(name));
        let mut stamps = Stamps::new(vec![path.clone(), link.clone()]);
        let mut has_changed = move || stamps.have_changed();
        assert!(!has_changed());
        fs::write(&path, "one").unwrap();
        assert!(has_changed() && !has_changed());
        fs::write(dir.path().join("new"), "two").unwrap();
        fs::rename(dir.path().join("new"), &path).unwrap();
        assert!(has_changed() && !has_changed(), "another inode");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(has_changed() && !has_changed());
        fs::write(dir.path().join("other"), "two").unwrap();
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), &link).unwrap();
        assert!(has_changed(), "the link leads elsewhere");
        fs::remove_file(&path).unwrap();
        assert!(has_changed() && !has_changed());
    }
}
