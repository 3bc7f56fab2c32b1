//! What is known of each attachment from ADD to DEL, in libcni's files: other programs (libcni
//! itself, ocicni, podman, Multus) read, list and edit them. Here is where they lie and how they
//! are written and found; what one of them tells is in [`record`].

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::directory;
use super::parameters::Parameters;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::result::Document;
use crate::error::{Code, Error, Result};
use crate::plain_file::{self, LARGEST_CONFIGURATION};

mod record;
pub use record::{Found, Record};
use record::{names_another, record_of, result_of, text_of};

/// Where libcni keeps its cache.
pub const DEFAULT_DIR: &str = "/var/lib/cni";

/// What the names of files begin with that are being written.
const DRAFT: &str = ".result.";

/// The longest a file's name may be.
const NAME_MAX: usize = 255;

/// A directory of results.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// The cache in `<dir>/results`; it need not be there yet.
    pub fn new(dir: impl Into<PathBuf>) -> Cache {
        Cache { dir: dir.into() }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn results(&self) -> PathBuf {
        self.dir.join("results")
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.results().join(file_name(key))
    }

    /// Writes what ADD was given and what it returned; an older file of the attachment is replaced
    /// at once or not at all.
    pub fn write(&self, at: &Parameters, document: &[u8], result: &Document) -> Result<()> {
        let text = text_of(at, document, result);
        let file = self.file(&at.key);
        let written = create_dir(&self.results())
            .and_then(|()| self.replace(&at.key, &file, text.as_bytes()));
        written.map_err(|e| Error::io(format_args!("write {}", file.display()), &e))
    }

    /// Writes the text before it has the file's name: not among the results, whose readers list
    /// whatever is there, unless they are a file system of their own.
    fn replace(&self, key: &Key, file: &Path, text: &[u8]) -> io::Result<()> {
        let [draft, beside] = self.drafts(key);
        match replace(file, &draft, text) {
            Err(error) if error.kind() == ErrorKind::CrossesDevices => replace(file, &beside, text),
            replaced => replaced,
        }
    }

    /// Where the attachment's file may be written: who holds its lock is alone there.
    fn drafts(&self, key: &Key) -> [PathBuf; 2] {
        let name = format!("{DRAFT}{}", key.identity());
        [self.dir.join(&name), self.results().join(name)]
    }

    /// Removes what a crash has left of any attachment's file before it had its name. Nobody else
    /// may be at work.
    pub(super) fn forget_drafts(&self) {
        for dir in [self.dir.clone(), self.results()] {
            let names = directory::names(&dir, |kind| kind.is_file()).unwrap_or_default();
            for name in names.iter().filter(|name| name.to_string_lossy().starts_with(DRAFT)) {
                let _ = plain_file::remove(&dir.join(name)); // it is in nobody's way
            }
        }
    }

    /// An attachment whose file could have no name, or has one that is another's, could not be
    /// kept; better to know before it is made.
    pub(super) fn require_name(&self, key: &Key) -> Result<()> {
        let name = file_name(key);
        if self.is_another_s(key)? {
            let msg =
                format!("the result of another attachment is kept under the same name, {name}");
            return Err(Error::new(Code::INVALID_CONFIG, msg)
                .with_details("expected another container id or network"));
        }
        if name.len() <= NAME_MAX {
            return Ok(());
        }
        let msg = format!(
            "the names of network, container and interface make {} bytes together",
            name.len()
        );
        Err(Error::new(Code::INVALID_CONFIG, msg)
            .with_details(format_args!("expected at most {NAME_MAX}: {name}")))
    }

    /// Whether there is anything for the attachment.
    pub fn contains(&self, key: &Key) -> Result<bool> {
        Ok(self.file(key).exists() && !self.is_another_s(key)?)
    }

    /// Whether the attachment's file is of another whose names come to the same: `a-b` and `c`, `a`
    /// and `b-c`.
    fn is_another_s(&self, key: &Key) -> Result<bool> {
        let file = self.file(key);
        match read(&file) {
            Ok(text) => Ok(names_another(&text, key)),
            Err(e) if is_none(&e) => Ok(false),
            Err(e) => Err(Error::io(format_args!("read {}", file.display()), &e)),
        }
    }

    /// What the attachment's ADD returned, in this version; None where there is no file of it.
    /// [`Code::IO`] where there is one that cannot be read; with any other code it is none that
    /// could ever be used.
    pub fn result(&self, key: &Key, version: &str) -> Result<Option<Document>> {
        let file = self.file(key);
        let text = match read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|e| Error::io(format_args!("read {}", file.display()), &e))?,
        };
        if names_another(&text, key) {
            return Ok(None);
        }
        let Some(result) = result_of(&text)? else { return Ok(None) };
        let failed = |e| {
            Error::new(
                Code::DECODE,
                format!("failed to convert cached result to config version {version:?}: {e}"),
            )
        };
        result.convert(version).map(Some).map_err(failed)
    }

    /// Forgets the attachment.
    pub fn delete(&self, key: &Key) -> Result<()> {
        for draft in self.drafts(key) {
            let _ = plain_file::remove(&draft); // left by a crash, and in nobody's way
        }
        if self.is_another_s(key)? {
            return Ok(());
        }
        let file = self.file(key);
        plain_file::remove(&file)
            .map_err(|e| Error::io(format_args!("remove {}", file.display()), &e))
    }

    /// What is known of one attachment; None where there is nothing. Runtimes that may have lost a
    /// network's configuration detach by this.
    pub fn record(&self, key: &Key) -> Result<Option<Record>> {
        match read(&self.file(key)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Ok(text) if names_another(&text, key) => Ok(None),
            text => record_of(&self.file(key), text).map(Some),
        }
    }

    /// Every file of the cache, in the order of their names; none where there is no cache. What
    /// cannot be read is among them, since it may be of a container that lives.
    pub fn all(&self) -> Result<Vec<Found>> {
        let dir = self.results();
        let names = directory::names(&dir, |_| true)
            .map_err(|e| Error::io(format_args!("open {}", dir.display()), &e))?;
        let found = |file: PathBuf| {
            let written = fs::metadata(&file).and_then(|metadata| metadata.modified()).ok();
            let record = record_of(&file, read(&file));
            Found { file, written, record }
        };
        Ok(names.into_iter().map(|name| dir.join(name)).map(found).collect())
    }

    /// Every attachment to the network. Files that do not tell theirs are passed over.
    pub fn attachments(&self, network: &NetworkName) -> Result<Vec<Parameters>> {
        let attachments = self.all()?.into_iter().filter_map(|found| found.attachment(network));
        Ok(attachments.filter(|at| at.key.network == *network).collect())
    }
}

/// No program makes links there, and what one leads to is none of our results.
/// Whether there is no file of ours, nor can there be one; with any other error there may be one
/// that is read later.
fn is_none(e: &io::Error) -> bool {
    use ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    matches!(e.kind(), NotFound | NotADirectory | InvalidFilename)
        || plain_file::is_no_file(e.raw_os_error())
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

/// Writes `draft` and gives it the name `file`.
///
/// The text is on the disk before it has the name. Else a power loss could leave an empty file
/// under it, of which nobody knows that its container is gone: GC would spare it, and what it may
/// be of, until somebody removes it.
fn replace(file: &Path, draft: &Path, text: &[u8]) -> io::Result<()> {
    let synced = plain_file::create_anew(draft, text).and_then(|()| File::open(draft)?.sync_all());
    synced.and_then(|()| fs::rename(draft, file)).inspect_err(|_| {
        let _ = fs::remove_file(draft); // the error is why it cannot stay
    })
}

#[cfg(test)]
mod tests;
