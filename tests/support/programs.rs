//! Where the programs are that tests start.

use std::path::{Path, PathBuf};

/// The path of a program of PATH. Given without a directory beside a PATH for the child, a program
/// is started by fork instead of `posix_spawn` (std::process), and a fork copies the page tables of
/// this process: longer work than most calls of a plugin.
pub fn located(name: &str) -> PathBuf {
    if name.contains('/') {
        return name.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    found.unwrap_or_else(|| Path::new(name).to_owned())
}
