//! The configuration as a byte stream: endless, too large, too deep. `protocol::decode` and
//! `protocol::stdin` test errors within the limits.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Instant;

use cni_multi::cni::json;

use super::{bounded, is_answer};
use crate::docs;
use crate::support::call::{Call, Outcome, Peer};
use crate::support::patience;
use crate::support::stdin::spawn;

const MEGABYTE: usize = 1 << 20;

/// The plugin's process under limits of time and memory.
fn limited(plugin: &str) -> Call {
    bounded(Call::new(&Peer::Ours, plugin, "ADD", "")).env("PATH", std::env::var("PATH").unwrap())
}

#[test]
fn a_configuration_without_end_is_not_read_to_the_end() {
    for [plugin, _, _] in docs::plugins() {
        let started = Instant::now();
        let mut child = spawn(&limited(&plugin), Stdio::piped());
        let mut stdin = child.stdin.take().unwrap();
        let megabyte = vec![b' '; MEGABYTE];
        let written = (0..1000).take_while(|_| stdin.write_all(&megabyte).is_ok()).count();
        assert!(written < 80, "{plugin} has read {written} MB");
        drop(stdin);
        let outcome = Outcome::of(child);
        let error = outcome.fails(5, "error reading from stdin: file too large");
        assert_eq!(error.details, "expected a configuration of at most 64 MiB");
        assert!(started.elapsed() < patience(20), "{plugin}");
    }
}

/// Every configuration within the size limit fits into the memory limit.
#[test]
fn the_largest_configurations_end_in_an_answer() {
    let size = 64 * MEGABYTE - 200;
    let objects = json::MOST_VALUES / 2 - 100;
    let texts = [
        ("many small values", format!("[{}0]", "0,".repeat(size / 2))),
        ("many small lists", format!("[{}0]", "[],".repeat(size / 3))),
        ("many small objects", format!("[{}0]", "{\"a\":0},".repeat(size / 8))),
        ("as many small objects as are read", format!("[{}0]", "{\"a\":0},".repeat(objects))),
        ("one string", format!("\"{}\"", "x".repeat(size))),
        ("one string of escapes", format!("\"{}\"", "\\u0000".repeat(size / 6))),
        ("depth", "[".repeat(size)),
        ("depth of objects", "{\"a\":".repeat(size / 5)),
        ("bytes that are no text", String::new()),
    ];
    for (what, text) in texts {
        let mut conf = format!("{{\"cniVersion\":\"1.1.0\",\"name\":\"net1\",\"type\":\"static\",\"x\":{text},\"ipam\":{{\"type\":\"static\"}}}}").into_bytes();
        if text.is_empty() {
            conf = vec![0xff; size];
        }
        let mut child = spawn(&limited("static"), Stdio::piped());
        let written = child.stdin.take().unwrap().write_all(&conf);
        let outcome = Outcome::of(child);
        let (status, stderr) = (outcome.status, &outcome.stderr);
        assert!(is_answer(&outcome) && written.is_ok(), "{what}: {status} {stderr}");
        assert!(outcome.stdout.len() < 10_000, "{what}: it is told again");
    }
}

/// A runtime that writes one byte at a time gets its answer.
#[test]
fn a_slow_writer_is_waited_for() {
    let mut child = spawn(&limited("static"), Stdio::piped());
    let mut stdin = child.stdin.take().unwrap();
    for byte in br#"{"cniVersion":"1.1.0","name":"net1","type":"static","ipam":{"type":"static"}}"# {
        stdin.write_all(&[*byte]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    drop(stdin);
    assert_eq!(Outcome::of(child).status, 0);
}
