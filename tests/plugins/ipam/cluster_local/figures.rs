//! What the daemon costs: memory, wake-ups, and writes to etcd.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::etcd_access::{Certificates, start_secure};
use super::rotation;
use crate::support::attachment::skip;
use crate::support::call::binary;
use crate::support::etcd::Etcd;
use crate::support::extent::{is_emulated, is_long};
use crate::support::node::{LISTENING, Node};

/// Addresses in plenty, in blocks of eight.
const PLENTY: &str = "10.1.0.0/16";
/// The limit of the daemon's memory, in kB.
const MEMORY: u64 = 8 << 10;
/// The same without the executable, which has at most 7.15 MB.
const OWN_MEMORY: u64 = MEMORY - 6544;
/// The same of a debug build.
const OWN_MEMORY_OF_DEBUG: u64 = 3 << 10;
/// The time from one beat to the next, less what a busy machine may add to one of them.
const BEAT: Duration = Duration::from_secs(25);

/// A number of the daemon's /proc/PID/status.
fn number(node: &Node, name: &str) -> u64 {
    let text = node.daemon_status(name);
    text.split(' ').next().unwrap().parse().unwrap()
}

/// etcd's own count of writes.
fn revision(etcd: &Etcd) -> u64 {
    let reply: Value =
        serde_json::from_str(&etcd.members[0].ctl("get x --write-out json")).unwrap();
    reply["header"]["revision"].as_u64().unwrap()
}

#[test]
fn in_plenty_a_thousand_adds_take_350_writes_at_most() {
    const ADDS: u64 = 200;
    let Some(etcd) = Etcd::one_with(&LISTENING) else { return };
    let one = Node::join(&etcd, 1);
    one.add(PLENTY, "first");
    let before = revision(&etcd);
    for number in 0..ADDS {
        one.add(PLENTY, &number.to_string());
    }
    let writes = revision(&etcd) - before;
    eprintln!("{ADDS} ADDs: {writes} writes");
    assert!(
        (1..=ADDS * 350 / 1000).contains(&writes),
        "{ADDS} ADDs: {writes} writes\n{}",
        one.log()
    );
}

/// With TLS, which has buffers and certificates.
#[test]
fn the_daemon_needs_eight_megabytes_at_most() {
    let Some(mut etcd) = Certificates::lab() else { return };
    start_secure(&mut etcd, "server");
    let one = rotation::node(&etcd, "client");
    for number in 0..130 {
        one.add(PLENTY, &number.to_string());
    }
    let [whole, own] = ["VmRSS", "RssAnon"].map(|name| number(&one, name));
    eprintln!("{whole} kB, of which {own} kB are no pages of files");
    // The pages of the debug build's executable are no measure, nor is what is relocated in them.
    let is_debug = binary().components().any(|part| part.as_os_str() == "debug");
    assert!(is_debug || whole <= MEMORY, "{whole} kB");
    assert!(own <= if is_debug { OWN_MEMORY_OF_DEBUG } else { OWN_MEMORY }, "{own} kB");
}

/// The event loop has context switches only for its beats.
#[test]
fn an_idle_daemon_wakes_up_only_for_its_beats() {
    let Some(etcd) = Etcd::one_with(&LISTENING) else { return };
    if is_emulated() {
        return skip(
            "a machine that is not emulated: its own delays are as long as what is measured",
        );
    }
    let nodes = [1, 2].map(|number| Node::join(&etcd, number));
    nodes.iter().for_each(|node| drop(node.add(PLENTY, "a")));
    let one = &nodes[0];
    std::thread::sleep(Duration::from_secs(1)); // the last disconnect may be pending
    let switches =
        || number(one, "voluntary_ctxt_switches") + number(one, "nonvoluntary_ctxt_switches");
    let (begin, mut last) = (Instant::now(), switches());
    let mut wakes: Vec<Duration> = vec![];
    let seconds = if is_long() { 75 } else { 20 };
    while begin.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(50));
        let now = switches();
        let is_new =
            wakes.last().is_none_or(|wake| begin.elapsed() - *wake > Duration::from_secs(2));
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
