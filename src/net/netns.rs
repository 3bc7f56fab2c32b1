//! Network namespaces (network_namespaces(7)).

use std::cell::OnceCell;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns};
use nix::sys::statfs::{FsType, fstatfs};
use serde::{Deserialize, Serialize};

use super::netlink::Netlink;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::file_lock::{self, Lock as FileLock, Mode, Range};
use crate::plain_file;
use crate::timing::{self, Wait};

/// NSFS_MAGIC of linux/magic.h: the file system that an open namespace file is on.
const NSFS: FsType = FsType(0x6e73_6673);

/// The stack size of a thread that enters a namespace, enough for setns, a sysctl write, a socket.
/// The default of two megabytes would be mapped for nothing.
const STACK: usize = 256 * 1024;

/// The lock file, which has a byte for each namespace. A namespace's own file can be opened, and so
/// locked, by any process that sees it.
const LOCK: &str = "/run/cni/netns/lock";
/// How long to wait for another holder of the lock. The work under it takes milliseconds, unless it
/// waits for IPv6 duplicate address detection.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);
/// How long to wait for the reference's lock on the namespace's own file, which an unprivileged
/// process may hold indefinitely.
const REFERENCE_PATIENCE: Duration = Duration::from_millis(500);

/// Identifies a namespace in a form that can be stored: a path may lead to another namespace later,
/// and the kernel reuses inode numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetnsId {
    /// SO_NETNS_COOKIE of socket(7), unique until the next boot; None before Linux 5.14.
    cookie: Option<u64>,
    /// The device of its file, nsfs.
    device: u64,
    /// The inode of its file.
    inode: u64,
}

/// Device and inode of a namespace's file, which no two namespaces that exist at the same time
/// share.
pub type FileId = (u64, u64);

/// What distinguishes a namespace from the others that exist; a shorter [`NetnsId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The cookie.
    Cookie(u64),
    /// Its file; the kernel has no cookie before Linux 5.14.
    File(FileId),
}

impl NetnsId {
    /// Its file.
    pub fn file(&self) -> FileId {
        (self.device, self.inode)
    }
}

/// The namespaces that are no container's: this thread's, and that of process 1, which is the
/// host's if the caller runs in another one.
pub fn of_host() -> Result<Vec<FileId>> {
    let own = Netns::current()?.identity()?;
    let of_first = plain_file::identity("/proc/1/ns/net");
    Ok([Some(own), of_first].into_iter().flatten().collect())
}

/// An open network namespace.
pub struct Netns {
    file: File,
    path: String,
    netlink: OnceCell<Netlink>,
}

impl fmt::Debug for Netns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Netns({:?})", self.path)
    }
}

/// The held lock of a namespace; it is released on drop.
#[derive(Debug)]
pub struct Lock<'a> {
    netns: &'a File,
    _own: File,
    _reference_s: Option<File>,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let _ = fs2::FileExt::unlock(self.netns); // another process may hold it; closing the file frees it
    }
}

/// Why a path did not open as a namespace.
enum Unopened {
    /// Nothing exists there, or a file that is no namespace: a bind mount's file after the unmount.
    Gone(Error),
    /// A namespace may exist, but we cannot tell.
    Refused(Error),
}

impl Netns {
    /// Opens the namespace at `path`; fails with code 8.
    pub fn open(path: &str) -> Result<Netns> {
        open(path).map_err(|why| match why {
            Unopened::Gone(error) | Unopened::Refused(error) => error,
        })
    }

    /// Opens the namespace at `path`; None if it no longer exists.
    pub fn open_if_there(path: &str) -> Result<Option<Netns>> {
        if path.is_empty() {
            return Ok(None);
        }
        match open(path) {
            Ok(netns) => Ok(Some(netns)),
            Err(Unopened::Gone(_)) => Ok(None),
            Err(Unopened::Refused(error)) => Err(error),
        }
    }

    /// Opens the namespace of this thread.
    pub fn current() -> Result<Netns> {
        Netns::open("/proc/thread-self/ns/net")
    }

    /// Whether both are the same namespace.
    pub fn is_same_as(&self, other: &Netns) -> Result<bool> {
        Ok(self.identity()? == other.identity()?)
    }

    /// The namespace's file.
    pub fn identity(&self) -> Result<FileId> {
        let found = self
            .file
            .metadata()
            .map_err(|e| Error::io(format_args!("stat netns {:?}", self.path), &e))?;
        Ok((found.dev(), found.ino()))
    }

    /// The id that distinguishes this namespace from every other, past or future.
    pub fn id(&self) -> Result<NetnsId> {
        let (device, inode) = self.identity()?;
        Ok(NetnsId { cookie: self.netlink()?.netns_cookie(), device, inode })
    }

    /// What distinguishes this namespace from the others that exist.
    pub fn mark(&self) -> Result<Mark> {
        match self.netlink()?.netns_cookie() {
            Some(cookie) => Ok(Mark::Cookie(cookie)),
            None => self.identity().map(Mark::File),
        }
    }

    /// Runs `work` inside the namespace. The expensive part is the thread that enters, so it also
    /// opens the netlink socket unless there is one.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        if self.netlink.get().is_some() {
            return self.enter(work);
        }
        let (netlink, done) = self.enter(|| Ok((Netlink::open()?, work()?)))?;
        let _ = self.netlink.set(netlink); // nothing else can have set it
        Ok(done)
    }

    /// Runs `work` on a thread that then exits: no other code ever runs in the wrong namespace.
    /// Unlike [`Netns::run`] it opens nothing.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let (mut work, mut done) = (Some(work), None);
        self.on_a_thread(&mut || done = work.take().map(|work| work()))?;
        done.unwrap_or_else(|| Err(Error::new(Code::BUG, "a thread ended without its work")))
    }

    /// The part of [`Netns::enter`] that is the same for all work, once in the program.
    fn on_a_thread(&self, work: &mut (dyn FnMut() + Send)) -> Result<()> {
        let file = &self.file;
        let path = &self.path; // the other fields stay on this thread
        let on_a_thread = || {
            thread::scope(|scope| {
                let thread = thread::Builder::new()
                    .stack_size(STACK)
                    .spawn_scoped(scope, || enter_for_good(file, path).map(|()| work()));
                let thread = thread.map_err(|e| Error::io("start a thread", &e))?;
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        };
        timing::waiting(Wait::Namespaces, on_a_thread)
    }

    /// A netlink socket that belongs to this namespace, wherever it is used.
    pub fn netlink(&self) -> Result<&Netlink> {
        if self.netlink.get().is_none() {
            self.run(|| Ok(()))?;
        }
        self.netlink
            .get()
            .ok_or_else(|| Error::new(Code::BUG, "a namespace was entered without its socket"))
    }

    /// Takes the lock of the namespace, after waiting for other processes of ours that hold it.
    ///
    /// The lock is the byte at the namespace's inode number in a file that only root can open. No
    /// other namespace gets the number while the lock is held, because the namespace is open.
    pub fn lock(&self, deadline: Deadline) -> Result<Lock<'_>> {
        let limit = deadline.limit(LOCK_PATIENCE);
        let what = format!("lock netns {:?}", self.path);
        let failed = |e: io::Error| Error::io(format_args!("{what}: {LOCK:?}"), &e);
        let file = plain_file::open_or_create_private(Path::new(LOCK)).map_err(failed)?;
        let byte = FileLock::Bytes(Range::byte(self.identity()?.1), Mode::Exclusive);
        let own = file_lock::take_within(file, byte, limit)
            .map_err(failed)?
            .ok_or_else(|| file_lock::not_free(&what, Path::new(LOCK), None, limit))?;
        let reference_s =
            self.lock_as_reference(deadline.limit(REFERENCE_PATIENCE)).unwrap_or(None);
        Ok(Lock { netns: &self.file, _own: own, _reference_s: reference_s })
    }

    /// Takes flock on the namespace's file, as the reference's sbr does; returns the file that has
    /// it unless that is our own. A lock that is not free is not an error: continue without.
    fn lock_as_reference(&self, limit: Duration) -> io::Result<Option<File>> {
        if Mode::Exclusive.try_take(&self.file)? {
            return Ok(None);
        }
        file_lock::take_beside(&self.file, FileLock::Whole(Mode::Exclusive), limit)
    }

    /// The descriptor for IFLA_NET_NS_FD.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// A link of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct LinkPlace<'a> {
    /// The path of the namespace.
    pub netns: &'a str,
    /// The link's name there.
    pub ifname: &'a str,
}

/// Runs `work` with the link's name in the namespace of each place; None where the path has none or
/// one of `except`, and where it fails. One thread enters one after the other and then exits: a
/// second one would wait for the kernel's lock of all links.
pub fn read_in_each<T: Send>(
    places: &[LinkPlace<'_>],
    except: &[FileId],
    work: impl Fn(&str) -> Result<T> + Sync,
) -> Vec<Option<T>> {
    let one = |place: &LinkPlace<'_>| -> Result<Option<T>> {
        let Some(netns) = Netns::open_if_there(place.netns)? else { return Ok(None) };
        if except.contains(&netns.identity()?) {
            return Ok(None);
        }
        enter_for_good(&netns.file, place.netns)?;
        work(place.ifname).map(Some)
    };
    let all = || places.iter().map(|place| one(place).unwrap_or(None)).collect();
    let read = thread::scope(|scope| scope.spawn(all).join());
    read.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Moves this thread into a namespace; it must end afterwards.
#[expect(clippy::disallowed_methods, reason = "this is the thread that ends")]
fn enter_for_good(file: &File, path: &str) -> Result<()> {
    setns(file, CloneFlags::CLONE_NEWNET)
        .map_err(|e| Error::kernel(format_args!("enter netns {path:?}"), e))
}

fn open(path: &str) -> Result<Netns, Unopened> {
    let what = format!("open netns {path:?}");
    // Whatever is there, opening it must not block (a FIFO) or become our controlling terminal.
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|e| {
        let error = Error::io(&what, &e).with_code(Code::INVALID_NETNS);
        let errno = e.raw_os_error().map(Errno::from_raw);
        if matches!(errno, Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ESRCH | Errno::ENXIO)) {
            Unopened::Gone(error)
        } else {
            Unopened::Refused(error)
        }
    })?;
    let found = fstatfs(&file).map_err(|e| Unopened::Refused(Error::kernel(&what, e)))?;
    let kind = found.filesystem_type();
    if kind != NSFS {
        let error = Error::new(Code::INVALID_NETNS, format!("{what}: it is not a namespace"));
        return Err(Unopened::Gone(
            error.with_details(format_args!("file system {:#x}, expected nsfs", kind.0)),
        ));
    }
    Ok(Netns { file, path: path.to_owned(), netlink: OnceCell::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_namespace_opens_and_is_itself() {
        let one = Netns::current().unwrap();
        let other = Netns::open("/proc/self/ns/net").unwrap();
        assert!(one.is_same_as(&other).unwrap());
        assert_eq!(one.id().unwrap(), other.id().unwrap());
    }

    #[test]
    fn what_is_no_namespace_is_gone() {
        for path in ["/nonexistent", "/etc/passwd/x", "/etc/passwd", "/proc/self/status", ""] {
            assert!(Netns::open_if_there(path).unwrap().is_none(), "{path}");
            assert_eq!(Netns::open(path).unwrap_err().code, Code::INVALID_NETNS, "{path}");
        }
        assert_eq!(
            Netns::open("/nonexistent").unwrap_err().msg,
            "open netns \"/nonexistent\": no such file or directory"
        );
    }
}
