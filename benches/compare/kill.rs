//! Runs a call under ptrace, counts its stops at system calls, and kills it at one of them.

use std::collections::BTreeSet;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::Result;
use crate::namespaces::SCRATCH;
use crate::process::Invocation;
use crate::trace::start;

/// How a traced call ended.
pub enum Ended {
    /// It succeeded, with this many stops: two for each system call, its entry and its exit, of
    /// every thread and every process that it started.
    Whole {
        stops: usize,
        /// The octets that it has sent and received over sockets.
        octets: u64,
        stdout: String,
    },
    Killed,
}

/// Runs the call. At stop `at`, every thread and process of it gets SIGKILL; without, it runs to
/// its end.
pub fn run(invocation: &Invocation, at: Option<usize>) -> Result<Ended> {
    let root = start(invocation)?;
    let mut call = Call {
        root,
        at,
        stops: 0,
        seen: BTreeSet::from([root]),
        talking: BTreeSet::new(),
        octets: 0,
        success: false,
    };
    call.follow().map_err(|e| format!("trace a process: {e}"))?;
    let stdout = std::fs::read_to_string(format!("{SCRATCH}/traced.stdout")).unwrap_or_default();
    match call {
        _ if call.is_killed() => Ok(Ended::Killed),
        _ if call.success => Ok(Ended::Whole { stops: call.stops, octets: call.octets, stdout }),
        _ => Err(format!("{} failed under trace: {stdout}", invocation.describe())),
    }
}

struct Call {
    root: Pid,
    at: Option<usize>,
    stops: usize,
    /// Tasks that have made their first stop; that stop is ptrace's own, not a signal to pass on.
    seen: BTreeSet<Pid>,
    /// Tasks in a system call that sends or receives.
    talking: BTreeSet<Pid>,
    octets: u64,
    success: bool,
}

impl Call {
    fn follow(&mut self) -> nix::Result<()> {
        let options = Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_EXITKILL;
        waitpid(self.root, Some(WaitPidFlag::__WALL))?; // the stop of the first exec
        ptrace::setoptions(self.root, options)?;
        ptrace::syscall(self.root, None)?;
        loop {
            match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::__WALL)) {
                Ok(status) => self.take(status),
                Err(Errno::ECHILD) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn take(&mut self, status: WaitStatus) {
        let Some(task) = status.pid() else { return };
        let signal = match status {
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => {
                self.seen.remove(&task); // the kernel may give the number to another process
                self.success |= status == WaitStatus::Exited(self.root, 0);
                return;
            }
            WaitStatus::Stopped(_, signal) => self.to_pass_on(task, signal),
            WaitStatus::PtraceSyscall(_) => {
                self.stops += 1;
                self.count_octets(task);
                None
            }
            _ => None,
        };
        self.seen.insert(task);
        if self.is_killed() {
            self.kill_all();
        } else {
            let _ = ptrace::syscall(task, signal); // it may be gone
        }
    }

    /// A stop at the entry of a system call shows its number, one at the exit its result.
    fn count_octets(&mut self, task: Pid) {
        const TALK: [i64; 4] =
            [libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_recvfrom, libc::SYS_recvmsg];
        let Ok(info) = ptrace::syscall_info(task) else { return };
        // SAFETY: `op` says which member the kernel has filled.
        let (number, result) = unsafe { (info.u.entry.nr, info.u.exit.sval) };
        if info.op == libc::PTRACE_SYSCALL_INFO_ENTRY {
            if i64::try_from(number).is_ok_and(|number| TALK.contains(&number)) {
                self.talking.insert(task);
            }
        } else if self.talking.remove(&task) {
            self.octets += u64::try_from(result).unwrap_or_default(); // none after an error
        }
    }

    fn to_pass_on(&self, task: Pid, signal: Signal) -> Option<Signal> {
        let is_own =
            signal == Signal::SIGTRAP || (signal == Signal::SIGSTOP && !self.seen.contains(&task));
        Some(signal).filter(|_| !is_own)
    }

    fn is_killed(&self) -> bool {
        self.at.is_some_and(|at| self.stops >= at)
    }

    /// A process that is not known yet is killed at its own first stop.
    fn kill_all(&self) {
        for task in &self.seen {
            let _ = kill(*task, Signal::SIGKILL); // a tracee's number is not used again
        }
    }
}
