//! Other processes, and the signals that end this one.

use std::ffi::c_int;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Whether a program other than this one runs under this name in this network namespace. A process
/// that may not be inspected is ignored.
pub fn another_runs(name: &str) -> bool {
    let own = Path::new("/proc/thread-self");
    let (Some(exe), Some(netns)) = (identity(own.join("exe")), identity(own.join("ns/net"))) else {
        return false;
    };
    let is_another = |process: PathBuf| {
        fs::read(process.join("comm")).is_ok_and(|it| it.trim_ascii_end() == name.as_bytes())
            && identity(process.join("ns/net")) == Some(netns)
            && identity(process.join("exe")).is_some_and(|of_process| of_process != exe)
    };
    processes().any(is_another)
}

/// A process that has a socket open.
pub struct Holder {
    /// The process id.
    pub pid: u32,
    /// Its command, as the process itself has named it.
    pub command: String,
}

/// A process that has the socket of this inode open; None if there is none that may be inspected,
/// or none was found by `end`. Reads the descriptors of all processes up to the first that has it.
pub fn holder_of_socket(inode: u32, end: Instant) -> Option<Holder> {
    let wanted = PathBuf::from(format!("socket:[{inode}]"));
    let has_it_open = |process: &PathBuf| {
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let mut descriptors = descriptors.take_while(|_| Instant::now() < end);
        descriptors.any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target == wanted))
    };
    let process = processes().take_while(|_| Instant::now() < end).find(has_it_open)?;
    let pid = process.file_name()?.to_str()?.parse().ok()?;
    let comm = fs::read(process.join("comm")).unwrap_or_default();
    Some(Holder { pid, command: String::from_utf8_lossy(comm.trim_ascii_end()).into_owned() })
}

/// The directories of all processes.
fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit))
        .map(|entry| entry.path())
}

/// The device and the inode of a file.
fn identity(path: PathBuf) -> Option<(u64, u64)> {
    fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok()
}

/// The signals that ask a process to end: Ctrl-C at a terminal, a service manager, a closed
/// terminal.
const REQUESTS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// A guard that blocks SIGINT, SIGTERM and SIGHUP in this thread, and in the threads and programs it
/// starts: Ctrl-C signals a whole process group, and a plugin would end in the middle of its work.
pub struct Uninterrupted {
    before: SigSet,
}

impl Uninterrupted {
    /// Blocks the signals; None if the kernel refuses, and then a signal ends the process as usual.
    pub fn begin() -> Option<Uninterrupted> {
        let before = SigSet::thread_get_mask().ok()?;
        let waiting: SigSet =
            REQUESTS.into_iter().filter(|&request| !is_ignored(request)).collect();
        waiting.thread_block().ok()?;
        Some(Uninterrupted { before })
    }

    /// Whether a signal is pending, which takes effect when this is dropped.
    pub fn is_pending(&self) -> bool {
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        SignalFd::with_flags(&SigSet::from_iter(REQUESTS), flags).is_ok_and(|signals| {
            let mut polled = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            poll(&mut polled, PollTimeout::ZERO) == Ok(1)
        })
    }

    /// Whether a signal is pending. Consumes the signal; the caller must act on it.
    pub fn was_interrupted() -> bool {
        let requests = SigSet::from_iter(REQUESTS);
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both pointers are valid until it returns, and the null pointer means that no
        // siginfo is requested.
        let taken = unsafe {
            libc::sigtimedwait(requests.as_ref(), std::ptr::null_mut(), &raw const at_once)
        };
        taken > 0
    }
}

/// Whether the parent made the process ignore the signal, as nohup(1) does. A blocked signal is
/// queued even if it is ignored, so it must not be blocked.
pub(super) fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call only queries the action, and there is room for the answer.
    let asked = unsafe { libc::sigaction(signal as c_int, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the struct consists of numbers, which may be zero.
    let action = unsafe { action.assume_init() };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

impl Drop for Uninterrupted {
    fn drop(&mut self) {
        let _ = self.before.thread_set_mask(); // it was a valid mask
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use nix::sys::stat::fstat;

    use super::*;

    #[test]
    fn the_search_for_a_holder_ends_at_its_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = u32::try_from(fstat(listener.as_fd()).unwrap().st_ino).unwrap();
        let found = |end| holder_of_socket(inode, end).map(|holder| holder.pid);
        assert_eq!(found(Instant::now() + Duration::from_secs(60)), Some(std::process::id()));
        assert_eq!(found(Instant::now()), None);
    }
}
