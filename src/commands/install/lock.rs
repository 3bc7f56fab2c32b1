//! The lock of a plugin directory: one installer at a time.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use super::layout::{LOCK, STATE, attempt, require_own_state};
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::file_lock::{self, Mode, Patience};
use crate::plain_file;

/// How long to wait for another installer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often to retry the lock after its file was unlinked, each time by another installer that has
/// finished.
const TRIES: usize = 100;

/// Waits until no other installer works in the directory; calls `announce` once if it has to wait.
pub fn take(dir: &str, announce: &mut dyn FnMut()) -> Result<File> {
    let path = [dir, "/", LOCK].concat();
    let mut is_announced = false;
    for _ in 0..TRIES {
        let Some(file) = open(&path)? else { continue };
        let is_held = Mode::Exclusive.try_take(&file).is_ok_and(|is_free| !is_free);
        if !is_announced && is_held {
            announce();
            is_announced = true;
        }
        let patience = Patience { of_one: PATIENCE, deadline: Deadline::after(PATIENCE * 3) };
        let file = file_lock::take(file, Path::new(&path), Mode::Exclusive, patience)?;
        if is_lock(&file) {
            return Ok(file);
        }
    }
    Err(Error::new(Code::TRY_AGAIN, ["lock ", &path, ": it was removed each time"].concat()))
}

/// The lock, unless another installer works in the directory.
pub fn take_if_free(dir: &str) -> Result<Option<File>> {
    let path = [dir, "/", LOCK].concat();
    let Some(file) = open(&path)? else { return Ok(None) };
    let is_free = attempt("lock", &path, Mode::Exclusive.try_take(&file))?;
    Ok(Some(file).filter(|file| is_free && is_lock(file)))
}

/// The lock file; None if another installer has just removed its directory.
fn open(path: &str) -> Result<Option<File>> {
    require_own_state()?;
    let made = plain_file::make_directories(Path::new(STATE), 0o700);
    let opened = match made.map(|()| plain_file::open_or_create(Path::new(LOCK))) {
        Ok(Err(e)) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(file) => attempt("open", path, file),
        Err(error) => attempt("make", STATE, Err(error)),
    };
    opened.map(Some).map_err(|error| error.context("cannot be written"))
}

/// Whether the lock's name still refers to this open file.
fn is_lock(file: &File) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::symlink_metadata(LOCK)) {
        (Ok(open), Ok(named)) => identity(open) == identity(named),
        _ => false,
    }
}
