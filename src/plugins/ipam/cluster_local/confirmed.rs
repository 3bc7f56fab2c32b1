//! The confirmation of the node's blocks: a file in /run, which ends with the boot. Plugins allocate
//! from active blocks while it fits the boot and the node's record on the disk.
//!
//! The daemon writes it once it knows, in this boot, that each active block is the node's own. The
//! record is told by its inode and the time of its last write: another directory has another record, and
//! a change of mode or label is none.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::name::Name;
use super::store::Token;
use crate::error::{Error, Result};
use crate::plain_file;

/// The name of the file, beside the daemon's socket.
pub const FILE: &str = "ipam-confirmed.json";
/// The path of the node's record in a data directory. No network's name begins with a dot.
pub const RECORD: &str = ".node/node.json";
/// The longest file.
const LIMIT: usize = 4096;

/// What tells a file from any other that was at its path before or after: device, inode, and the time
/// of the last write in seconds and nanoseconds.
pub type Stamp = [i64; 4];

/// The confirmation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmation {
    /// The id of the boot.
    pub boot: String,
    /// The node's name.
    pub node: Name,
    /// The hash of the machine's identity.
    pub machine: Token,
    /// The node's record; None while the daemon writes it, and if nothing is confirmed.
    pub record: Option<Stamp>,
    /// Nothing is confirmed in this boot, whatever record there is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub withdrawn: bool,
}

/// The stamp of the node's record in a data directory; None if it has none.
pub fn stamp(data_dir: &Path) -> io::Result<Option<Stamp>> {
    match std::fs::symlink_metadata(data_dir.join(RECORD)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        data => data.map(|data| {
            let [dev, ino] = [data.dev(), data.ino()].map(u64::cast_signed);
            Some([dev, ino, data.mtime(), data.mtime_nsec()])
        }),
    }
}

/// The path of the file beside a socket.
pub fn path(socket: &Path) -> PathBuf {
    socket.with_file_name(FILE)
}

impl Confirmation {
    /// Reads the file; None if there is none, or none that is understood. One that cannot be read may
    /// say that the node was withdrawn.
    pub fn read(path: &Path) -> Result<Option<Confirmation>> {
        let text = plain_file::read_if_any(path, LIMIT).map_err(|e| {
            Error::at_path("read", path)(e).with_details(
                "it says whether this node was withdrawn: boot the machine, or remove the file if no copy of the machine runs",
            )
        })?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// Whether it is of this boot and of the record that the data directory has now.
    pub fn fits(&self, boot: &str, data_dir: &Path) -> bool {
        let is_of_boot = !boot.is_empty() && self.boot == boot;
        is_of_boot && self.record.is_some() && stamp(data_dir).is_ok_and(|now| now == self.record)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn another_record_with_the_same_content_does_not_fit() {
        let dir = Scratch::new();
        std::fs::create_dir(dir.path().join(".node")).unwrap();
        dir.write(RECORD, "{}");
        let record = stamp(dir.path()).unwrap();
        let node = "n1".parse().unwrap();
        let (boot, withdrawn) = ("boot".to_owned(), false);
        let confirmed = Confirmation { boot, node, machine: Token(7), record, withdrawn };
        let file = path(&dir.path().join("ipam.sock"));
        plain_file::put(&file, &serde_json::to_vec(&confirmed).unwrap()).unwrap();
        let read = Confirmation::read(&file).unwrap().unwrap();
        assert_eq!(read, confirmed);
        assert!(read.fits("boot", dir.path()));
        assert!(!read.fits("other", dir.path()) && !read.fits("", dir.path()));
        assert!(!Confirmation { record: None, ..read.clone() }.fits("boot", dir.path()));
        dir.write("copy", "{}");
        std::fs::rename(dir.path().join("copy"), dir.path().join(RECORD)).unwrap();
        assert!(!read.fits("boot", dir.path()));
        std::fs::remove_file(dir.path().join(RECORD)).unwrap();
        assert!(!read.fits("boot", dir.path()));
    }
}
