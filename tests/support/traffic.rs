//! Test traffic: pings and TCP, UDP and SCTP connections, which prove that a network works.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::again::{Again, command, end_with_parent, role};
use super::attachment::ips;
use super::netns::{Lab, Namespace, OUTSIDE, UPLINK};
use super::patience;

/// The seconds within which a connection has to work: an address can be tentative, a neighbour
/// unresolved.
const PATIENCE: u64 = 6;

#[track_caller]
pub fn assert_pings(from: &Namespace, to: &str) {
    assert_pings_with(from, to, "");
}

/// As `assert_pings`, with options such as `-M do -s 1472` or `-I ADDRESS`.
#[track_caller]
pub fn assert_pings_with(from: &Namespace, to: &str, options: &str) {
    let deadline = Instant::now() + patience(PATIENCE);
    while !is_answered(from, to, options) {
        if Instant::now() > deadline {
            let state = from.sh("ip addr; ip route; ip -6 route; ip neigh");
            panic!("no answer to `ping {options} {to}` from a namespace with\n{state}");
        }
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
    assert!(!is_answered(from, to, &format!("-M do -s {}", mtu - 27)), "a larger packet passes");
}

/// Whether one ping is answered within a second. A "no" proves something only next to a "yes".
pub fn is_answered(from: &Namespace, to: &str, options: &str) -> bool {
    from.try_sh(&format!("ping -n -q -c1 -W1 {options} {to}")).status.success()
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
            let mut objects = listing["nftables"].as_array().unwrap().iter();
            let elements = objects.find_map(|o| o["set"]["elem"].as_array());
            // An element is a string, or an object where nft prints its attributes.
            let text = |e: &Value| {
                let text = e.as_str().or_else(|| e["elem"]["val"].as_str());
                text.unwrap_or_else(|| panic!("set element {e}")).to_owned()
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
    assert_pings_with(from, OUTSIDE[family], &format!("-I {source}"));
    assert_eq!(ear.heard(), [UPLINK[family]], "the outside sees the host's address only");
}

/// The container's packets reach the peer outside with their own source address, and get no answer.
#[track_caller]
pub fn assert_not_masqueraded(lab: &Lab, from: &Namespace, source: &str) {
    let family = usize::from(source.contains(':'));
    let ear = Ear::listen(&lab.outside);
    let deadline = Instant::now() + patience(PATIENCE);
    loop {
        assert!(
            !is_answered(from, OUTSIDE[family], &format!("-I {source}")),
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

/// The test below, which acts as the servers and the clients.
const TEST: &str = "support::traffic::tcp_server_answers_with_the_address_it_sees";

/// A TCP server in a namespace that answers every connection with the client's address. It ends
/// when dropped.
pub struct TcpServer(#[expect(dead_code, reason = "serves until it is dropped")] Again);

impl TcpServer {
    pub fn start(at: &Namespace, port: u16) -> TcpServer {
        TcpServer(Again::listening(at, TEST, &format!("serve {port}")))
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
    let output = command(from, TEST, role).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    said.lines().find_map(|line| line.strip_prefix("seen ").map(str::to_owned))
}

/// As `TcpServer`, for UDP.
pub struct UdpServer(#[expect(dead_code, reason = "serves until it is dropped")] Again);

impl UdpServer {
    pub fn start(at: &Namespace, port: u16) -> UdpServer {
        UdpServer(Again::listening(at, TEST, &format!("serve-udp {port}")))
    }

    /// A server that answers its first request without end, a thousand times a second.
    pub fn start_endless(at: &Namespace, port: u16) -> UdpServer {
        UdpServer(Again::listening(at, TEST, &format!("answer-without-end {port}")))
    }
}

/// As `TcpServer`, for SCTP. It runs socat, since the standard library has no SCTP.
pub struct SctpServer(Again);

impl SctpServer {
    /// None if the kernel has no SCTP.
    pub fn start(at: &Namespace, port: u16) -> Option<SctpServer> {
        let listen = format!("SCTP6-LISTEN:{port},ipv6only=0,fork,reuseaddr");
        let mut command = at.command("socat");
        command.args([&listen, "SYSTEM:read question; echo $SOCAT_PEERADDR"]);
        let mut server = SctpServer(Again::of(
            command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap(),
        ));
        let deadline = Instant::now() + patience(PATIENCE);
        while at.sh(&format!("ss -HlnS 'sport = :{port}'")).is_empty() {
            if server.0.child.try_wait().unwrap().is_some() {
                return None; // the kernel refuses the socket
            }
            assert!(Instant::now() < deadline, "socat does not listen on port {port}");
        }
        Some(server)
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
    match role().split_once(' ') {
        Some(("serve", port)) => serve(port.parse().unwrap()),
        Some(("serve-udp", port)) => serve_udp(port.parse().unwrap()),
        Some(("answer-without-end", port)) => answer_without_end(port.parse().unwrap()),
        Some(("connect", to)) => say(ask(to.parse().unwrap())),
        Some(("ask", to)) => say(ask_udp(to.parse().unwrap())),
        _ => {
            let lab = Lab::new(super::call::Peer::Ours);
            let _server = TcpServer::start(&lab.outside, 80);
            assert_answers_with_the_host(&lab, connect);
        }
    }
}

fn say(answer: std::io::Result<String>) {
    match answer {
        Ok(seen) => eprintln!("seen {seen}"),
        Err(e) => eprintln!("no answer: {e}"),
    }
}

fn listen() {
    end_with_parent();
    eprintln!("listening");
}

fn serve_udp(port: u16) {
    let socket = UdpSocket::bind(("::", port)).unwrap();
    listen();
    loop {
        let Ok((_, from)) = socket.recv_from(&mut [0; 16]) else { continue }; // an earlier answer's error
        let _ = socket.send_to(from.ip().to_canonical().to_string().as_bytes(), from); // the client may be gone
    }
}

fn answer_without_end(port: u16) {
    let socket = UdpSocket::bind(("::", port)).unwrap();
    listen();
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
    listen();
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
