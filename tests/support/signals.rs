//! Signals to the programs that a test has started.

use std::process::Child;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// Sends a signal to a child. After SIGSTOP it waits until every thread of the child has stopped: a thread on
/// another CPU continues for a moment after kill(2).
pub fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed());
    kill(pid, signal).unwrap();
    if signal == Signal::SIGSTOP {
        let state = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(pid), state).unwrap();
    }
}
