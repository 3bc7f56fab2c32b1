//! Sizes on disk.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;

use crate::call::Plugins;

/// Under its own name the binary is not a plugin.
const OWN_NAME: &str = "cni-multi";

/// The size of the plugins on disk; several links to one file count once.
pub struct Size {
    pub bytes: u64,
    pub plugins: usize,
}

/// The size of one side. Only names that both sides have count, so that other vendors' plugins in a
/// directory do not make the comparison look better than it is; without another side, all names
/// count.
pub fn of(plugins: &Plugins, other: Option<&Plugins>) -> Size {
    let mut files = BTreeSet::new();
    let mut size = Size { bytes: 0, plugins: 0 };
    for entry in std::fs::read_dir(&plugins.dir).into_iter().flatten().flatten() {
        let shared = other.is_none_or(|other| other.dir.join(entry.file_name()).exists());
        let Some(file) =
            std::fs::metadata(entry.path()).ok().filter(|file| file.is_file() && shared)
        else {
            continue;
        };
        size.plugins += usize::from(entry.file_name() != OWN_NAME);
        if files.insert((file.dev(), file.ino())) {
            size.bytes += file.size();
        }
    }
    size
}
