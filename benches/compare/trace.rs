//! Counts the processes and threads that a call starts, and their peak memory, with ptrace.
//!
//! wait4's ru_maxrss does not work for a small program: exec adds the parent's memory to the peak.
//! The peak of the new program alone is read from /proc when the process is about to exit.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::Result;
use crate::namespaces::SCRATCH;
use crate::process::Invocation;

/// What one call started.
#[derive(Clone, Copy, Default)]
pub struct Trace {
    /// Processes other than the called one.
    pub processes: u32,
    /// Threads other than the first of each process.
    pub threads: u32,
    /// Peak resident memory of the largest process.
    pub peak_kib: u64,
}

impl std::ops::AddAssign for Trace {
    fn add_assign(&mut self, other: Trace) {
        self.processes += other.processes;
        self.threads += other.threads;
        self.peak_kib = self.peak_kib.max(other.peak_kib);
    }
}

/// Runs the call under trace; returns its stdout if it succeeded.
pub fn run(invocation: &Invocation) -> Result<(Trace, String)> {
    let root = start(invocation)?;
    let mut tracer =
        Tracer { root, trace: Trace::default(), seen: BTreeSet::from([root]), success: false };
    tracer.follow()?;
    let stdout = std::fs::read_to_string(format!("{SCRATCH}/traced.stdout")).unwrap_or_default();
    if tracer.success {
        Ok((tracer.trace, stdout))
    } else {
        Err(format!("{} failed under trace: {stdout}", invocation.describe()))
    }
}

/// Starts the program, stopped at its first instruction.
pub fn start(invocation: &Invocation) -> Result<libc::pid_t> {
    let open = |kind: &str| format!("{SCRATCH}/traced.{kind}");
    let create =
        |kind: &str| File::create(open(kind)).map_err(|e| format!("create {:?}: {e}", open(kind)));
    std::fs::write(open("stdin"), &invocation.stdin)
        .map_err(|e| format!("write {:?}: {e}", open("stdin")))?;
    let stdin = File::open(open("stdin")).map_err(|e| format!("open {:?}: {e}", open("stdin")))?;
    let mut command = Command::new(&invocation.program);
    command
        .args(&invocation.args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.envs(invocation.env.iter().map(|(name, value)| (name, value)));
    command.stdin(stdin).stdout(create("stdout")?).stderr(Stdio::null());
    // SAFETY: the closure makes system calls and nothing else.
    unsafe { command.pre_exec(ask_to_be_traced) };
    let child = command.spawn().map_err(|e| format!("start {}: {e}", invocation.describe()))?;
    libc::pid_t::try_from(child.id()).map_err(|e| format!("process id: {e}"))
}

fn ask_to_be_traced() -> std::io::Result<()> {
    // SAFETY: this request takes no pointers.
    let code = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0usize, 0usize) };
    if code == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

struct Tracer {
    root: libc::pid_t,
    trace: Trace,
    /// Tasks that have made their first stop; that stop is ptrace's own, not a signal to pass on.
    seen: BTreeSet<libc::pid_t>,
    success: bool,
}

impl Tracer {
    fn follow(&mut self) -> Result<()> {
        let options = libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACEEXEC
            | libc::PTRACE_O_TRACEEXIT
            | libc::PTRACE_O_EXITKILL;
        next_stop(self.root)?; // the stop of the first exec
        request(libc::PTRACE_SETOPTIONS, self.root, i64::from(options))?;
        request(libc::PTRACE_CONT, self.root, 0)?;
        while let Some((task, status)) = next_stop(-1)? {
            if libc::WIFSTOPPED(status) {
                let signal = self.on_stop(task, status);
                let _ = request(libc::PTRACE_CONT, task, i64::from(signal)); // the task may have been killed meanwhile
            } else if task == self.root {
                self.success = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
            }
        }
        Ok(())
    }

    /// Records the event and returns the signal to pass on.
    fn on_stop(&mut self, task: libc::pid_t, status: i32) -> i32 {
        match status >> 16 {
            libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                self.on_birth(task)
            }
            libc::PTRACE_EVENT_EXIT => self.on_exit(task),
            0 => {
                let first = self.seen.insert(task);
                let signal = libc::WSTOPSIG(status);
                return if (first && signal == libc::SIGSTOP) || signal == libc::SIGTRAP {
                    0
                } else {
                    signal
                };
            }
            _ => {} // exec: the kernel resets the peak by itself
        }
        0
    }

    fn on_birth(&mut self, parent: libc::pid_t) {
        let mut born: libc::c_ulong = 0;
        // SAFETY: the pointer is to a local that is as wide as the kernel writes.
        let code = unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, parent, 0, &raw mut born) };
        if code != 0 {
            return;
        }
        if status_field(born, "Tgid:") == Some(born) {
            self.trace.processes += 1
        } else {
            self.trace.threads += 1
        }
    }

    fn on_exit(&mut self, task: libc::pid_t) {
        let peak = status_field(u64::from(task.unsigned_abs()), "VmHWM:").unwrap_or(0);
        self.trace.peak_kib = self.trace.peak_kib.max(peak);
    }
}

/// The next task that stops or exits; `None` once all have exited.
pub fn next_stop(pid: libc::pid_t) -> Result<Option<(libc::pid_t, i32)>> {
    let mut status = 0;
    // SAFETY: the pointer is to a local of the right type.
    let task = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    if task > 0 {
        return Ok(Some((task, status)));
    }
    let error = std::io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ECHILD) {
        Ok(None)
    } else {
        Err(format!("wait for a traced process: {error}"))
    }
}

pub fn request(what: libc::c_uint, pid: libc::pid_t, data: i64) -> Result<()> {
    // SAFETY: the requests used here take a number, not a pointer, as data.
    let code = unsafe { libc::ptrace(what, pid, 0usize, data) };
    if code == 0 { Ok(()) } else { Err(format!("ptrace: {}", std::io::Error::last_os_error())) }
}

/// A number in /proc/TASK/status.
fn status_field(task: u64, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{task}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}
