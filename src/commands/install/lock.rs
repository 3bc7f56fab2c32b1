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

fn patience() -> Patience {
    Patience { of_one: PATIENCE, deadline: Deadline::after(PATIENCE * 3) }
}

/// Waits until no other installer works in the directory; calls `announce` once if it has to wait.
pub fn take(dir: &str, announce: &mut dyn FnMut()) -> Result<File> {
    let path = [dir, "/", LOCK].concat();
    require_own_state()?;
    let mut is_announced = false;
    for _ in 0..TRIES {
        let opened = open(&path).map_err(|error| error.context("cannot be written"))?;
        let Some(file) = opened else { continue };
        if !is_announced && try_take_fails(&file) {
            announce();
            is_announced = true;
        }
        let file = file_lock::take(file, Path::new(&path), Mode::Exclusive, patience())?;
        if has_name(&file, LOCK) {
            return Ok(file);
        }
    }
    Err(Error::new(Code::TRY_AGAIN, ["lock ", &path, ": it was removed each time"].concat()))
}

/// The lock, unless another installer works in the directory.
pub fn take_if_free(dir: &str) -> Result<Option<File>> {
    let path = [dir, "/", LOCK].concat();
    require_own_state()?;
    let Some(file) = open(&path).map_err(|error| error.context("cannot be written"))? else {
        return Ok(None);
    };
    let is_free = attempt("lock", &path, Mode::Exclusive.try_take(&file))?;
    Ok(Some(file).filter(|file| is_free && has_name(file, LOCK)))
}

/// Takes the lock unless another process has it; returns whether one has.
fn try_take_fails(file: &File) -> bool {
    Mode::Exclusive.try_take(file).is_ok_and(|is_free| !is_free)
}

/// The lock file; None if another installer has just removed its directory.
fn open(path: &str) -> Result<Option<File>> {
    attempt("make", STATE, plain_file::make_directories(Path::new(STATE), 0o700))?;
    match plain_file::open_or_create(Path::new(LOCK)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        file => attempt("open", path, file).map(Some),
    }
}

/// Whether the name refers to this open file.
fn has_name(file: &File, name: &str) -> bool {
    match (file.metadata(), fs::symlink_metadata(name)) {
        (Ok(open), Ok(named)) => identity(&open) == identity(&named),
        _ => false,
    }
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}
