//! This test program, run again in a namespace in another role: entering one in this process needs unsafe code.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdin, Command, Stdio};

use super::netns::Namespace;

const ROLE: &str = "CNI_LAB_ROLE";

/// The role of this process; empty where it runs the tests.
pub fn role() -> String {
    std::env::var(ROLE).unwrap_or_default()
}

/// The process of a role, which `test` plays when it finds [`role`] set. What it says is on stderr.
pub fn command(at: &Namespace, test: &str, role: &str) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = at.command(program.to_str().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(ROLE, role);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// A process, until this is dropped.
pub struct Again {
    pub child: Child,
    pub stdin: ChildStdin,
}

impl Again {
    pub fn start(at: &Namespace, test: &str, role: &str) -> Again {
        Again::of(command(at, test, role).spawn().unwrap())
    }

    /// Any process that has its stdin from this one.
    pub fn of(mut child: Child) -> Again {
        let stdin = child.stdin.take().unwrap();
        Again { child, stdin }
    }

    /// A server, once it listens.
    pub fn listening(at: &Namespace, test: &str, role: &str) -> Again {
        let mut server = Again::start(at, test, role);
        let mut said = String::new();
        let stderr = server.child.stderr.as_mut().unwrap();
        BufReader::with_capacity(1, stderr).read_line(&mut said).unwrap(); // the rest is the caller's
        assert_eq!(said, "listening\n");
        server
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

/// Ends this process when stdin closes, which means that the parent process is gone.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::abort();
    });
}
