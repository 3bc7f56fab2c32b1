//! What is written to stdout, and the errors when it cannot be written.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use super::{host_local_conf, static_conf};
use crate::support::call::{Call, Peer};
use crate::support::peers::peers;
use crate::support::scratch::Scratch;

peers! {
    stdout_is_one_document_and_stderr_is_silent,
    result_that_cannot_be_written_is_a_failure,
    closed_stdout_is_a_failure_and_no_file_gets_its_number,
    error_that_cannot_be_written_is_told_on_stderr,
}

/// Runs the call with stdout on /dev/full.
fn with_full_stdout(call: &Call) -> Output {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut child = Command::new(&call.program)
        .env_clear()
        .envs(&call.env)
        .stdin(Stdio::piped())
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&call.stdin).unwrap();
    child.wait_with_output().unwrap()
}

fn stdout_is_one_document_and_stderr_is_silent(peer: &Peer) {
    let good = Call::new(peer, "static", "ADD", static_conf("1.1.0")).run();
    let bad = Call::new(peer, "static", "ADD", static_conf("9.9.9")).run();
    for outcome in [&good, &bad] {
        outcome.json();
        assert!(
            outcome.stdout.starts_with("{\n    \"") && outcome.stdout.ends_with("\n}"),
            "{outcome:?}"
        );
        assert_eq!(outcome.stderr, "");
    }
    assert_eq!((good.status, bad.status), (0, 1));
}

/// The runtime never learns of the attachment, so ours undoes it; the reference leaves it.
fn result_that_cannot_be_written_is_a_failure(peer: &Peer) {
    let data = Scratch::new();
    let output =
        with_full_stdout(&Call::new(peer, "host-local", "ADD", host_local_conf("1.1.0", &data)));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_ne!(output.stderr, b"");
    assert_eq!(data.join("net-1/10.1.2.2").exists(), *peer != Peer::Ours);
}

/// The first file opened takes the number of the closed descriptor, and would get the result.
fn closed_stdout_is_a_failure_and_no_file_gets_its_number(peer: &Peer) {
    let data = Scratch::new();
    let mut call = Call::new(peer, "host-local", "ADD", host_local_conf("1.1.0", &data));
    call.wrapper = ["sh", "-c", r#"exec "$0" "$@" >&-"#].map(str::to_owned).to_vec();
    let outcome = call.run();
    if *peer == Peer::Ours {
        assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""), "{outcome:?}");
        assert!(outcome.stderr.contains("write to stdout: bad file descriptor"), "{outcome:?}");
        assert!(!data.join("net-1/10.1.2.2").exists());
    }
    let lock = std::fs::read_to_string(data.join("net-1/lock")).unwrap();
    assert_eq!(lock, "", "the result was written to the lock file");
}

fn error_that_cannot_be_written_is_told_on_stderr(peer: &Peer) {
    let output = with_full_stdout(&Call::new(peer, "static", "NOPE", static_conf("1.1.0")));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_ne!(output.stderr, b"");
}
