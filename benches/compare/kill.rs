//! Runs a call under ptrace, counts its stops at system calls, and kills it at one of them.

use std::collections::BTreeSet;

use crate::Result;
use crate::namespaces::SCRATCH;
use crate::process::Invocation;
use crate::trace::{next_stop, request, start};

/// A stop at a system call, with `PTRACE_O_TRACESYSGOOD`.
const AT_SYSTEM_CALL: i32 = libc::SIGTRAP | 0x80;

/// How a traced call ended.
pub enum Ended {
    /// It succeeded, with this many stops: two for each system call, its entry and its exit, of
    /// every thread and every process that it started.
    Whole {
        stops: usize,
        stdout: String,
    },
    Killed,
}

/// Runs the call. At stop `at`, every thread and process of it gets SIGKILL; without, it runs to
/// its end.
pub fn run(invocation: &Invocation, at: Option<usize>) -> Result<Ended> {
    let root = start(invocation)?;
    let mut call = Call { root, at, stops: 0, seen: BTreeSet::from([root]), success: false };
    call.follow()?;
    let stdout = std::fs::read_to_string(format!("{SCRATCH}/traced.stdout")).unwrap_or_default();
    match call {
        _ if call.is_killed() => Ok(Ended::Killed),
        _ if call.success => Ok(Ended::Whole { stops: call.stops, stdout }),
        _ => Err(format!("{} failed under trace: {stdout}", invocation.describe())),
    }
}

struct Call {
    root: libc::pid_t,
    at: Option<usize>,
    stops: usize,
    /// Tasks that have made their first stop; that stop is ptrace's own, not a signal to pass on.
    seen: BTreeSet<libc::pid_t>,
    success: bool,
}

impl Call {
    fn follow(&mut self) -> Result<()> {
        let options = libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACEEXEC
            | libc::PTRACE_O_TRACESYSGOOD
            | libc::PTRACE_O_EXITKILL;
        next_stop(self.root)?; // the stop of the first exec
        request(libc::PTRACE_SETOPTIONS, self.root, i64::from(options))?;
        request(libc::PTRACE_SYSCALL, self.root, 0)?;
        while let Some((task, status)) = next_stop(-1)? {
            if !libc::WIFSTOPPED(status) {
                self.seen.remove(&task); // the kernel may give the number to another process
                self.success |= task == self.root && status == 0;
                continue;
            }
            let signal = self.on_stop(task, status);
            if self.is_killed() {
                self.kill_all();
            } else {
                let _ = request(libc::PTRACE_SYSCALL, task, i64::from(signal)); // it may be gone
            }
        }
        Ok(())
    }

    /// Counts the stop and returns the signal to pass on.
    fn on_stop(&mut self, task: libc::pid_t, status: i32) -> i32 {
        let (first, signal) = (self.seen.insert(task), libc::WSTOPSIG(status));
        let is_event = status >> 16 != 0;
        match signal {
            AT_SYSTEM_CALL => self.stops += 1,
            libc::SIGTRAP => {}
            libc::SIGSTOP if first => {}
            _ if is_event => {}
            _ => return signal,
        }
        0
    }

    fn is_killed(&self) -> bool {
        self.at.is_some_and(|at| self.stops >= at)
    }

    /// A process that is not known yet is killed at its own first stop.
    fn kill_all(&self) {
        for task in &self.seen {
            // SAFETY: kill takes numbers. The tasks are tracees, so their numbers are not reused.
            unsafe { libc::kill(*task, libc::SIGKILL) };
        }
    }
}
