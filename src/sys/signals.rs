//! The signals that end this process: kept from it while its work must not stop half-way, or
//! forwarded to a child, as sudo(8) does.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::{Error, Result};

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
fn is_ignored(signal: Signal) -> bool {
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

/// The signals that end a process and that another process may send to it.
const FORWARDED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// A guard that blocks the signals in this thread, so that they can be forwarded to a child.
pub struct ForwardedSignals {
    before: SigSet,
    awaited: SigSet,
}

impl ForwardedSignals {
    /// Blocks the signals. An ignored signal stays ignored.
    pub fn begin() -> Result<ForwardedSignals> {
        let failed = |e| Error::kernel("block signals", e);
        // Ignored, as a parent may have left it, no signal would say that the command has ended.
        // SAFETY: the default action runs no code of ours.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map_err(failed)?;
        let before = SigSet::thread_get_mask().map_err(failed)?;
        let forwarded = FORWARDED.into_iter().filter(|&signal| !is_ignored(signal));
        let awaited: SigSet = forwarded.chain([Signal::SIGCHLD]).collect();
        awaited.thread_block().map_err(failed)?;
        Ok(ForwardedSignals { before, awaited })
    }

    /// Unblocks the signals: in a child, which inherits the mask.
    pub fn unblock(&self) {
        let _ = self.before.thread_set_mask(); // it was a valid mask
    }

    /// Waits for a signal. None if it is not to be forwarded: a child has ended, or the kernel has
    /// sent the signal to the whole process group of a terminal, and so to the child as well.
    pub(super) fn next(&self) -> nix::Result<Option<Signal>> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: both pointers are valid until it returns.
        let taken = unsafe { libc::sigwaitinfo(self.awaited.as_ref(), info.as_mut_ptr()) };
        let signal = match Errno::result(taken) {
            Err(Errno::EINTR) => return Ok(None),
            signal => Signal::try_from(signal?)?,
        };
        // SAFETY: the struct consists of numbers, which may be zero, and the kernel has filled it.
        let is_of_process = unsafe { info.assume_init() }.si_code <= 0;
        Ok(Some(signal).filter(|signal| is_of_process && *signal != Signal::SIGCHLD))
    }
}

impl Drop for ForwardedSignals {
    fn drop(&mut self) {
        self.unblock();
    }
}
