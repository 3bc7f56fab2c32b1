//! Children that run code of this process: fork(2) without exec.

use std::fmt;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use super::signals::ForwardedSignals;
use crate::error::{Code, Error, Result};

/// How long a joined thread may take to end.
const THREAD_ENDS: Duration = Duration::from_secs(1);

/// The exit status of a child whose work panicked, as that of a Rust program.
const PANICKED: u8 = 101;

/// A child process. It ends with its parent: by SIGKILL when this is dropped, or when the parent
/// itself ends.
#[derive(Debug)]
pub struct Child(Pid);

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this exit status.
    Exited(u8),
    /// By this signal.
    Killed(Signal),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Exited(status) => write!(f, "exit status {status}"),
            Ended::Killed(signal) => write!(f, "killed by {signal}"),
        }
    }
}

impl Child {
    /// Runs `work` in a child and ends it with the returned exit status. Fails if the process has
    /// several threads: the child would inherit the locks that the others hold, and not them.
    pub fn start(work: impl FnOnce() -> u8) -> Result<Child> {
        let is_one = || fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
        let end = Instant::now() + THREAD_ENDS;
        while !is_one() {
            if Instant::now() > end {
                return Err(Error::new(Code::BUG, "fork in a process with several threads"));
            }
            // A thread that was joined may still be ending: it is counted as long as the kernel has
            // it.
            std::thread::yield_now();
        }
        // SAFETY: the process has one thread, so no lock stays held in the child.
        match unsafe { fork() }.map_err(|e| Error::kernel("start a process", e))? {
            ForkResult::Parent { child } => Ok(Child(child)),
            ForkResult::Child => {
                // Fails for an invalid signal only; a parent that has ended already is not noticed.
                let _ = set_pdeathsig(Signal::SIGKILL);
                exit(catch_unwind(AssertUnwindSafe(work)).unwrap_or(PANICKED))
            }
        }
    }

    /// Ends it with SIGKILL; returns how it ended, which may have been before.
    pub fn kill(self) -> Result<Ended> {
        let _ = kill(self.0, Signal::SIGKILL); // it may have ended
        self.wait()
    }

    /// Ends it with SIGKILL and does not wait: one that waits in the kernel for a file system ends
    /// when that answers, after this process if need be.
    pub fn abandon(self) {
        let _ = kill(self.0, Signal::SIGKILL); // it may have ended
        std::mem::forget(self);
    }

    /// Waits until it ends.
    pub fn wait(self) -> Result<Ended> {
        let ended = wait_for(self.0).map_err(|e| Error::kernel("wait for a process", e));
        std::mem::forget(self);
        ended
    }

    /// Waits until it ends, and forwards signals to it.
    pub fn wait_forwarding(self, signals: &ForwardedSignals) -> Result<Ended> {
        let wait = || loop {
            match waitpid(self.0, Some(WaitPidFlag::WNOHANG))? {
                WaitStatus::Exited(_, status) => return Ok(Ended::Exited(status as u8)),
                WaitStatus::Signaled(_, signal, _) => return Ok(Ended::Killed(signal)),
                _ => (), // it runs, or is stopped
            }
            if let Some(signal) = signals.next()? {
                let _ = kill(self.0, signal); // it may have ended
            }
        };
        let ended = wait().map_err(|e| Error::kernel("wait for a process", e));
        std::mem::forget(self);
        ended
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL); // it may have ended
        let _ = wait_for(self.0);
    }
}

fn wait_for(child: Pid) -> nix::Result<Ended> {
    loop {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, status)) => return Ok(Ended::Exited(status as u8)),
            Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(Ended::Killed(signal)),
            Ok(_) | Err(Errno::EINTR) => (),
            Err(errno) => return Err(errno),
        }
    }
}

/// Ends the process without the destructors and buffers of the parent.
fn exit(status: u8) -> ! {
    // SAFETY: it does not return, and touches no memory of this process.
    unsafe { libc::_exit(status.into()) }
}
