//! How often plugins were called, for `cni-multi metrics`. Nothing is counted without the directory,
//! which an administrator makes.
//!
//! One file for each plugin, command and code of the outcome: `bridge.ADD.0`. A call appends an octet
//! to it, so the size is the count. Calls of many processes need no lock, and one that is killed
//! breaks nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::cni::env::Command;
use crate::error::{Error, Result};
use crate::plain_file;

/// The directory of the files.
pub const DIR: &str = "/run/cni/calls";

/// Plugin, command, and the error's code; 0 for success.
pub type Call = (String, String, u32);

/// Counts a call that ends now. VERSION is not counted.
pub fn add(plugin: &str, command: &str, outcome: &Result<()>) {
    let Some(command) = Command::parse(command).filter(|command| *command != Command::Version)
    else {
        return;
    };
    let code = outcome.as_ref().map_or_else(|error| error.code.0, |()| 0);
    let name = format!("{plugin}.{}.{code}", command.as_str());
    let _ = plain_file::append(&Path::new(DIR).join(name), b"\n"); // the call does not depend on it
}

/// Begins to count.
pub fn begin() -> Result<()> {
    let dir = Path::new(DIR);
    plain_file::make_private_directory(dir).map_err(Error::at_path("create", dir))
}

/// Ends counting, and removes what was counted.
pub fn end() -> Result<()> {
    let dir = Path::new(DIR);
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(Error::at_path("remove", dir)),
    }
}

/// The counted calls; None if nothing is counted.
pub fn read() -> Result<Option<BTreeMap<Call, u64>>> {
    let dir = Path::new(DIR);
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries.map_err(Error::at_path("open", dir))?,
    };
    let mut counts = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(Error::at_path("read", dir))?;
        let Some(call) = parse(&entry.file_name().to_string_lossy()) else { continue };
        let size = entry.metadata().map_err(Error::at_path("examine", &entry.path()))?.len();
        counts.insert(call, size);
    }
    Ok(Some(counts))
}

/// The call that a file of this name counts.
fn parse(name: &str) -> Option<Call> {
    let (plugin, rest) = name.split_once('.')?;
    let (command, code) = rest.split_once('.')?;
    Command::parse(command)?;
    Some((plugin.to_owned(), command.to_owned(), code.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_others_count_nothing() {
        let call = |command: &str, code| Some(("bridge".to_owned(), command.to_owned(), code));
        assert_eq!(parse("bridge.ADD.0"), call("ADD", 0));
        assert_eq!(parse("bridge.DEL.999"), call("DEL", 999));
        for name in ["bridge", "bridge.ADD", "bridge.LOOK.0", "bridge.ADD.x", "bridge.ADD.0.0"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}
