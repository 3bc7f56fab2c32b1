//! Files in a directory that others may write to: never follow a symlink unless the caller asks for
//! it, never block on a FIFO, and never read more than such a file can legitimately hold.
//!
//! Opening a device can have an effect: the host's watchdog begins to count. Only root makes device
//! nodes, and a container with the default capabilities is root. In directories that only the
//! host's root writes, which are those of our own files, [`read`] opens and looks then; elsewhere a
//! file is looked at first.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

/// The flags with which every file of ours is opened.
const GUARD: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK);

/// The flags with which a file is found without opening it.
const SIGHT: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);

/// The limit in bytes: room for a GC of 200 000 attachments with ids of 64 digits, which libcni
/// lists twice. A larger file is something else, and may exceed the memory.
pub const LARGEST_CONFIGURATION: usize = 64 << 20;

/// Reads a regular file of ours, of at most `limit` bytes.
pub fn read(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(GUARD.bits()).open(path)?;
    let size = size_within(&file, limit)?;
    read_all(file, size)
}

/// As [`read`], of a directory that others may write.
pub fn read_of_others(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    read_seen(open(path, SIGHT | OFlag::O_NOFOLLOW, Mode::empty())?, limit)
}

/// Reads a file written by an administrator, who may have replaced it with a symlink.
pub fn read_configuration(path: &Path) -> io::Result<Vec<u8>> {
    read_configuration_of(path, LARGEST_CONFIGURATION)
}

/// The same with another limit, in bytes.
pub fn read_configuration_of(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    read_seen(open(path, SIGHT, Mode::empty())?, limit)
}

/// Reads a file of another process's root directory, such as `/proc/4711/root`. Links in it lead to
/// where that process finds them, never to a file of ours. A file system of that process may never
/// answer.
pub fn read_below(root: &Path, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let root = open(root, SIGHT | OFlag::O_DIRECTORY, Mode::empty())?;
    let how = OpenHow::new()
        .flags(SIGHT)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    read_seen(openat2(&root, path, how)?, limit)
}

/// Reads what was seen with [`SIGHT`], if it is a regular file. The path is that of our descriptor:
/// whatever has the file's name by now is not opened.
fn read_seen(seen: OwnedFd, limit: usize) -> io::Result<Vec<u8>> {
    let seen = File::from(seen);
    let size = size_within(&seen, limit)?;
    let path = format!("/proc/thread-self/fd/{}", seen.as_raw_fd());
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    read_all(File::from(open(path.as_str(), flags, Mode::empty())?), size)
}

/// Reads a file of this size: one read is enough, and no second one is needed to find the end.
fn read_all(mut file: File, size: usize) -> io::Result<Vec<u8>> {
    let mut content = vec![0; size];
    file.read_exact(&mut content)?;
    Ok(content)
}

/// The size of a regular file, which is at most `limit`.
fn size_within(file: &File, limit: usize) -> io::Result<usize> {
    let size = require_regular(file)?.len();
    if size > limit as u64 {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    Ok(size as usize)
}

/// Fails unless the file is a regular file.
fn require_regular(file: &File) -> io::Result<Metadata> {
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok(metadata) } else { Err(io::Error::other("not a regular file")) }
}

/// Whether [`read`] failed because the path is not a file of ours: a link, a FIFO, a directory, a
/// socket, or a file far too long. After any other error there may be a file, and a later read may
/// succeed.
pub fn is_no_file(errno: Option<i32>) -> bool {
    errno.is_none_or(|errno| OF_OTHER_KINDS.contains(&Errno::from_raw(errno)))
}

/// Whether there is no such file, and perhaps cannot be one: a part of its path is a file, or its
/// name is too long.
pub fn is_nowhere(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename)
}

/// As [`read`]; None if there is no such file.
pub fn read_if_any(path: &Path, limit: usize) -> io::Result<Option<Vec<u8>>> {
    match read(path, limit) {
        Err(e) if is_nowhere(&e) => Ok(None),
        content => content.map(Some),
    }
}

/// The paths in a directory; none if there is no directory.
pub fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(dir) {
        Err(e) if is_nowhere(&e) => Ok(vec![]),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

/// The errors of opening what is not a regular file.
const OF_OTHER_KINDS: [Errno; 4] = [Errno::ELOOP, Errno::EISDIR, Errno::ENXIO, Errno::ENODEV];

/// Creates a directory and its parents, unless the name exists. A name that is not a directory
/// shows only when it is used.
pub fn make_directories(path: &Path, mode: u32) -> io::Result<()> {
    match (make_directory(path, mode), path.parent()) {
        (Err(e), Some(parent)) if e.kind() == io::ErrorKind::NotFound => {
            make_directories(parent, mode)?;
            make_directory(path, mode)
        }
        (made, _) => made,
    }
}

/// Creates a directory, unless the name exists.
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Creates a directory that only its owner can access, with parents open to others. A symlink in
/// its place is refused.
pub fn make_private_directory(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        make_directories(parent, 0o755)?;
    }
    make_directories(path, 0o700)?;
    require_directory(path)
}

/// Fails unless it is a directory, and no link to one.
pub fn require_directory(path: &Path) -> io::Result<()> {
    let is_directory = std::fs::symlink_metadata(path)?.is_dir();
    if is_directory { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

/// Creates a file that must not exist, readable by its owner only.
pub fn create(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content).inspect_err(|_| {
        let _ = std::fs::remove_file(path); // half a file is worse than none; report the write's error
    })
}

/// Appends to a file, which is created if it is missing.
pub fn append(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(GUARD.bits());
    options.open(path)?.write_all(content)
}

/// Creates a file, replacing whatever has its name.
///
/// An existing file is unlinked first, never truncated: a draft left by a crash may be a hard link
/// to a lease.
pub fn create_anew(path: &Path, content: &[u8]) -> io::Result<()> {
    match create(path, content) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(path)?;
            create(path, content)
        }
        other => other,
    }
}

/// Replaces the content of a file, or creates it. A crash can leave a mix of the old and the new
/// content.
///
/// The file is never truncated first, and no other file is renamed over it: ext4 takes either for a
/// program that forgot to sync and writes to the disk at once, which costs more than all the rest
/// of an ADD.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = open_or_create(path)?;
    let old = file.metadata()?;
    if old.nlink() > 1 {
        return create_anew(path, content); // the other name may belong to anything
    }
    file.write_all(content)?;
    if old.len() > content.len() as u64 {
        file.set_len(content.len() as u64)?;
    }
    Ok(())
}

/// The extension of drafts.
pub const DRAFT: &str = "draft";

/// Writes a file atomically, whether it exists or not. Until then the content is a draft beside it,
/// which a crash leaves behind: remove a file written this way with [`take`].
pub fn put(path: &Path, content: &[u8]) -> io::Result<()> {
    put_by(&path.with_extension(DRAFT), path, content)
}

/// As [`put`], with a draft of this name.
pub fn put_by(draft: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    let put = match write_and_rename(draft, path, content) {
        // A GC removed the draft as one left by a crash.
        Err(e) if e.kind() == io::ErrorKind::NotFound => write_and_rename(draft, path, content),
        done => done,
    };
    put.inspect_err(|_| {
        let _ = std::fs::remove_file(draft); // report the error of the write
    })
}

fn write_and_rename(draft: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    create_anew(draft, content)?;
    std::fs::rename(draft, path)
}

/// As [`put`], and returns once the content, and then the name, are on the disk.
pub fn put_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    let draft = path.with_extension(DRAFT);
    create_anew(&draft, content)?;
    std::fs::File::open(&draft)?.sync_all()?;
    std::fs::rename(&draft, path)?;
    path.parent().map_or(Ok(()), |dir| std::fs::File::open(dir)?.sync_all())
}

/// Removes a file written by [`put`], and its draft; a missing file is not an error.
pub fn take(path: &Path) -> io::Result<()> {
    let _ = remove(&path.with_extension(DRAFT)); // a leftover draft hinders the next ADD, not this DEL
    remove(path)
}

/// Opens a file for writing without truncating it, or creates it, readable by its owner only.
pub fn open_or_create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(GUARD.bits()).open(path)?;
    require_regular(&file)?;
    Ok(file)
}

/// As [`open_or_create`], in a private directory, which is created if it is missing.
pub fn open_or_create_private(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        make_private_directory(dir)?;
    }
    open_or_create(path)
}

/// The device and the inode of the file at a path, which is not opened; None if it cannot be
/// examined.
pub fn identity(path: impl AsRef<Path>) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Removes a file; one that is not there, as [`is_nowhere`] knows, is not an error.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if !is_nowhere(&e) => Err(e),
        _ => Ok(()),
    }
}

/// Opens a lock file, creating it with the reference's mode.
pub fn open_lock(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_CREAT | OFlag::O_CLOEXEC | GUARD;
    Ok(File::from(open(path, flags, Mode::from_bits_truncate(0o750))?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn directories_are_made_where_there_is_nothing() {
        let dir = Scratch::new();
        let path = |name: &str| dir.path().join(name);
        assert!(
            make_directories(&path("a/b"), 0o700).is_ok()
                && make_directories(&path("a/b"), 0o755).is_ok()
        );
        assert_eq!(
            path("a/b").metadata().unwrap().mode() & 0o777,
            0o700,
            "what is there stays as it is"
        );
        make_private_directory(&path("c/d")).unwrap();
        let mode = |name: &str| path(name).metadata().unwrap().mode() & 0o777;
        assert_eq!((mode("c") & 0o700, mode("c/d")), (0o700, 0o700));
        std::os::unix::fs::symlink("c", path("to c")).unwrap();
        assert!(make_private_directory(&path("to c")).is_err());
        dir.write("file", "");
        assert!(make_directories(&path("file"), 0o700).is_ok(), "it shows when it is used");
        let error = make_directories(&path("file/a"), 0o700).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn links_fifos_directories_and_huge_files_are_not_read() {
        let dir = Scratch::new();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("plain"), "x").unwrap();
        std::os::unix::fs::symlink(path("plain"), path("link")).unwrap();
        nix::unistd::mkfifo(&path("fifo"), Mode::S_IRUSR).unwrap();
        std::fs::create_dir(path("dir")).unwrap();
        std::fs::write(path("huge"), [b'x'; 100]).unwrap();
        assert_eq!(read(&path("plain"), 99).unwrap(), b"x");
        for bad in ["link", "fifo", "dir", "huge", "missing"] {
            assert!(read(&path(bad), 99).is_err(), "{bad}");
        }
        assert!(open_lock(&path("link")).is_err());
        assert_eq!(read_configuration(&path("link")).unwrap(), b"x");
        std::fs::File::create(path("sparse"))
            .unwrap()
            .set_len(LARGEST_CONFIGURATION as u64 + 1)
            .unwrap();
        for bad in ["fifo", "dir", "sparse", "missing"] {
            assert!(read_configuration(&path(bad)).is_err(), "{bad}");
        }
    }

    /// To open a FIFO has an effect as well: it wakes its writers.
    #[test]
    fn files_of_others_are_looked_at_before_they_are_opened() {
        let dir = Scratch::new();
        let path = |name: &str| dir.path().join(name);
        nix::unistd::mkfifo(&path("fifo"), Mode::S_IRUSR).unwrap();
        std::os::unix::fs::symlink("fifo", path("link")).unwrap();
        std::fs::write(path("plain"), "x").unwrap();
        let opened = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        opened.add_watch(&path("fifo"), AddWatchFlags::IN_OPEN).unwrap();
        for name in ["fifo", "link"] {
            assert!(read_of_others(&path(name), 9).is_err(), "{name}");
            assert!(read_configuration(&path(name)).is_err(), "{name}");
            assert!(read_below(dir.path(), Path::new(name), 9).is_err(), "{name}");
        }
        assert_eq!(opened.read_events().unwrap_err(), Errno::EAGAIN);
        assert!(read(&path("fifo"), 9).is_err());
        assert_eq!(opened.read_events().unwrap().len(), 1, "it is seen");
        assert_eq!(read_of_others(&path("plain"), 9).unwrap(), b"x");
        assert_eq!(read_below(dir.path(), Path::new("plain"), 9).unwrap(), b"x");
    }

    #[test]
    fn creating_anew_leaves_other_links_to_the_old_file_alone() {
        let dir = Scratch::new();
        let draft = dir.path().join("draft");
        let lease = dir.path().join("lease");
        create(&draft, b"old").unwrap();
        std::fs::hard_link(&draft, &lease).unwrap();
        create_anew(&draft, b"new").unwrap();
        assert_eq!(std::fs::read(&lease).unwrap(), b"old");
        assert_eq!(std::fs::read(&draft).unwrap(), b"new");
        assert!(create(&draft, b"").is_err());
    }

    #[test]
    fn what_was_put_is_taken_with_its_draft() {
        let dir = Scratch::new();
        let (path, draft) = (dir.path().join("a.json"), dir.path().join("a.draft"));
        for content in [b"old", b"new"] {
            std::fs::write(&draft, "left by a crash").unwrap();
            put(&path, content).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), content);
            assert!(!draft.exists());
        }
        std::fs::write(&draft, "left by a crash").unwrap();
        take(&path).unwrap();
        take(&path).unwrap();
        assert!(!path.exists() && !draft.exists());
        std::fs::create_dir(&path).unwrap();
        assert!(put(&path, b"x").is_err() && !draft.exists());
    }

    #[test]
    fn replacing_leaves_other_links_to_the_old_file_alone() {
        let dir = Scratch::new();
        let ours = dir.path().join("ours");
        let theirs = dir.path().join("theirs");
        for (content, inode_stays) in [("long enough", true), ("short", true), ("linked", false)] {
            if !inode_stays {
                std::fs::hard_link(&ours, &theirs).unwrap();
            }
            replace(&ours, content.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&ours).unwrap(), content);
        }
        assert_eq!(std::fs::read(&theirs).unwrap(), b"short");
    }
}
