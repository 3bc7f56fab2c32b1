//! Calls with a stdin other than a pipe that carries the configuration.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::call::{Call, Outcome};
use super::patience;
use super::programs::located;

/// Starts a call with the stdin of the case.
pub fn spawn(call: &Call, stdin: impl Into<Stdio>) -> Child {
    let line = [&call.wrapper[..], &[call.program.to_str().unwrap().to_owned()]].concat();
    Command::new(located(&line[0]))
        .args(&line[1..])
        .args(&call.args)
        .env_clear()
        .envs(&call.env)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs the call with a pipe that is never written to or closed; the call must not wait for its
/// stdin.
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
