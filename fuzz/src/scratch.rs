//! A directory of the process's own, in memory, which is empty at the beginning of each input.

use std::fs;
use std::path::{Path, PathBuf};

/// Goes when it is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty one.
    pub fn new(name: &str) -> Scratch {
        let dir = Path::new("/dev/shm").join(format!("cni-multi-fuzz-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir); // an input that failed has left it
        fs::create_dir(&dir).expect("/dev/shm can be written to");
        Scratch(dir)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // the next input does it
    }
}
