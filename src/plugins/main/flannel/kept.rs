//! The configurations that delegates were run with, by attachment.
//!
//! The original keeps one for each container, in a file that the container's id names. Ours are
//! below `.cni-multi`, which it does not read, one for each interface; the first of a container is
//! linked to the original's name as well, so that either can detach what the other has attached.
//! A file under the original's name that has a second name is ours; one that has no other is the
//! original's. So ADD and DEL open files by their names, and only GC lists the directories.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::cni::attachment::{ContainerId, IfName, Key};
use crate::cni::conf::Config;
use crate::error::{Error, Result};
use crate::plain_file;

/// The longest configuration.
const LIMIT: usize = 1024 * 1024;
/// The directory of our own files.
const OWN: &str = ".cni-multi";

/// The files of a data directory.
pub struct Kept<'d>(pub &'d Path);

/// What is kept for an attachment.
pub enum Found {
    /// The configuration.
    Whole(Config),
    /// A file without a configuration that can be read, as after a power failure.
    Torn,
    /// Nothing.
    Nothing,
}

/// A file of ours.
pub struct Own {
    /// The container.
    pub container_id: String,
    /// The interface.
    pub ifname: String,
    /// Its path.
    pub path: PathBuf,
}

impl Kept<'_> {
    /// Keeps the configuration of an attachment, in place of its earlier one.
    pub fn write(&self, key: &Key, text: &[u8]) -> Result<()> {
        let own = self.own(key);
        let original = self.original(&key.container_id);
        if is_same(&own, &original) {
            // First, so that a crash leaves no older text that looks like the original's.
            self.remove_original(&key.container_id)?;
        }
        plain_file::make_private_directory(self.0)
            .and_then(|()| plain_file::make_directories(&self.0.join(OWN), 0o700))
            .and_then(|()| plain_file::put_durably(&own, text))
            .map_err(Error::at_path("write", &own))?;
        match fs::hard_link(&own, &original) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                Err(Error::at_path("link", &own)(e))
            }
            _ => Ok(()), // another interface's, or the original's
        }
    }

    /// The text that our own file of the attachment has.
    pub fn own_text(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        let own = self.own(key);
        plain_file::read_if_any(&own, LIMIT).map_err(Error::at_path("read", &own))
    }

    /// Undoes [`Kept::write`]: `earlier` is [`Kept::own_text`] of before.
    pub fn restore(&self, key: &Key, earlier: Option<Vec<u8>>) -> Result<()> {
        match earlier {
            Some(text) => self.write(key, &text),
            None => self.remove_own(key),
        }
    }

    /// What is kept for the attachment.
    pub fn find(&self, key: &Key) -> Result<Found> {
        match read(&self.own(key))? {
            Found::Nothing if self.is_of_original(&key.container_id)? => {
                read(&self.original(&key.container_id))
            }
            found => Ok(found),
        }
    }

    /// Removes what is kept for the attachment.
    pub fn remove(&self, key: &Key) -> Result<()> {
        if !self.own(key).exists() && self.is_of_original(&key.container_id)? {
            self.remove_original(&key.container_id)?;
        }
        self.remove_own(key)
    }

    /// Removes our file of the attachment, under both names, and its draft.
    fn remove_own(&self, key: &Key) -> Result<()> {
        let own = self.own(key);
        if is_same(&own, &self.original(&key.container_id)) {
            self.remove_original(&key.container_id)?;
        }
        plain_file::take(&own).map_err(Error::at_path("remove", &own))
    }

    /// Whether the file that the container's id names is there and none of ours: ours has a second
    /// name, and the original gives one.
    fn is_of_original(&self, container_id: &ContainerId) -> Result<bool> {
        let path = self.original(container_id);
        match fs::symlink_metadata(&path) {
            Ok(file) => Ok(file.is_file() && file.nlink() == 1),
            Err(e) if plain_file::is_nowhere(&e) => Ok(false),
            Err(e) => Err(Error::at_path("look at", &path)(e)),
        }
    }

    /// Our files of all attachments.
    pub fn all(&self) -> Result<Vec<Own>> {
        let entries = entries(&self.0.join(OWN))?;
        Ok(entries.into_iter().filter_map(own_of).collect())
    }

    /// The containers that the original keeps a configuration of, with it.
    pub fn of_original(&self) -> Result<Vec<ContainerId>> {
        let mut all = vec![];
        for path in entries(self.0)? {
            let id = path.file_name().and_then(|name| name.to_str()).map(ContainerId::parse);
            if let Some(Ok(id)) = id
                && self.is_of_original(&id)?
            {
                all.push(id);
            }
        }
        Ok(all)
    }

    /// Removes the file of the original.
    pub fn remove_original(&self, container_id: &ContainerId) -> Result<()> {
        let path = self.original(container_id);
        plain_file::remove(&path).map_err(Error::at_path("remove", &path))
    }

    /// The file of the original.
    pub fn original(&self, container_id: &ContainerId) -> PathBuf {
        self.0.join(container_id.as_str())
    }

    fn own(&self, key: &Key) -> PathBuf {
        // No container's id has this character.
        let name = format!("{}@{}.json", key.container_id, key.ifname.as_str());
        self.0.join(OWN).join(name)
    }
}

/// The file, or the draft of one, that a crash may have left.
fn own_of(path: PathBuf) -> Option<Own> {
    let name = path.file_name()?.to_str()?;
    let name = [".json", ".draft"].iter().find_map(|end| name.strip_suffix(end))?;
    let (container_id, ifname) = name.split_once('@')?;
    IfName::parse(ifname).ok()?;
    let container_id = container_id.to_owned();
    let ifname = ifname.to_owned();
    Some(Own { container_id, ifname, path })
}

/// The configuration in a file.
pub fn read(path: &Path) -> Result<Found> {
    match plain_file::read_if_any(path, LIMIT) {
        Ok(Some(text)) => Ok(Config::parse(text).map_or(Found::Torn, Found::Whole)),
        Ok(None) => Ok(Found::Nothing),
        Err(e) if plain_file::is_no_file(e.raw_os_error()) => Ok(Found::Torn),
        Err(e) => Err(Error::at_path("read", path)(e)),
    }
}

/// The entries of a directory; none if it is missing.
fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    plain_file::entries(dir).map_err(Error::at_path("list", dir))
}

/// Whether two names are one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}
