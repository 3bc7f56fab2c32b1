//! How fast a stream of TCP is, second by second.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use super::netns::{Lab, Namespace};

/// The test that sends or receives when this is set: this very program, run again in a namespace.
const ROLE: &str = "CNI_LAB_FLOW_ROLE";
const ROLE_TEST: &str = "support::flow::a_stream_is_measured_second_by_second";

/// A packet as a queue counts it, with its Ethernet header, in a network whose MTU is that of Ethernet.
const PACKET: u64 = 1514;
/// What of it is no payload, with the timestamps of TCP: IPv4, IPv6.
const HEADERS: [u64; 2] = [14 + 20 + 32, 14 + 40 + 32];

/// A stream that flows until this is dropped.
pub struct Flow {
    receiver: Child,
    sender: Child,
    _stdin: [ChildStdin; 2],
    family: usize,
}

impl Flow {
    /// From one namespace to an address of another: as fast as it can, for so many seconds.
    pub fn start(from: &Namespace, to: &Namespace, address: &str, seconds: usize) -> Flow {
        const PORT: u16 = 5001;
        let mut receiver = again(to, &format!("receive {PORT} {seconds}"));
        let mut said = String::new();
        let stderr = receiver.stderr.as_mut().unwrap();
        BufReader::with_capacity(1, stderr).read_line(&mut said).unwrap();
        assert_eq!(said, "listening\n");
        let family = usize::from(address.contains(':'));
        let to = if family == 1 { format!("[{address}]:{PORT}") } else { format!("{address}:{PORT}") };
        let mut sender = again(from, &format!("send {to}"));
        let stdin = [receiver.stdin.take().unwrap(), sender.stdin.take().unwrap()];
        Flow { receiver, sender, _stdin: stdin, family }
    }

    /// Waits for the end; the bits of each second as a queue counted them, the first one from the first byte on.
    pub fn finish(mut self) -> Vec<u64> {
        let mut said = String::new();
        self.receiver.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let counts = said.lines().find_map(|line| line.strip_prefix("received ")).unwrap_or_else(|| panic!("{said}"));
        let in_queue = |payload: u64| payload * 8 * PACKET / (PACKET - HEADERS[self.family]);
        counts.split(' ').map(|count| in_queue(count.parse().unwrap())).collect()
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        for child in [&mut self.receiver, &mut self.sender] {
            let _ = child.kill(); // it may have ended by itself
            let _ = child.wait();
        }
    }
}

/// The bits of each second of a stream.
pub fn measure(from: &Namespace, to: &Namespace, address: &str, seconds: usize) -> Vec<u64> {
    Flow::start(from, to, address, seconds).finish()
}

/// Every second but the first has so many bits, within a twentieth.
#[track_caller]
pub fn assert_rate(seconds: &[u64], rate: u64) {
    let within = (rate - rate / 20)..=(rate + rate / 20);
    assert!(seconds[1..].iter().all(|bits| within.contains(bits)), "{seconds:?} bits a second, expected {rate}");
}

fn again(at: &Namespace, role: &str) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command: Command = at.command(program.to_str().unwrap());
    command.args([ROLE_TEST, "--exact", "--nocapture"]).env(ROLE, role);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_stream_is_measured_second_by_second() {
    let role = std::env::var(ROLE).unwrap_or_default();
    match *role.split(' ').collect::<Vec<_>>() {
        ["receive", port, seconds] => receive(port.parse().unwrap(), seconds.parse().unwrap()),
        ["send", to] => send(to.parse().unwrap()),
        _ => {
            let lab = Lab::new(super::call::Peer::Ours);
            lab.host.sh("tc qdisc add dev uplink root tbf rate 8mbit burst 32kb latency 25ms");
            assert_rate(&measure(&lab.host, &lab.outside, "198.51.100.2", 3), 8_000_000);
            lab.host.sh("tc qdisc del dev uplink root");
            let unlimited = measure(&lab.host, &lab.outside, "2001:db8:ffff::2", 2);
            assert!(unlimited.iter().all(|bits| *bits > 100_000_000), "{unlimited:?}");
        }
    }
}

/// The pipe closes when whoever started us is gone.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::abort();
    });
}

fn receive(port: u16, seconds: usize) {
    let listener = TcpListener::bind(("::", port)).unwrap();
    end_with_parent();
    eprintln!("listening");
    let (mut stream, _) = listener.accept().unwrap();
    let mut buffer = vec![0; 64 * 1024];
    let mut counts = vec![0; seconds];
    let mut begun: Option<Instant> = None;
    loop {
        let length = stream.read(&mut buffer).unwrap();
        assert_ne!(length, 0, "the sender has gone");
        let second = begun.get_or_insert_with(Instant::now).elapsed().as_secs() as usize;
        match counts.get_mut(second) {
            Some(count) => *count += length,
            None => break,
        }
    }
    eprintln!("received {}", counts.iter().map(usize::to_string).collect::<Vec<_>>().join(" "));
}

fn send(to: SocketAddr) {
    end_with_parent();
    let deadline = Instant::now() + Duration::from_secs(6); // an address can be tentative, a neighbour unresolved
    let mut stream = loop {
        match TcpStream::connect_timeout(&to, Duration::from_secs(2)) {
            Ok(stream) => break stream,
            Err(e) => assert!(Instant::now() < deadline, "connect to {to}: {e}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let buffer = vec![0; 64 * 1024];
    while stream.write_all(&buffer).is_ok() {} // until the receiver has enough
}
