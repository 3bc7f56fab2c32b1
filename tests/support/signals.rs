//! Signals to the programs that a test has started.

use std::process::Child;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// Sends a signal to a child. After SIGSTOP every thread of it stands still: one that runs on another
/// CPU goes on for a moment after kill(2).
pub fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed());
    kill(pid, signal).unwrap();
    if signal == Signal::SIGSTOP {
        let state = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(pid), state).unwrap();
    }
}
