//! The lock between an ADD that joins a bridge and the undo of one that failed.
//!
//! An undo checks whether other attachments use the bridge and then deletes; the kernel has no
//! request that does both atomically. All that an undo can see of another ADD is its port. So the
//! lock covers, in an ADD, the time from its first look at the bridge until its port exists
//! ([`joining`], shared: ADDs do not wait for each other), and in an undo the look at the ports
//! together with the deletion that depends on it ([`undo`], exclusive). Of an ADD and an undo,
//! either
//!
//! * the port exists before the undo looks, and the undo leaves everything as it is; or
//! * the undo is done before the ADD looks at the bridge, and the ADD creates what it does not
//!   find.
//!
//! An ADD looks at the gateway's addresses and at `<bridge>.<vlan>` when its port exists, so the
//! same holds for them. The kernel releases the lock when its holder exits. A killed undo has
//! removed some of what its own ADD made, and a later ADD, which then has the lock, finds the rest
//! and completes it.
//!
//! An ADD does not wait for long: a stopped undo would hold up every container of the host. It goes
//! on without the lock, and so an undo that took longer than an ADD waits looks again.
//!
//! Only root can open the file. A host that cannot have it (`/run/cni` is not a directory, or
//! read-only) has no lock: attaching must not depend on it.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::deadline::Deadline;
use crate::error::{Code, Error, Result, warn};
use crate::file_lock::{self, Mode, Patience};
use crate::plain_file;
use crate::plugin::Handles;

const DIR: &str = "/run/cni/bridge";
const LOCK: &str = "/run/cni/bridge/lock";
/// The errors of a host that cannot have the file.
const IMPOSSIBLE: [Errno; 7] = [
    Errno::EACCES,
    Errno::EDQUOT,
    Errno::ENOENT,
    Errno::ENOSPC,
    Errno::ENOTDIR,
    Errno::EPERM,
    Errno::EROFS,
];

/// How long an ADD waits for an undo, whose work takes milliseconds.
const LONGEST_UNDO: Duration = Duration::from_secs(5);
/// How often an undo looks whether the bridge is used, if each look takes too long to be still true.
const LOOKS: usize = 3;

/// Takes the lock that keeps undos away from the bridge until it is dropped. None on a host that
/// cannot have it, and if an undo does not let go of it.
pub fn joining(deadline: Deadline) -> Result<Option<File>> {
    match lock(Mode::Shared, Patience { of_one: LONGEST_UNDO, deadline }) {
        Err(error) if error.code == Code::TRY_AGAIN => {
            warn(format_args!("bridge: {error}, going on without it"));
            Ok(None)
        }
        locked => locked,
    }
}

/// Runs `work` while no other ADD is joining the bridge, unless another attachment relies on what it
/// would undo.
pub fn unless_used(
    handles: &Handles,
    is_used: impl Fn() -> Result<bool>,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let stuck_holder = handles.stuck_holder_of_undo();
    stuck_holder.fail_again()?;
    let lock = lock(Mode::Exclusive, Patience::of_operation(handles.deadline()));
    let _lock = lock.map_err(|error| stuck_holder.record(error))?;
    for _ in 0..LOOKS {
        let begin = Instant::now();
        if is_used()? {
            return Ok(());
        }
        if begin.elapsed() < LONGEST_UNDO / 2 {
            return work();
        }
    }
    Err(Error::new(Code::TRY_AGAIN, "it takes too long to see who uses the bridge"))
}

/// Takes the lock; None on a host that cannot have it.
fn lock(mode: Mode, patience: Patience) -> Result<Option<File>> {
    let Some(file) = open()? else { return Ok(None) };
    match file_lock::take(file, Path::new(LOCK), mode, patience) {
        Err(e) if e.is_errno(Errno::ENOLCK) || e.is_errno(Errno::EOPNOTSUPP) => Ok(None),
        locked => locked.map(Some),
    }
}

fn open() -> Result<Option<File>> {
    // Never, as opposed to a temporary shortage.
    let is_impossible = |errno: Option<i32>| {
        plain_file::is_no_file(errno) || IMPOSSIBLE.iter().any(|of| errno == Some(*of as i32))
    };
    // A symbolic link in its place may lead to foreign files.
    let made = plain_file::make_private_directory(Path::new(DIR));
    match made.and_then(|()| plain_file::open_or_create(Path::new(LOCK))) {
        Ok(file) => Ok(Some(file)),
        Err(e) if is_impossible(e.raw_os_error()) => Ok(None),
        Err(e) => Err(Error::io(format_args!("open {LOCK:?}"), &e)),
    }
}
