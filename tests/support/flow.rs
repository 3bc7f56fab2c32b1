//! The rate of a TCP stream, second by second, counted by what arrives at the namespace and not by
//! what the receiver reads, since TCP holds back the data after a gap.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::again::{Again, end_with_parent, role};
use super::extent::is_emulated;
use super::netns::{Lab, Namespace};
use super::networks::portmap::at;
use super::patience;

/// The test below, which sends or receives.
const TEST: &str = "support::flow::a_stream_is_measured_second_by_second";

/// Bytes that a queue counts and the IP counters do not: the Ethernet header of each packet, and
/// the TCP header with timestamps that each further packet of a super-packet adds.
const ETHERNET: u64 = 14;
const TCP: u64 = 32;

/// A stream that flows until this is dropped.
pub struct Flow {
    receiver: Again,
    _sender: Again,
}

impl Flow {
    /// Streams from one namespace to an address of another, as fast as it can, for this many
    /// seconds.
    pub fn start(from: &Namespace, to: &Namespace, address: &str, seconds: usize) -> Flow {
        const PORT: u16 = 5001;
        let receiver = Again::listening(to, TEST, &format!("receive {PORT} {seconds}"));
        let sender = Again::start(from, TEST, &format!("send {}", at(address, PORT)));
        Flow { receiver, _sender: sender }
    }

    /// Waits for the end; returns the bits of each second as a queue counts them. The first second
    /// starts with the first byte.
    pub fn finish(mut self) -> Vec<u64> {
        let mut said = String::new();
        self.receiver.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let counts = said.lines().find_map(|line| line.strip_prefix("received "));
        let counts = counts.unwrap_or_else(|| panic!("{said}"));
        counts.split(' ').map(|count| count.parse().unwrap()).collect()
    }
}

/// The bits of each second of a stream.
pub fn measure(from: &Namespace, to: &Namespace, address: &str, seconds: usize) -> Vec<u64> {
    Flow::start(from, to, address, seconds).finish()
}

/// Asserts that a stream has this rate after the first second, within a twentieth, and returns the
/// bits of each second. A busy machine makes a stream slower, never faster, so a slow result is
/// retried.
#[track_caller]
pub fn assert_rate(from: &Namespace, to: &Namespace, address: &str, rate: u64) -> Vec<u64> {
    let mut tried = vec![];
    for _ in 0..5 {
        let seconds = measure(from, to, address, 4);
        let mean = seconds[1..].iter().sum::<u64>() / 3;
        assert!(mean <= rate + rate / 20, "{seconds:?} bits a second, expected {rate}");
        if mean >= rate - rate / 20 || is_emulated() {
            return seconds;
        }
        tried.push(seconds);
    }
    panic!("{tried:?} bits a second, expected {rate}");
}

#[test]
fn a_stream_is_measured_second_by_second() {
    match *role().split(' ').collect::<Vec<_>>() {
        ["receive", port, seconds] => receive(port.parse().unwrap(), seconds.parse().unwrap()),
        ["send", to] => send(to.parse().unwrap()),
        _ => {
            let lab = Lab::new(super::call::Peer::Ours);
            lab.host.sh("tc qdisc add dev uplink root tbf rate 8mbit burst 32kb latency 25ms");
            assert_rate(&lab.host, &lab.outside, "198.51.100.2", 8_000_000);
            lab.host.sh("tc qdisc del dev uplink root");
            let unlimited = measure(&lab.host, &lab.outside, "2001:db8:ffff::2", 2);
            assert!(unlimited.iter().all(|bits| *bits > 100_000_000), "{unlimited:?}");
        }
    }
}

fn receive(port: u16, count: usize) {
    let listener = TcpListener::bind(("::", port)).unwrap();
    end_with_parent();
    eprintln!("listening");
    let (mut stream, _) = listener.accept().unwrap();
    let mut buffer = vec![0; 64 * 1024];
    stream.read_exact(&mut buffer[..1]).unwrap();
    std::thread::spawn(move || while stream.read(&mut buffer).is_ok_and(|length| length > 0) {});
    let (mut last, mut since) = (received(), Instant::now());
    let mut seconds = vec![];
    for _ in 0..count {
        std::thread::sleep(Duration::from_secs(1).saturating_sub(since.elapsed()));
        let (now, elapsed) = (received(), since.elapsed());
        since += elapsed;
        seconds.push(((now - last) as f64 * 8.0 / elapsed.as_secs_f64()) as u64);
        last = now;
    }
    eprintln!("received {}", seconds.iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
}

/// The bytes that this namespace has received, as queues count them.
fn received() -> u64 {
    let (v4, v4_more) = (
        counters_in_rows("/proc/self/net/snmp", "Ip:"),
        counters_in_rows("/proc/self/net/netstat", "IpExt:"),
    );
    let v6 = std::fs::read_to_string("/proc/self/net/snmp6").unwrap_or_default();
    let v6: HashMap<_, _> =
        v6.lines().filter_map(|line| counter(line.split_whitespace())).collect();
    let of = |counters: &HashMap<String, u64>, name: &str| {
        counters.get(name).copied().unwrap_or_default()
    };
    // The IP counters count a super-packet of several packets as one.
    let bytes = |octets, packets, received: u64, headers| {
        octets + packets * ETHERNET + (packets - received.min(packets)) * headers
    };
    bytes(of(&v4_more, "InOctets"), of(&v4_more, "InNoECTPkts"), of(&v4, "InReceives"), 20 + TCP)
        + bytes(
            of(&v6, "Ip6InOctets"),
            of(&v6, "Ip6InNoECTPkts"),
            of(&v6, "Ip6InReceives"),
            40 + TCP,
        )
}

/// Parses a row of names and a row of values that start with the same word.
fn counters_in_rows(path: &str, head: &str) -> HashMap<String, u64> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut rows =
        text.lines().filter_map(|line| line.strip_prefix(head)).map(str::split_whitespace);
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    names.zip(values).filter_map(|(name, value)| counter([name, value].into_iter())).collect()
}

fn counter<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<(String, u64)> {
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}

fn send(to: SocketAddr) {
    end_with_parent();
    let deadline = Instant::now() + patience(6); // an address can be tentative, a neighbour unresolved
    let mut stream = loop {
        match TcpStream::connect_timeout(&to, patience(2)) {
            Ok(stream) => break stream,
            Err(e) => assert!(Instant::now() < deadline, "connect to {to}: {e}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let buffer = vec![0; 64 * 1024];
    while stream.write_all(&buffer).is_ok() {} // until the receiver closes the stream
}
