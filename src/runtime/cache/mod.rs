//! The result cache: what is known of each attachment from ADD to DEL, in libcni's files: other
//! programs (libcni itself, ocicni, podman, Multus) read, list and edit them. This module knows
//! where the files are and how they are written and found; [`record`] parses their content.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use super::directory;
use super::parameters::Parameters;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::result::Document;
use crate::error::{Code, Error, Result};
use crate::plain_file::{self, LARGEST_CONFIGURATION};

mod record;
pub use record::{Found, Record};
use record::{names_another, record_of, result_of, text_of};

/// The default directory of libcni's cache.
pub const DEFAULT_DIR: &str = "/var/lib/cni";

/// The prefix of the names of files that are being written.
const DRAFT: &str = ".result.";

/// The longest file name.
const NAME_MAX: usize = 255;

/// From this number of files on, a second thread reads half of them.
const MANY: usize = 64;

/// A directory of results.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// The cache in `<dir>/results`, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Cache {
        Cache { dir: dir.into() }
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of the files.
    pub fn results(&self) -> PathBuf {
        self.dir.join("results")
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.results().join(file_name(key))
    }

    /// Writes the parameters and the result of an ADD. An older file of the attachment is replaced
    /// atomically.
    pub fn write(&self, at: &Parameters, document: &[u8], result: &Document) -> Result<()> {
        let text = text_of(at, document, result);
        let file = self.file(&at.key);
        let written = create_dir(&self.results())
            .and_then(|()| self.replace(&at.key, &file, text.as_bytes()));
        written.map_err(Error::at_path("write", &file))
    }

    /// Writes a draft and renames it. The draft is outside the directory of results, since readers
    /// of that list every file in it, unless the directory is a file system of its own.
    fn replace(&self, key: &Key, file: &Path, text: &[u8]) -> io::Result<()> {
        let [draft, beside] = self.drafts(key);
        match replace(file, &draft, text) {
            Err(error) if error.kind() == ErrorKind::CrossesDevices => replace(file, &beside, text),
            replaced => replaced,
        }
    }

    /// The paths for drafts of the attachment's file: the holder of its lock is the only writer.
    fn drafts(&self, key: &Key) -> [PathBuf; 2] {
        let name = format!("{DRAFT}{}", key.identity());
        [self.dir.join(&name), self.results().join(name)]
    }

    /// Removes the drafts that a crash has left, of any attachment. The caller holds the lock of
    /// all.
    pub(super) fn forget_drafts(&self) {
        for dir in [&self.dir, &self.results()] {
            let names = directory::names(dir, |kind| kind.is_file()).unwrap_or_default();
            for name in names.iter().filter(|name| name.to_string_lossy().starts_with(DRAFT)) {
                let _ = plain_file::remove(&dir.join(name)); // a draft that stays harms nothing
            }
        }
    }

    /// Fails if the attachment's result could not be kept, because its file name is too long or is
    /// another attachment's; called before the attachment is made.
    pub(super) fn require_keepable(&self, key: &Key) -> Result<()> {
        let name = file_name(key);
        if self.is_another_s(key)? {
            let what = "the result of another attachment is kept under the same name";
            return Err(Error::new(Code::INVALID_CONFIG, format!("{what}, {name}"))
                .with_details("expected another container id or network"));
        }
        let length = name.len();
        if length > NAME_MAX {
            let what = "the names of network, container and interface make";
            return Err(Error::new(
                Code::INVALID_CONFIG,
                format!("{what} {length} bytes together"),
            )
            .with_details(format_args!("expected at most {NAME_MAX}: {name}")));
        }
        Ok(())
    }

    /// Whether the cache has a file of the attachment.
    ///
    /// The answer decides whether an ADD is undone, so a file that cannot be examined is an error.
    pub fn contains(&self, key: &Key) -> Result<bool> {
        let file = self.file(key);
        match fs::metadata(&file) {
            Ok(_) => Ok(!self.is_another_s(key)?),
            Err(e) if is_none(&e) => Ok(false),
            Err(e) => Err(Error::at_path("examine", &file)(e)),
        }
    }

    /// Whether the attachment's file belongs to another attachment whose names make the same file
    /// name: `a-b` and `c`, `a` and `b-c`.
    fn is_another_s(&self, key: &Key) -> Result<bool> {
        let file = self.file(key);
        match read(&file) {
            Ok(text) => Ok(names_another(&text, key)),
            Err(e) if is_none(&e) => Ok(false),
            Err(e) => Err(Error::at_path("read", &file)(e)),
        }
    }

    /// The result of the attachment's ADD, in this version; None if it has no file. The error is
    /// [`Code::IO`] if the file cannot be read now; with any other code the file can never be used.
    pub fn result(&self, key: &Key, version: &str) -> Result<Option<Document>> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        result_of(&text)?.map(|result| converted(result, version)).transpose()
    }

    /// The content of the attachment's file; None if it has none.
    fn text(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        let file = self.file(key);
        match read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Ok(text) if names_another(&text, key) => Ok(None),
            text => text.map(Some).map_err(Error::at_path("read", &file)),
        }
    }

    /// Removes the attachment's file.
    pub fn delete(&self, key: &Key) -> Result<()> {
        for draft in self.drafts(key) {
            let _ = plain_file::remove(&draft); // a draft that a crash has left harms nothing
        }
        if self.is_another_s(key)? {
            return Ok(());
        }
        let file = self.file(key);
        plain_file::remove(&file).map_err(Error::at_path("remove", &file))
    }

    /// The record of one attachment; None if it has no file. Runtimes that may have lost a
    /// network's configuration detach by the record.
    pub fn record(&self, key: &Key) -> Result<Option<Record>> {
        match read(&self.file(key)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Ok(text) if names_another(&text, key) => Ok(None),
            text => record_of(&self.file(key), text).map(Some),
        }
    }

    /// The attachment's file, even if it is not there.
    pub fn found(&self, key: &Key) -> Found {
        found(self.file(key))
    }

    /// Every file of the cache, sorted by name; empty without a cache. Unreadable files are
    /// included, since they may belong to a container that is alive.
    pub fn all(&self) -> Result<Vec<Found>> {
        let mut files = self.files()?;
        if files.len() < MANY {
            return Ok(files.into_iter().map(found).collect());
        }
        let second = files.split_off(files.len() / 2);
        Ok(thread::scope(|scope| {
            let second = scope.spawn(|| second.into_iter().map(found).collect::<Vec<_>>());
            let mut all: Vec<Found> = files.into_iter().map(found).collect();
            all.extend(second.join().unwrap_or_else(|panic| resume_unwind(panic)));
            all
        }))
    }

    /// As [`Cache::all`]; each file is read when the iterator comes to it.
    pub fn each(&self) -> Result<impl ExactSizeIterator<Item = Found>> {
        Ok(self.files()?.into_iter().map(found))
    }

    fn files(&self) -> Result<Vec<PathBuf>> {
        let dir = self.results();
        let names = directory::names(&dir, |_| true).map_err(Error::at_path("open", &dir))?;
        Ok(names.into_iter().map(|name| dir.join(name)).collect())
    }

    /// Every attachment to the network. Files that do not name their attachment are skipped.
    pub fn attachments(&self, network: &NetworkName) -> Result<Vec<Parameters>> {
        let attachments = self.all()?.into_iter().filter_map(|found| found.attachment(network));
        Ok(attachments.filter(|at| at.key.network == *network).collect())
    }
}

impl Record {
    /// As [`Cache::result`], from a file that has been read.
    pub fn result_in(&self, version: &str) -> Result<Option<Document>> {
        self.result.clone()?.map(|result| converted(result, version)).transpose()
    }
}

fn converted(result: Document, version: &str) -> Result<Document> {
    result.convert(version).map_err(|e| {
        let what = "failed to convert cached result to config version";
        Error::new(Code::DECODE, format!("{what} {version:?}: {e}"))
    })
}

/// Whether there is no file of ours, nor can there be one; after any other error there may be a
/// file that is readable later. A symbolic link is no file of ours: no program creates links there,
/// and what one leads to is not one of our results.
fn is_none(e: &io::Error) -> bool {
    use ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    matches!(e.kind(), NotFound | NotADirectory | InvalidFilename)
        || plain_file::is_no_file(e.raw_os_error())
}

fn found(file: PathBuf) -> Found {
    let written = fs::metadata(&file).and_then(|metadata| metadata.modified()).ok();
    let record = record_of(&file, read(&file));
    Found { file, written, record }
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    plain_file::read(file, LARGEST_CONFIGURATION)
}

fn file_name(key: &Key) -> String {
    format!("{}-{}-{}", key.network, key.container_id, key.ifname)
}

pub(super) fn create_dir(dir: &Path) -> io::Result<()> {
    plain_file::make_directories(dir, 0o700)
}

/// Writes `draft` and renames it to `file`.
///
/// The text is synced to the disk before the rename. Otherwise a power loss could leave an empty
/// file under that name, and then no reader can know that its container is gone: GC would keep the
/// file, and everything that may belong to it, until an administrator removes it.
fn replace(file: &Path, draft: &Path, text: &[u8]) -> io::Result<()> {
    plain_file::create_anew(draft, text)
        .and_then(|()| File::open(draft)?.sync_all())
        .and_then(|()| fs::rename(draft, file))
        .inspect_err(|_| {
            let _ = fs::remove_file(draft); // the caller gets the reason in the error
        })
}

#[cfg(test)]
mod tests;
