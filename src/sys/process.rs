//! Processes beside this one, and the signals that end this one.

use std::ffi::c_int;
use std::fs::{self, DirEntry};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::signal::{SigSet, Signal};

/// Whether another program than this one runs by this name in this network namespace. A process
/// that may not be looked at counts for none.
pub fn another_runs(name: &str) -> bool {
    let identity =
        |path: PathBuf| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    let own = Path::new("/proc/thread-self");
    let (Some(exe), Some(netns)) = (identity(own.join("exe")), identity(own.join("ns/net"))) else {
        return false;
    };
    let is_another = |process: &Path| {
        fs::read(process.join("comm")).is_ok_and(|comm| comm.trim_ascii_end() == name.as_bytes())
            && identity(process.join("ns/net")).is_some_and(|of_process| of_process == netns)
            && identity(process.join("exe")).is_some_and(|of_process| of_process != exe)
    };
    let is_process = |entry: &DirEntry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit);
    let is_another = |entry: DirEntry| is_process(&entry) && is_another(&entry.path());
    fs::read_dir("/proc").is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(is_another)))
}

/// By these somebody asks a process to end: Ctrl-C at a terminal, who stops a service, a terminal
/// that is closed.
const REQUESTS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// While this is there requests to end have to wait, in this thread and in those that it starts.
/// Programs that it starts get them as ever.
pub struct Uninterrupted {
    before: SigSet,
}

impl Uninterrupted {
    /// Begins; None where the kernel refuses, and then a request ends the process as ever.
    pub fn begin() -> Option<Uninterrupted> {
        let before = SigSet::thread_get_mask().ok()?;
        let waiting: SigSet =
            REQUESTS.into_iter().filter(|&request| !is_ignored(request)).collect();
        waiting.thread_block().ok()?;
        Some(Uninterrupted { before })
    }

    /// Whether a request came meanwhile. It is over with that: who asks has to see to it.
    pub fn was_interrupted() -> bool {
        let requests = SigSet::from_iter(REQUESTS);
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both are there until it returns, and what came besides the number is not asked
        // for.
        let taken = unsafe {
            libc::sigtimedwait(requests.as_ref(), std::ptr::null_mut(), &raw const at_once)
        };
        taken > 0
    }
}

/// Whether whoever started the process wants it to go on, as nohup(1) does. A signal that is
/// ignored comes all the same while it is blocked.
fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: it is only asked what happens, and there is room for the answer.
    let asked = unsafe { libc::sigaction(signal as c_int, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: all of it is numbers, which may be zero.
    let action = unsafe { action.assume_init() };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

impl Drop for Uninterrupted {
    fn drop(&mut self) {
        let _ = self.before.thread_set_mask(); // it was one
    }
}
