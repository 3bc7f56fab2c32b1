//! Other processes (proc(5)), children that run code of this process (fork(2) without exec), and the
//! limits of this process (getrlimit(2)).

use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use super::signals::ForwardedSignals;
use crate::error::{Code, Error, Result};
use crate::plain_file::identity;

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

/// The limit of a process without one that can be read.
const USUAL: usize = 1024;

/// Raises the limit of open descriptors to the hard one: the usual limit is meant for programs with
/// select(2). Returns how many may be open.
pub fn raise_descriptors() -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return USUAL };
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard); // on failure the old limit stays
    usize::try_from(if raised.is_ok() { hard } else { soft }).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd as _;
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
