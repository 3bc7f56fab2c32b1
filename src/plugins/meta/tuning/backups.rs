//! The directory of the backups, `dataDir`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use super::backup::Backup;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::{Config, ValidAttachments};
use crate::cni::decode;
use crate::cni::valid::{Holder, Stale};
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netns::Mark;
use crate::plain_file;

const DEFAULT_DIR: &str = "/run/cni/tuning";

/// The largest file that is read; none of ours is longer.
const LIMIT: usize = 256 * 1024;

/// The directory of the backups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backups(PathBuf);

impl Backups {
    /// Reads the directory from a configuration, even if the rest of it is invalid: DEL and GC must
    /// find the files.
    pub fn of(config: &Config) -> Result<Backups> {
        Backups::parse(&decode::member::<String>(&config.value, "dataDir")?)
    }

    /// Parses `dataDir`. `..` is resolved without a look at the disk, as Go's library does.
    pub fn parse(data_dir: &str) -> Result<Backups> {
        let data_dir = if data_dir.is_empty() { DEFAULT_DIR } else { data_dir };
        if data_dir.starts_with('/') && !data_dir.contains('\0') {
            Ok(Backups(resolved(Path::new(data_dir))))
        } else {
            Err(Error::config("dataDir", format_args!("{data_dir:?} is not usable"))
                .expecting("an absolute path"))
        }
    }

    /// Returns the directory for DEL and GC. It is `None` if ADD would have refused it, so that
    /// none of our files can be there.
    pub fn if_usable(config: &Config) -> Option<Backups> {
        Backups::of(config).ok().filter(|backups| backups.require_no_symlink().is_ok())
    }

    /// Returns the content of the attachment's file, if there is one.
    pub fn text(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        self.require_no_symlink()?;
        let path = self.path(key);
        plain_file::read_if_any(&path, LIMIT).map_err(Error::at_path("read", &path))
    }

    /// Whether another attachment has a backup of an interface with this name in this namespace. If
    /// so, a file without a namespace, which the reference wrote, belongs to a container that had
    /// the path before.
    pub fn has_another_in(&self, netns: Mark, key: &Key) -> Result<bool> {
        let is_there = |backup: &Backup| {
            backup.netns == Some(netns)
                && backup.key.as_ref().is_some_and(|of| of.ifname == key.ifname)
        };
        for path in self.entries()? {
            if self.may_be_of_another(&path, key) && read(&path)?.as_ref().is_some_and(is_there) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether by its name a file is of an interface with this name, and another attachment's.
    fn may_be_of_another(&self, path: &Path, key: &Key) -> bool {
        let ending = format!("_{}.json", key.ifname);
        *path != self.path(key)
            && path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(&ending))
    }

    fn entries(&self) -> Result<Vec<PathBuf>> {
        plain_file::entries(&self.0).map_err(Error::at_path("list", &self.0))
    }

    /// Writes the backup, in place of an earlier one.
    pub fn write(&self, key: &Key, backup: &Backup) -> Result<()> {
        self.put(key, &backup.text())
    }

    /// Restores a file to its previous content; `None` removes it.
    pub fn put_back(&self, key: &Key, text: Option<&[u8]>) -> Result<()> {
        match text {
            Some(text) => self.put(key, text),
            None => self.remove(key),
        }
    }

    fn put(&self, key: &Key, text: &[u8]) -> Result<()> {
        self.require_no_symlink()?;
        let path = self.path(key);
        // The reference creates the directory without search permission.
        plain_file::make_private_directory(&self.0)
            .and_then(|()| plain_file::put(&path, text))
            .map_err(Error::at_path("write", &path))
    }

    /// Whether a directory has the name of the attachment's file. It cannot be ours, and it cannot
    /// be removed as a file.
    pub fn is_in_the_way(&self, key: &Key) -> bool {
        fs::symlink_metadata(self.path(key)).is_ok_and(|found| found.is_dir())
    }

    /// Removes the attachment's file; a missing file is not an error.
    pub fn remove(&self, key: &Key) -> Result<()> {
        let path = self.path(key);
        plain_file::take(&path).map_err(Error::at_path("remove", &path))
    }

    /// Removes the files of this network's stale attachments. The reference's files name no owner,
    /// and one for the same container and interface may be another network's, so they stay until
    /// DEL. Drafts are always ours.
    pub fn collect_garbage(&self, network: &NetworkName, valid: &ValidAttachments) -> Result<()> {
        let mut errors = ErrorList::default();
        let is_stale = |key: &Key| valid.is_stale(network, key);
        for path in self.entries()? {
            let Some(backup) = errors.push(read(&path)) else { continue };
            match backup.and_then(|backup| backup.key) {
                Some(key) if self.path(&key) == path && is_stale(&key) => {
                    let (what, holder) = ("backup".to_owned(), Holder::of(&key));
                    let stale = || Stale { what, holder, ..Stale::default() };
                    errors.push(valid.remove(stale, || self.remove(&key)));
                }
                // Nothing is restored from a draft, so one without an owner need not stay.
                key if is_draft(&path) && key.as_ref().is_none_or(is_stale) => {
                    remove_draft(&path, key.as_ref(), valid);
                }
                _ => (),
            }
        }
        errors.finish()
    }

    /// Whether files can be written, as far as that can be known without writing one.
    pub fn status(&self) -> Result<()> {
        self.require_no_symlink().map_err(|e| e.with_code(Code::NOT_AVAILABLE))?;
        let there = self.0.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
        if !there.is_dir() {
            return Err(Error::new(Code::NOT_AVAILABLE, self.not_writable())
                .with_details(format_args!("{there:?} is not a directory")));
        }
        access(there, AccessFlags::W_OK | AccessFlags::X_OK)
            .map_err(|e| Error::system(Code::NOT_AVAILABLE, self.not_writable(), e as i32))
    }

    fn not_writable(&self) -> String {
        format!("dataDir: {} cannot be written", self.0.display())
    }

    /// A process that may write to the parent directory must not choose where ours is.
    fn require_no_symlink(&self) -> Result<()> {
        if fs::symlink_metadata(&self.0).is_ok_and(|found| found.is_symlink()) {
            Err(self.symlink_refused())
        } else {
            Ok(()) // later operations report any other problem
        }
    }

    fn symlink_refused(&self) -> Error {
        let problem = format_args!("{} is a symbolic link", self.0.display());
        Error::config("dataDir", problem).expecting("a directory")
    }

    /// The attachment's file.
    pub fn path(&self, key: &Key) -> PathBuf {
        self.0.join(format!("{}_{}.json", key.container_id, key.ifname))
    }
}

/// Resolves `.` and `..` in an absolute path.
fn resolved(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::ParentDir => drop(resolved.pop()),
            Component::Normal(name) => resolved.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => (),
        }
    }
    resolved
}

fn is_draft(path: &Path) -> bool {
    path.extension() == Some(OsStr::new(plain_file::DRAFT))
}

/// Removes a draft of a stale attachment, or of an unknown one.
fn remove_draft(path: &Path, key: Option<&Key>, valid: &ValidAttachments) {
    let holder = key.map(Holder::of).unwrap_or_default();
    let what = format!("torn backup {}", path.display());
    let stale = || Stale { what, holder, is_torn: true, ..Stale::default() };
    let remove = || plain_file::remove(path).map_err(|e| Error::io("remove", &e));
    let _ = valid.remove(stale, remove); // a directory of this name is not ours
}

/// Reads a backup. Returns `None` if the file is gone or cannot be parsed.
fn read(path: &Path) -> Result<Option<Backup>> {
    match plain_file::read_if_any(path, LIMIT) {
        Err(e) if plain_file::is_no_file(e.raw_os_error()) => Ok(None),
        text => {
            Ok(text.map_err(Error::at_path("read", path))?.and_then(|t| Backup::understood(&t)))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::plugins::meta::tuning::attributes::Attributes;
    use crate::scratch::Scratch;

    fn key(network: &str, id: &str) -> Key {
        Key::parse(network, id, "eth0").unwrap()
    }

    #[test]
    fn directories_are_absolute_and_without_dots() {
        let dir = |text: &str| {
            Backups::parse(text)
                .map(|backups| backups.0.display().to_string())
                .map_err(|e| e.msg.clone())
        };
        assert_eq!(dir("").unwrap(), DEFAULT_DIR);
        assert_eq!(dir("/run/../../a/./b/../c/").unwrap(), "/a/c");
        assert_eq!(
            dir("x/y").unwrap_err(),
            "dataDir: \"x/y\" is not usable, expected an absolute path"
        );
        assert!(dir("/a\0b").is_err());
    }

    #[test]
    fn nothing_is_written_through_symlinks() {
        let scratch = Scratch::new();
        let victims = scratch.path().join("victims");
        let of = key("net", "c");
        fs::create_dir(&victims).unwrap();
        std::os::unix::fs::symlink(&victims, scratch.path().join("link")).unwrap();
        let linked = Backups(scratch.path().join("link"));
        assert!(
            linked.write(&of, &Backup::default()).is_err()
                && linked.text(&of).is_err()
                && linked.status().is_err()
        );
        assert_eq!(fs::read_dir(&victims).unwrap().count(), 0);

        let backups = Backups(scratch.path().join("new/dir"));
        backups.write(&of, &Backup::default()).unwrap();
        fs::write(victims.join("file"), "precious").unwrap();
        backups.remove(&of).unwrap();
        std::os::unix::fs::symlink(victims.join("file"), backups.path(&of)).unwrap();
        assert!(backups.text(&of).is_err());
        backups.write(&of, &Backup::default()).unwrap();
        assert_eq!(fs::read_to_string(victims.join("file")).unwrap(), "precious");
        assert_eq!(fs::read_dir(&backups.0).unwrap().count(), 1, "no draft stays");
    }

    #[test]
    fn gc_removes_what_says_that_it_is_of_the_network_and_not_valid() {
        let scratch = Scratch::new();
        let backups = Backups(scratch.path().to_owned());
        for of in [key("net", "valid"), key("net", "stale"), key("other", "alien")] {
            backups.write(&of, &Backup { key: Some(of.clone()), ..Backup::default() }).unwrap();
        }
        backups
            .write(
                &key("net", "reference"),
                &Backup {
                    before: Attributes { mtu: Some(1500), ..Attributes::default() },
                    ..Backup::default()
                },
            )
            .unwrap();
        backups.put(&key("net", "torn"), b"{").unwrap();
        let draft = |of: Key| backups.path(&of).with_extension("draft");
        fs::copy(backups.path(&key("net", "valid")), draft(key("net", "valid"))).unwrap();
        fs::copy(backups.path(&key("net", "stale")), draft(key("net", "killed"))).unwrap();
        fs::copy(backups.path(&key("other", "alien")), draft(key("other", "alien"))).unwrap();
        fs::write(draft(key("net", "torn")), "{").unwrap();
        let text = br#"{"name":"net","cni.dev/valid-attachments":[{"containerID":"valid","ifname":"eth0"}]}"#;
        let config = Config::parse(text.to_vec()).unwrap();
        backups
            .collect_garbage(&config.name, &config.valid_attachments().unwrap().unwrap())
            .unwrap();
        let mut left: Vec<_> = fs::read_dir(scratch.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "alien_eth0.draft",
                "alien_eth0.json",
                "reference_eth0.json",
                "torn_eth0.json",
                "valid_eth0.draft",
                "valid_eth0.json"
            ]
        );
    }
}
