//! A limit on the time of a test's shell script: a loop that waits for what does not come would otherwise hold up the
//! whole run until its own limit.

use std::process::{Child, Command, Output};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::{patience, programs::located};

/// Waits for a script's output; None if it had to be killed.
pub fn output_of(script: Child) -> Option<Output> {
    output_within(script, patience(300))
}

fn output_within(script: Child, limit: Duration) -> Option<Output> {
    let pid = script.id();
    let (ended, end): (Sender<()>, _) = channel();
    thread::scope(|scope| {
        let killed = scope.spawn(move || {
            let is_late = end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if is_late {
                kill(pid);
            }
            is_late
        });
        let output = script.wait_with_output().unwrap();
        drop(ended);
        (!killed.join().unwrap()).then_some(output)
    })
}

/// Kills a shell and what it waits for, which may hold its output open.
fn kill(shell: u32) {
    let script = format!("kill -STOP {shell}; pkill -KILL -P {shell}; kill -KILL {shell}");
    Command::new(located("sh")).args(["-c", &script]).status().unwrap();
}

#[test]
fn a_script_that_does_not_end_is_killed() {
    let start = |script: &str| {
        let mut sh = Command::new(located("sh"));
        sh.args(["-c", script]).stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let short = Duration::from_millis(100);
    assert!(output_within(start("while :; do sleep 0.01; done"), short).is_none());
    assert!(output_within(start("sleep 1000; echo more"), short).is_none());
    let output = output_within(start("echo all"), Duration::from_secs(60)).unwrap();
    assert_eq!(output.stdout, b"all\n");
}
