//! A model of a directory on a disk, and of the changes that a program makes there one at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use super::{Verdict, require};

/// The index of leases seals a directory by a modification time in this range, which no clock
/// shows.
const SEALS: std::ops::Range<i64> = 100_000_000..1_000_000_000;

fn seal(seconds: i64, nanoseconds: i64) -> Option<(i64, i64)> {
    SEALS.contains(&seconds).then_some((seconds, nanoseconds))
}

/// A file or directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    pub mode: u32,
    pub content: Content,
    /// The content before the last write.
    pub before: Option<Vec<u8>>,
    /// Whether fsync(2) has written the content to the disk.
    pub is_synced: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    /// With its modification time if that is a seal.
    Dir(Option<(i64, i64)>),
    File(Vec<u8>),
}

/// The names below a directory, relative to it, and their nodes. Two names may be hard links to one
/// file.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Disk {
    pub names: BTreeMap<PathBuf, u64>,
    pub nodes: BTreeMap<u64, Node>,
}

/// One change. Names are resolved when it is applied.
#[derive(Clone, PartialEq, Eq)]
pub enum Change {
    Create(PathBuf, u32),
    MakeDir(PathBuf, u32),
    Write(PathBuf, usize, Vec<u8>),
    SetLen(PathBuf, usize),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    SetTime(PathBuf, i64, i64),
    Sync(PathBuf),
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Create(name, _) => write!(f, "create {name:?}"),
            Change::MakeDir(name, _) => write!(f, "mkdir {name:?}"),
            Change::Write(name, at, bytes) => {
                write!(f, "write {} bytes at {at} of {name:?}", bytes.len())
            }
            Change::SetLen(name, length) => write!(f, "cut {name:?} to {length} bytes"),
            Change::Link(from, to) => write!(f, "link {from:?} {to:?}"),
            Change::Rename(from, to) => write!(f, "rename {from:?} {to:?}"),
            Change::Remove(name) => write!(f, "remove {name:?}"),
            Change::SetTime(name, ..) => write!(f, "set time of {name:?}"),
            Change::Sync(name) => write!(f, "sync {name:?}"),
        }
    }
}

impl Disk {
    /// Reads the content of `root`. Sockets and other special files are ignored.
    pub fn read(root: &Path) -> Disk {
        Disk::try_read(root).unwrap()
    }

    /// The same, while other processes may change the directory.
    pub fn read_busy(root: &Path) -> Disk {
        loop {
            match Disk::try_read(root) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => (), // removed after the directory was listed
                read => return read.unwrap(),
            }
        }
    }

    fn try_read(root: &Path) -> io::Result<Disk> {
        let mut disk = Disk::default();
        disk.read_below(root, Path::new("")).map(|()| disk)
    }

    fn read_below(&mut self, root: &Path, name: &Path) -> io::Result<()> {
        let path = root.join(name);
        let metadata = fs::symlink_metadata(&path)?;
        let content = if metadata.is_dir() {
            Content::Dir(seal(metadata.mtime(), metadata.mtime_nsec()))
        } else if metadata.is_file() {
            Content::File(fs::read(&path)?)
        } else {
            return Ok(());
        };
        let is_dir = metadata.is_dir();
        let node = Node { mode: metadata.mode() & 0o7777, content, before: None, is_synced: false };
        // On an overlay, directories and files are on two devices with separate inode numbers.
        let number = metadata.dev().rotate_left(32) ^ metadata.ino();
        self.names.insert(name.to_owned(), number);
        self.nodes.insert(number, node);
        if is_dir {
            for entry in fs::read_dir(&path)? {
                self.read_below(root, &name.join(entry?.file_name()))?;
            }
        }
        Ok(())
    }

    /// Makes `root` equal to this disk, whatever it was.
    pub fn write(&self, root: &Path) {
        for entry in fs::read_dir(root).unwrap() {
            let path = entry.unwrap().path();
            let is_dir = fs::symlink_metadata(&path).unwrap().is_dir();
            if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }.unwrap();
        }
        let mut written: BTreeMap<u64, PathBuf> = BTreeMap::new();
        for (name, number) in &self.names {
            let (path, node) = (root.join(name), &self.nodes[number]);
            match (&node.content, written.get(number)) {
                (_, Some(other)) => fs::hard_link(other, &path).unwrap(),
                (Content::Dir(_), None) if name.as_os_str().is_empty() => (),
                (Content::Dir(_), None) => fs::create_dir(&path).unwrap(),
                (Content::File(content), None) => fs::write(&path, content).unwrap(),
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(node.mode)).unwrap();
            written.insert(*number, path);
        }
        for (name, number) in &self.names {
            if let Content::Dir(Some((seconds, nanoseconds))) = self.nodes[number].content {
                let time =
                    Duration::new(seconds.try_into().unwrap(), nanoseconds.try_into().unwrap());
                fs::File::open(root.join(name)).unwrap().set_modified(UNIX_EPOCH + time).unwrap();
            }
        }
    }

    pub fn node(&self, name: &Path) -> Option<&Node> {
        self.nodes.get(self.names.get(name)?)
    }

    fn node_mut(&mut self, name: &Path) -> Option<&mut Node> {
        self.nodes.get_mut(self.names.get(name)?)
    }

    /// The content of a file.
    pub fn file(&self, name: &Path) -> Option<&[u8]> {
        match &self.node(name)?.content {
            Content::File(content) => Some(content),
            Content::Dir(_) => None,
        }
    }

    /// The names of all files.
    pub fn files(&self) -> Vec<&Path> {
        self.names.keys().filter(|name| self.file(name).is_some()).map(PathBuf::as_path).collect()
    }

    /// Requires that it has only files that are kept.
    pub fn has_only(&self, after: &str, is_kept: impl Fn(&Path) -> bool) -> Verdict {
        let mut left = self.files();
        left.retain(|name| !is_kept(name));
        require(left.is_empty(), || format!("left{after}: {left:?}"))
    }

    /// The changes that make this disk equal to the other, except for modes and hard links.
    pub fn changes_to(&self, other: &Disk) -> Vec<Change> {
        let is_gone = |name: &&PathBuf| !other.names.contains_key(*name);
        let mut changes: Vec<Change> =
            self.names.keys().filter(is_gone).cloned().map(Change::Remove).collect();
        for name in other.names.keys() {
            let (old, new) = (self.node(name), other.node(name).unwrap());
            match &new.content {
                content if old.is_some_and(|old| old.content == *content) => (),
                Content::File(content) => {
                    changes.push(match old {
                        None => Change::Create(name.clone(), new.mode),
                        Some(_) => Change::SetLen(name.clone(), 0),
                    });
                    changes.push(Change::Write(name.clone(), 0, content.clone()));
                }
                Content::Dir(time) => {
                    let make = Change::MakeDir(name.clone(), new.mode);
                    changes.extend(old.is_none().then_some(make));
                    let (seconds, nanoseconds) = time.unwrap_or_default();
                    changes.push(Change::SetTime(name.clone(), seconds, nanoseconds));
                }
            }
        }
        changes
    }

    /// Applies a change. A change that depends on a missing one has no effect.
    pub fn apply(&mut self, change: &Change) {
        let _ = self.try_apply(change); // see above
    }

    fn try_apply(&mut self, change: &Change) -> Option<()> {
        match change {
            Change::Create(name, mode) => self.add(name, *mode, Content::File(vec![])),
            Change::MakeDir(name, _) if self.names.contains_key(name) => None,
            Change::MakeDir(name, mode) => self.add(name, *mode, Content::Dir(None)),
            Change::Write(name, at, bytes) => self.change_file(name, |content| {
                let end = at + bytes.len();
                content.resize(content.len().max(end), 0);
                content[*at..end].copy_from_slice(bytes);
            }),
            Change::SetLen(name, length) => {
                self.change_file(name, |content| content.resize(*length, 0))
            }
            Change::Link(from, to) => {
                let number = *self.names.get(from)?;
                self.enter(to, number)
            }
            Change::Rename(from, to) => {
                let number = *self.names.get(from)?;
                self.enter(to, number)?;
                self.take(from)
            }
            Change::Remove(name) => self.take(name),
            Change::SetTime(name, seconds, nanoseconds) => {
                if let Content::Dir(sealed) = &mut self.node_mut(name)?.content {
                    *sealed = seal(*seconds, *nanoseconds);
                }
                Some(())
            }
            Change::Sync(name) => {
                self.node_mut(name)?.is_synced = true;
                Some(())
            }
        }
    }

    fn add(&mut self, name: &Path, mode: u32, content: Content) -> Option<()> {
        let number = self.nodes.keys().last().map_or(1, |last| last + 1);
        self.nodes.insert(number, Node { mode, content, before: None, is_synced: false });
        self.enter(name, number)
    }

    fn change_file(&mut self, name: &Path, change: impl FnOnce(&mut Vec<u8>)) -> Option<()> {
        let node = self.node_mut(name)?;
        let Content::File(content) = &mut node.content else { return None };
        node.before = Some(content.clone());
        node.is_synced = false;
        change(content);
        Some(())
    }

    fn enter(&mut self, name: &Path, number: u64) -> Option<()> {
        self.touch(name)?;
        self.names.insert(name.to_owned(), number);
        Some(())
    }

    /// Removes a name. A directory goes with its content, which a lost removal may have left.
    fn take(&mut self, name: &Path) -> Option<()> {
        self.names.get(name)?;
        self.touch(name)?;
        self.names.retain(|other, _| !other.starts_with(name));
        Some(())
    }

    /// Adding or removing a name changes the modification time of its directory.
    fn touch(&mut self, name: &Path) -> Option<()> {
        let Content::Dir(sealed) = &mut self.node_mut(name.parent()?)?.content else { return None };
        *sealed = None;
        Some(())
    }

    /// A description that does not depend on the history: disks with equal descriptions are
    /// indistinguishable to a program.
    pub fn told(&self) -> Vec<(PathBuf, PathBuf, u32, Content)> {
        let mut first: BTreeMap<u64, &PathBuf> = BTreeMap::new();
        let mut told = vec![];
        for (name, number) in &self.names {
            let node = &self.nodes[number];
            let same = *first.entry(*number).or_insert(name);
            told.push((name.clone(), same.clone(), node.mode, node.content.clone()));
        }
        told
    }
}
