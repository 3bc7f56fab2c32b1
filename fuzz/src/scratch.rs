//! A directory of the process's own, in memory, empty at the start of each input.

use std::fs;
use std::path::{Path, PathBuf};

/// The directory; removed on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates an empty directory.
    pub fn new(name: &str) -> Scratch {
        let dir = Path::new("/dev/shm").join(format!("cni-multi-fuzz-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir); // left by an input that failed
        fs::create_dir(&dir).expect("/dev/shm can be written to");
        Scratch(dir)
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // the next input removes it
    }
}
