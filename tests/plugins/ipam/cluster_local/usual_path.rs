//! The usual path of ADD and DEL: local files, and nothing else.

use std::time::{Duration, Instant};

use nix::libc;
use serde_json::json;

use super::{Net, subnet};
use crate::support::call::{Call, Peer};
use crate::support::scratch::Scratch;
use crate::support::tracer::{Then, old_calls, trace};

/// The system calls with which a process leaves its own files.
const OUTSIDE: [i64; 9] = [
    libc::SYS_socket,
    libc::SYS_connect,
    old_calls::SYS_fork,
    old_calls::SYS_vfork,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_execve,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
];

/// What a call does outside of its own files.
pub fn calls_outside(call: &Call) -> Vec<String> {
    let mut found = vec![];
    let traced = trace(call, |stop| {
        if stop.result.is_none() && OUTSIDE.contains(&stop.call) {
            found.push(stop.describe());
        }
        Then::Go
    });
    traced.outcome.ok();
    found
}

#[test]
fn add_and_del_need_no_socket_no_program_and_no_sync() {
    let data = Scratch::new();
    let ipam = json!({"ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]});
    let net = Net::new(&data, "net", ipam);
    for (command, id) in [("ADD", "a"), ("ADD", "b"), ("DEL", "a"), ("DEL", "b")] {
        assert_eq!(calls_outside(&net.call(command, id)), [""; 0], "{command} {id}");
    }
}

/// The shortest time of one call among several: others run on the machine, too.
fn shortest(calls: impl Iterator<Item = Call>) -> Duration {
    let time = |call: Call| {
        let begin = Instant::now();
        call.run().ok();
        begin.elapsed()
    };
    calls.map(time).min().unwrap()
}

/// The budget is 1.3. Other tests run beside this one, so the best of several measurements counts.
#[test]
fn add_takes_hardly_longer_than_that_of_host_local() {
    let least = (0..5).map(|_| ratio_to_host_local()).fold(f64::INFINITY, f64::min);
    eprintln!("ADD of cluster-local: {least:.2} x host-local");
    assert!(least < 1.3, "{least}");
}

/// The shortest ADD in the shortest ADDs of host-local.
fn ratio_to_host_local() -> f64 {
    let data = Scratch::new();
    let other = Scratch::new();
    let net = Net::new(&data, "net", subnet("10.1.0.0/16"));
    let theirs = |id: usize| {
        let changes = json!({"ipam": {"type": "host-local", "dataDir": other.text()}});
        Call::new(&Peer::Ours, "host-local", "ADD", net.conf(changes).to_string())
            .env("CNI_CONTAINERID", format!("c{id}"))
    };
    shortest((0..3).map(|id| net.call("ADD", &format!("w{id}"))));
    let [mut ours, mut reference] = [Duration::MAX; 2];
    for round in 0..10 {
        let ids = || round * 4..round * 4 + 4;
        ours = ours.min(shortest(ids().map(|id| net.call("ADD", &format!("c{id}")))));
        reference = reference.min(shortest(ids().map(theirs)));
    }
    ours.as_secs_f64() / reference.as_secs_f64()
}
