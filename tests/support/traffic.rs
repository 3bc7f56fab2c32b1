//! Test traffic: pings and TCP, UDP and SCTP connections, which prove that a network works.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::attachment::ips;
use super::netns::{Lab, Namespace};
use super::patience;

/// The seconds within which a connection has to work: an address can be tentative, a neighbour
/// unresolved.
const PATIENCE: u64 = 6;

/// Whether one ping is answered within a second.
fn ping_once(from: &Namespace, to: &str, options: &str) -> bool {
    from.try_sh(&format!("ping -n -q -c1 -W1 {options} {to}")).status.success()
}

#[track_caller]
pub fn assert_pings(from: &Namespace, to: &str) {
    assert_pings_with(from, to, "");
}

/// As `assert_pings`, with options such as `-M do -s 1472` or `-I ADDRESS`.
#[track_caller]
pub fn assert_pings_with(from: &Namespace, to: &str, options: &str) {
    let deadline = Instant::now() + patience(PATIENCE);
    while !ping_once(from, to, options) {
        let state = || from.sh("ip addr; ip route; ip -6 route; ip neigh");
        assert!(
            Instant::now() < deadline,
            "no answer to `ping {options} {to}` from a namespace with\n{}",
            state()
        );
        std::thread::sleep(Duration::from_millis(20)); // "network unreachable" comes back at once
    }
}

/// The containers of a network without addresses exchange frames.
#[track_caller]
pub fn assert_carry_frames(a: &Namespace, b: &Namespace) {
    a.sh("ip addr add 10.30.0.1/24 dev eth0");
    b.sh("ip addr add 10.30.0.2/24 dev eth0");
    assert_pings(a, "10.30.0.2");
}

/// The largest packet of an MTU passes in one piece, and a larger one does not.
#[track_caller]
pub fn assert_mtu_passes(from: &Namespace, to: &str, mtu: u64) {
    assert_pings_with(from, to, &format!("-M do -s {}", mtu - 28));
    assert!(!ping_once(from, to, &format!("-M do -s {}", mtu - 27)), "a larger packet passes");
}

/// Whether one ping is answered within a second. A "no" proves something only next to a "yes".
pub fn is_answered(from: &Namespace, to: &str, options: &str) -> bool {
    ping_once(from, to, options)
}

/// Whether broadcasts to the network, given by its first three numbers, arrive. For frames that
/// pass in one direction only.
pub fn hears_broadcasts(at: &Namespace, from: &Namespace, network: &str) -> bool {
    let ear = Ear::listen(at);
    from.try_sh(&format!("ping -n -q -b -c3 -i0.2 -W0.2 {network}.255")); // a broadcast gets no answer
    ear.heard().iter().any(|source| source.starts_with(network))
}

/// Asserts that three pings in a row stay unanswered. This proves something only next to a ping
/// that is answered.
#[track_caller]
pub fn assert_no_ping(from: &Namespace, to: &str) {
    let output = from.try_sh(&format!("ping -n -q -c3 -i0.1 -W0.3 {to}"));
    assert!(!output.status.success(), "{to} answers, and should not");
}

/// Records every source address that arrives in a namespace, until dropped.
pub struct Ear<'a>(&'a Namespace);

impl<'a> Ear<'a> {
    pub fn listen(at: &'a Namespace) -> Ear<'a> {
        at.sh(r#"nft -f - <<'END'
table inet ear {
  set v4 { type ipv4_addr; flags dynamic; size 64; }
  set v6 { type ipv6_addr; flags dynamic; size 64; }
  chain input { type filter hook input priority -300; meta l4proto { icmp, tcp } update @v4 { ip saddr };
    icmpv6 type { echo-request, echo-reply } update @v6 { ip6 saddr }; tcp dport != 0 update @v6 { ip6 saddr }; }
}
END"#);
        Ear(at)
    }

    /// The sources of pings and connections since the start.
    pub fn heard(&self) -> Vec<String> {
        let mut sources = Vec::new();
        for set in ["v4", "v6"] {
            let listing = self.0.json(&format!("nft -j list set inet ear {set}"));
            let elements = listing["nftables"]
                .as_array()
                .unwrap()
                .iter()
                .find_map(|o| o["set"]["elem"].as_array());
            // An element is a string, or an object where nft prints its attributes.
            let text = |e: &serde_json::Value| {
                e.as_str()
                    .or_else(|| e["elem"]["val"].as_str())
                    .unwrap_or_else(|| panic!("set element {e}"))
                    .to_owned()
            };
            sources.extend(elements.into_iter().flatten().map(text));
        }
        sources
    }
}

impl Drop for Ear<'_> {
    fn drop(&mut self) {
        let _ = self.0.try_sh("nft delete table inet ear"); // the namespace may be gone
    }
}

/// Two containers of a dual-stack network ping each other and connect by TCP; each sees the other's
/// own address.
pub fn assert_two_containers_talk(lab: &Lab, dual_stack: &Value) {
    let (a, b) = (lab.container(), lab.container_of_process());
    let first = ips(&lab.attach(&a, dual_stack).add());
    let second = ips(&lab.attach(&b, dual_stack).add());
    let _server = TcpServer::start(&b, 80);
    assert_pings(&a, &second[1]);
    assert_eq!(connect(&a, &format!("{}:80", second[0])), Some(first[0].clone()));
    assert_eq!(connect(&a, &format!("[{}]:80", second[1])), Some(first[1].clone()));
}

/// The container reaches the peer outside, which has no route back, so its packets must carry the
/// host's address.
#[track_caller]
pub fn assert_masqueraded(lab: &Lab, from: &Namespace, source: &str) {
    let family = usize::from(source.contains(':'));
    let ear = Ear::listen(&lab.outside);
    assert_pings_with(from, super::netns::OUTSIDE[family], &format!("-I {source}"));
    assert_eq!(
        ear.heard(),
        [super::netns::UPLINK[family]],
        "the outside sees the host's address only"
    );
}

/// The container's packets reach the peer outside with their own source address, and get no answer.
#[track_caller]
pub fn assert_not_masqueraded(lab: &Lab, from: &Namespace, source: &str) {
    let family = usize::from(source.contains(':'));
    let ear = Ear::listen(&lab.outside);
    let deadline = Instant::now() + patience(PATIENCE);
    loop {
        assert!(
            !ping_once(from, super::netns::OUTSIDE[family], &format!("-I {source}")),
            "the outside has no route back, and answered"
        );
        let heard = ear.heard();
        if !heard.is_empty() {
            assert_eq!(heard, [source], "the outside sees the container's own address");
            return;
        }
        assert!(Instant::now() < deadline, "no packet from {source} reached the outside");
    }
}

/// A TCP server in a namespace that answers every connection with the client's address. It ends
/// when dropped.
pub struct TcpServer {
    child: Child,
    _stdin: ChildStdin,
}

/// When this variable is set, the test below acts as a server or a client: this test program, run
/// again in a namespace (entering one in this process needs unsafe code).
const ROLE: &str = "CNI_LAB_TCP_ROLE";
const ROLE_TEST: &str = "support::traffic::tcp_server_answers_with_the_address_it_sees";

fn again(at: &Namespace, role: &str) -> std::process::Command {
    let program = std::env::current_exe().unwrap();
    let mut command = at.command(program.to_str().unwrap());
    command
        .args([ROLE_TEST, "--exact", "--nocapture"])
        .env(ROLE, role)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

impl TcpServer {
    pub fn start(at: &Namespace, port: u16) -> TcpServer {
        TcpServer::of(at, &format!("serve {port}"))
    }

    fn of(at: &Namespace, role: &str) -> TcpServer {
        let mut child = again(at, role).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "listening\n");
        TcpServer { child, _stdin: stdin }
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

/// The address that the server at `to` (`10.1.2.3:80`) sees when `from` connects; None without an
/// answer.
pub fn connect(from: &Namespace, to: &str) -> Option<String> {
    seen(from, &format!("connect {to}"))
}

/// As `connect`, by UDP. The source port is fixed, so that conntrack sees all requests to one
/// server as one flow.
pub fn ask_by_udp(from: &Namespace, to: &str) -> Option<String> {
    seen(from, &format!("ask {to}"))
}

fn seen(from: &Namespace, role: &str) -> Option<String> {
    let output = again(from, role).output().unwrap();
    String::from_utf8(output.stderr)
        .unwrap()
        .lines()
        .find_map(|l| l.strip_prefix("seen ").map(str::to_owned))
}

/// As `TcpServer`, for UDP.
pub struct UdpServer(#[expect(dead_code, reason = "serves until it is dropped")] TcpServer);

impl UdpServer {
    pub fn start(at: &Namespace, port: u16) -> UdpServer {
        UdpServer(TcpServer::of(at, &format!("serve-udp {port}")))
    }

    /// A server that answers its first request without end, a thousand times a second.
    pub fn start_endless(at: &Namespace, port: u16) -> UdpServer {
        UdpServer(TcpServer::of(at, &format!("answer-without-end {port}")))
    }
}

/// As `TcpServer`, for SCTP. It runs socat, since the standard library has no SCTP.
pub struct SctpServer(Child);

impl SctpServer {
    /// None if the kernel has no SCTP.
    pub fn start(at: &Namespace, port: u16) -> Option<SctpServer> {
        let listen = format!("SCTP6-LISTEN:{port},ipv6only=0,fork,reuseaddr");
        let mut command = at.command("socat");
        command.args([&listen, "SYSTEM:read question; echo $SOCAT_PEERADDR"]);
        let mut server = SctpServer(command.stderr(Stdio::null()).spawn().unwrap());
        let deadline = Instant::now() + patience(PATIENCE);
        while at.sh(&format!("ss -HlnS 'sport = :{port}'")).is_empty() {
            if server.0.try_wait().unwrap().is_some() {
                return None; // the kernel refuses the socket
            }
            assert!(Instant::now() < deadline, "socat does not listen on port {port}");
        }
        Some(server)
    }
}

impl Drop for SctpServer {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended by itself
        let _ = self.0.wait();
    }
}

/// As `connect`, by SCTP.
pub fn connect_by_sctp(from: &Namespace, to: &str) -> Option<String> {
    let client =
        format!("timeout 10 socat -t0 SCTP:{to} SYSTEM:'echo; read answer; echo $answer >&2' 2>&1");
    let seen = String::from_utf8(from.try_sh(&client).stdout).unwrap();
    let seen: IpAddr = seen.trim().trim_matches(['[', ']']).parse().ok()?;
    Some(seen.to_canonical().to_string())
}

/// The server outside listens on port 80 only.
#[track_caller]
fn assert_answers_with_the_host(lab: &Lab, ask: fn(&Namespace, &str) -> Option<String>) {
    assert_eq!(ask(&lab.host, "198.51.100.2:80").as_deref(), Some("198.51.100.1"));
    assert_eq!(ask(&lab.host, "[2001:db8:ffff::2]:80").as_deref(), Some("2001:db8:ffff::1"));
    assert_eq!(ask(&lab.host, "198.51.100.2:81"), None);
}

#[test]
fn sctp_server_answers_with_the_address_it_sees() {
    let lab = Lab::new(super::call::Peer::Ours);
    let Some(_server) = SctpServer::start(&lab.outside, 80) else {
        return super::attachment::skip("sctp");
    };
    assert_answers_with_the_host(&lab, connect_by_sctp);
}

#[test]
fn udp_server_answers_with_the_address_it_sees() {
    let lab = Lab::new(super::call::Peer::Ours);
    let _server = UdpServer::start(&lab.outside, 80);
    for _ in 0..2 {
        assert_answers_with_the_host(&lab, ask_by_udp);
    }
}

#[test]
fn tcp_server_answers_with_the_address_it_sees() {
    let role = std::env::var(ROLE).unwrap_or_default();
    match role.split_once(' ') {
        Some(("serve", port)) => serve(port.parse().unwrap()),
        Some(("serve-udp", port)) => serve_udp(port.parse().unwrap()),
        Some(("answer-without-end", port)) => answer_without_end(port.parse().unwrap()),
        Some(("connect", to)) => say(ask(to.parse().unwrap())),
        Some(("ask", to)) => say(ask_udp(to.parse().unwrap())),
        _ => {
            let lab = Lab::new(super::call::Peer::Ours);
            let _server = TcpServer::start(&lab.outside, 80);
            assert_eq!(connect(&lab.host, "198.51.100.2:80").as_deref(), Some("198.51.100.1"));
            assert_eq!(
                connect(&lab.host, "[2001:db8:ffff::2]:80").as_deref(),
                Some("2001:db8:ffff::1")
            );
            assert_eq!(connect(&lab.host, "198.51.100.2:81"), None);
        }
    }
}

fn say(answer: std::io::Result<String>) {
    eprintln!(
        "{}",
        answer.map_or_else(|e| format!("no answer: {e}"), |seen| format!("seen {seen}"))
    );
}

/// Ends when stdin closes, which means that the parent process is gone.
fn serve_until_the_end_of_stdin() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::abort();
    });
    eprintln!("listening");
}

fn serve_udp(port: u16) {
    let socket = UdpSocket::bind(("::", port)).unwrap();
    serve_until_the_end_of_stdin();
    loop {
        let Ok((_, from)) = socket.recv_from(&mut [0; 16]) else { continue }; // an earlier answer's error
        let _ = socket.send_to(from.ip().to_canonical().to_string().as_bytes(), from); // the client may be gone
    }
}

fn answer_without_end(port: u16) {
    let socket = UdpSocket::bind(("::", port)).unwrap();
    serve_until_the_end_of_stdin();
    let (_, from) = socket.recv_from(&mut [0; 16]).unwrap();
    loop {
        let _ = socket.send_to(b"!", from); // the client may be gone
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a request, and a second one after a timeout: a packet may be lost while the neighbour is
/// resolved.
fn ask_udp(to: SocketAddr) -> std::io::Result<String> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 5000))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut answer = [0; 64];
    let mut ask = || {
        socket.send(b"?")?;
        socket.recv(&mut answer)
    };
    let length = match ask() {
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => ask()?,
        answered => answered?,
    };
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

fn serve(port: u16) {
    let listener = TcpListener::bind(("::", port)).unwrap();
    serve_until_the_end_of_stdin();
    for connection in listener.incoming() {
        let mut connection = connection.unwrap();
        let seen = connection.peer_addr().unwrap().ip().to_canonical();
        let _ = writeln!(connection, "{seen}"); // the client may be gone
    }
}

fn ask(to: SocketAddr) -> std::io::Result<String> {
    let mut connection = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
    connection.set_read_timeout(Some(patience(2)))?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer.trim().to_owned())
}
