//! What the daemon costs: memory, wake-ups, and writes to etcd.

use std::time::{Duration, Instant};

use super::rotation;
use crate::support::attachment::skip;
use crate::support::call::binary;
use crate::support::extent::{is_emulated, is_long};
use crate::support::node::Node;

/// Addresses in plenty, in blocks of eight.
const PLENTY: &str = "10.1.0.0/16";
/// The limit of the daemon's memory, in kB.
const MEMORY: u64 = 8 << 10;
/// The same without the executable, which has at most 7.15 MB.
const OWN_MEMORY: u64 = MEMORY - 6544;
/// The same of a debug build.
const OWN_MEMORY_OF_DEBUG: u64 = 3 << 10;
/// How long the daemon may be awake for one beat.
const WAKE: Duration = Duration::from_secs(2);
/// The time from one beat to the next, less what a busy machine may add to one of them.
const BEAT: Duration = Duration::from_secs(25);

/// The sum of a number of /proc/PID/status over threads of the daemon.
fn sum(threads: &[String], name: &str) -> u64 {
    let of = |text: &String| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
    };
    threads.iter().map(of).sum()
}

#[test]
fn in_plenty_a_thousand_adds_take_350_writes_at_most() {
    const ADDS: u64 = 200;
    let Some((etcd, [one])) = Node::cluster() else { return };
    one.add(PLENTY, "first");
    let before = etcd.members[0].revision();
    for number in 0..ADDS {
        one.add(PLENTY, &number.to_string());
    }
    let writes = etcd.members[0].revision() - before;
    let figures = format!("{ADDS} ADDs: {writes} writes");
    eprintln!("{figures}");
    assert!((1..=ADDS * 350 / 1000).contains(&writes), "{figures}\n{}", one.log());
}

/// With TLS, which has buffers and certificates.
#[test]
fn the_daemon_needs_eight_megabytes_at_most() {
    let Some((_etcd, one)) = rotation::secure() else { return };
    for number in 0..130 {
        one.add(PLENTY, &number.to_string());
    }
    let [whole, own] = ["VmRSS", "RssAnon"].map(|name| sum(&one.daemon_threads()[..1], name));
    eprintln!("{whole} kB, of which {own} kB are no pages of files");
    // The pages of the debug build's executable are no measure, nor is what is relocated in them.
    let is_debug = binary().components().any(|part| part.as_os_str() == "debug");
    assert!(is_debug || whole <= MEMORY, "{whole} kB");
    assert!(own <= if is_debug { OWN_MEMORY_OF_DEBUG } else { OWN_MEMORY }, "{own} kB");
}

/// A wake-up is a context switch of any of its threads: of the event loop, and the worker that beats.
#[test]
fn an_idle_daemon_wakes_up_only_for_its_beats() {
    if is_emulated() {
        return skip(
            "a machine that is not emulated: its own delays are as long as what is measured",
        );
    }
    let Some((_etcd, nodes)) = Node::cluster::<2>() else { return };
    nodes.iter().for_each(|node| drop(node.add(PLENTY, "a")));
    let one = &nodes[0];
    std::thread::sleep(Duration::from_secs(1)); // the last disconnect may be pending
    let switches = || {
        let threads = one.daemon_threads();
        assert_eq!(threads.len(), 3);
        sum(&threads, "voluntary_ctxt_switches") + sum(&threads, "nonvoluntary_ctxt_switches")
    };
    let (begin, mut last) = (Instant::now(), switches());
    let mut wakes: Vec<Duration> = vec![];
    let seconds = if is_long() { 75 } else { 20 };
    while begin.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(50));
        let now = switches();
        // A beat is several switches.
        let is_new = wakes.last().is_none_or(|wake| begin.elapsed() - *wake > WAKE);
        if now != last && is_new {
            wakes.push(begin.elapsed());
        }
        last = now;
    }
    eprintln!("woken after {wakes:?}");
    assert!(!wakes.is_empty() || !is_long(), "beats are due");
    let gaps: Vec<Duration> = wakes.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| *gap >= BEAT), "{wakes:?}\n{}", one.log());
}
