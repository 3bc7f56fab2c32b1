//! The paths of the programs that tests start.

use std::path::{Path, PathBuf};

/// The path of a program of PATH. If a name has no directory and the child gets a PATH, std::process uses fork
/// instead of `posix_spawn`. A fork copies the page tables of this process, which takes longer than most calls
/// of a plugin.
pub fn located(name: &str) -> PathBuf {
    if name.contains('/') {
        return name.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    found.unwrap_or_else(|| Path::new(name).to_owned())
}
