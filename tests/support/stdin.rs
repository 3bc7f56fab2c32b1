//! Calls whose stdin is something else than a text.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::call::{Call, Outcome};
use super::patience;

/// The process of a call, its stdin being up to the case.
pub fn spawn(call: &Call, stdin: impl Into<Stdio>) -> Child {
    Command::new(&call.program)
        .args(&call.args)
        .env_clear()
        .envs(&call.env)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs the call with a pipe that nobody writes to or closes; it may not wait for one.
#[track_caller]
pub fn with_silent_stdin(call: &Call) -> Outcome {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut child = spawn(call, reader);
    let deadline = Instant::now() + patience(10);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{} waits for its stdin", call.program.display());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(writer);
    Outcome::of(child)
}
