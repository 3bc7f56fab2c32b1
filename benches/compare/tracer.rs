//! What a process and its descendants start, and how much memory they take: ptrace(2).
//!
//! wait4(2) does not tell: its ru_maxrss begins with the memory of the process that called exec.

use std::collections::BTreeSet;

use cni_multi::sys::process::Ended;
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::ptrace::Options;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// What was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Processes, without the traced one.
    pub processes: u32,
    /// Threads, without the first of each process.
    pub threads: u32,
    /// The largest resident memory of a program that was started by exec, in KiB.
    pub peak_kib: u64,
}

/// Follows a child that has called exec after PTRACE_TRACEME, until all its descendants have ended;
/// returns what they started and how the child ended. The caller must have no other child: its status would be consumed, and waited for.
pub fn follow(root: Pid) -> nix::Result<(Trace, Ended)> {
    let mut tracer = Tracer {
        root,
        trace: Trace::default(),
        seen: BTreeSet::from([root]),
        programs: BTreeSet::new(),
        ended: Ended::Killed(Signal::SIGKILL),
    };
    tracer.begin()?;
    tracer.run()?;
    Ok((tracer.trace, tracer.ended))
}

struct Tracer {
    root: Pid,
    trace: Trace,
    /// Tasks after their first stop, which is ptrace's own.
    seen: BTreeSet<Pid>,
    /// Processes that have called exec.
    programs: BTreeSet<Pid>,
    ended: Ended,
}

/// The sum of what several calls started; the largest memory of them.
impl std::ops::AddAssign for Trace {
    fn add_assign(&mut self, other: Trace) {
        self.processes += other.processes;
        self.threads += other.threads;
        self.peak_kib = self.peak_kib.max(other.peak_kib);
    }
}

impl Tracer {
    fn begin(&mut self) -> nix::Result<()> {
        match waitpid(self.root, Some(WaitPidFlag::__WALL))? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                self.programs.insert(self.root); // the stop of its exec
            }
            WaitStatus::Stopped(..) => (),
            ended => {
                self.take(ended); // it may not be traced
                return Ok(());
            }
        }
        let options = Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_TRACEEXIT
            | Options::PTRACE_O_EXITKILL;
        ptrace::setoptions(self.root, options)?;
        ptrace::cont(self.root, None)
    }

    fn run(&mut self) -> nix::Result<()> {
        loop {
            match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::__WALL)) {
                Ok(status) => self.take(status),
                Err(Errno::ECHILD) => return Ok(()),
                Err(Errno::EINTR) => (),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn take(&mut self, status: WaitStatus) {
        match status {
            WaitStatus::PtraceEvent(task, _, event) => {
                self.on_event(task, event);
                resume(task, None);
            }
            WaitStatus::Stopped(task, signal) => {
                let is_own = self.seen.insert(task) && signal == Signal::SIGSTOP;
                resume(task, Some(signal).filter(|_| !is_own));
            }
            WaitStatus::Exited(task, status) => self.end(task, Ended::Exited(status as u8)),
            WaitStatus::Signaled(task, signal, _) => self.end(task, Ended::Killed(signal)),
            _ => (),
        }
    }

    /// The kernel may give the number of an ended task to another one.
    fn end(&mut self, task: Pid, ended: Ended) {
        self.seen.remove(&task);
        self.programs.remove(&task);
        if task == self.root {
            self.ended = ended;
        }
    }

    fn on_event(&mut self, task: Pid, event: i32) {
        match event {
            libc::PTRACE_EVENT_CLONE => self.trace.threads += 1,
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => self.trace.processes += 1,
            libc::PTRACE_EVENT_EXEC => {
                self.programs.insert(task);
            }
            libc::PTRACE_EVENT_EXIT if self.programs.contains(&task) => {
                self.trace.peak_kib = self.trace.peak_kib.max(peak_kib(task));
            }
            _ => (),
        }
    }
}

fn resume(task: Pid, signal: Option<Signal>) {
    let _ = ptrace::cont(task, signal); // it may have been killed
}

/// VmHWM of /proc/PID/status (proc(5)), which exec resets; 0 if it is not known. Where /proc shows
/// another PID namespace, the number is that of another process, which is not traced.
fn peak_kib(task: Pid) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{task}/status")).unwrap_or_default();
    if field(&status, "TracerPid:") == 0 { 0 } else { field(&status, "VmHWM:") }
}

/// A number in a status file.
fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or_default()
}
