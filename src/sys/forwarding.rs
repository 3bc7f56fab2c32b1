//! Signals that a process forwards to its child instead of ending by them, as sudo(8) does.

use std::mem::MaybeUninit;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};

use super::process::is_ignored;
use crate::error::{Error, Result};

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
pub struct Forwarding {
    before: SigSet,
    awaited: SigSet,
}

impl Forwarding {
    /// Blocks the signals. An ignored signal stays ignored.
    pub fn begin() -> Result<Forwarding> {
        let failed = |e| Error::kernel("block signals", e);
        // Ignored, as a parent may have left it, no signal would say that the command has ended.
        // SAFETY: the default action runs no code of ours.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map_err(failed)?;
        let before = SigSet::thread_get_mask().map_err(failed)?;
        let forwarded = FORWARDED.into_iter().filter(|&signal| !is_ignored(signal));
        let awaited: SigSet = forwarded.chain([Signal::SIGCHLD]).collect();
        awaited.thread_block().map_err(failed)?;
        Ok(Forwarding { before, awaited })
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

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.unblock();
    }
}
