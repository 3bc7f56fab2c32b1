//! The packet sockets of DHCP on a real link: which frames they receive, and what arrives of the
//! frames they send.
//!
//! These cases enter a namespace in this process, so it has to be root, at least of a user
//! namespace.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::Duration;

use cni_multi::net::mac::MacAddr;
use cni_multi::net::netns::Netns;
use cni_multi::net::packet_socket::{ArpSocket, Claim, PacketSocket, unicast};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::support::attachment::skip;
use crate::support::call::Peer;
use crate::support::netns::{Container, Lab, is_root};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const NOBODY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 50);
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const EVERYBODY: [u8; 6] = [0xff; 6];

/// A container with a link to the host, which acts as the server.
struct Link {
    lab: Lab,
    container: Container,
    inside: Netns,
    ifindex: u32,
}

impl Link {
    /// None if this process cannot enter the namespace.
    fn new() -> Option<Link> {
        if !is_root() {
            skip("root, or unshare -Urnm");
            return None;
        }
        let lab = Lab::new(Peer::Ours);
        let container = lab.container();
        let name = container.netns.trim_start_matches("/run/netns/").to_owned();
        lab.host.sh(&format!(
            "ip link add server type veth peer name eth0 address 02:00:00:00:00:09 netns {name}
             ip link set server address 02:00:00:00:00:01; ip addr add {SERVER}/24 dev server; ip link set server up"
        ));
        container.sh("ip link set eth0 up");
        lab.host.sh("until ip link show server | grep -q 'state UP'; do sleep 0.01; done");
        let ifindex =
            u32::try_from(container.link("eth0").unwrap()["ifindex"].as_u64().unwrap()).unwrap();
        let inside = Netns::open(&container.path()).unwrap();
        Some(Link { lab, container, inside, ifindex })
    }

    fn socket(&self) -> PacketSocket {
        let ifindex = self.ifindex;
        self.inside.run(|| PacketSocket::open(ifindex)).unwrap()
    }

    fn arp(&self) -> ArpSocket {
        let ifindex = self.ifindex;
        self.inside.run(|| ArpSocket::open(ifindex)).unwrap()
    }

    /// A UDP socket of a server on the host.
    fn server(&self) -> UdpSocket {
        let host = Netns::open(&self.lab.host.path()).unwrap();
        let server = host.run(|| Ok(UdpSocket::bind("0.0.0.0:67").unwrap())).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        server
    }

    /// Sends a raw frame from the host.
    fn inject(&self, frame: &[u8]) {
        let mut socat = self.lab.host.command("socat");
        let mut socat =
            socat.args(["-u", "STDIN", "INTERFACE:server"]).stdin(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut socat.stdin.take().unwrap(), frame).unwrap();
        assert!(socat.wait().unwrap().success());
    }
}

/// Whether there is something to read within this time.
fn is_readable(socket: impl AsFd, patience: u16) -> bool {
    poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], PollTimeout::from(patience))
        .unwrap()
        > 0
}

fn checksum(octets: &[u8]) -> [u8; 2] {
    let sum: u32 = octets
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    (!((sum >> 16) + (sum & 0xffff)) as u16).to_be_bytes()
}

/// A datagram from the server to port 68 with both checksums correct.
fn packet(payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u8;
    let mut packet =
        vec![0x45, 0, 0, 28 + length, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 9];
    packet.extend([0, 67, 0, 68, 0, 8 + length, 0, 0]);
    packet.extend(payload);
    with_checksums(packet)
}

fn with_checksums(mut packet: Vec<u8>) -> Vec<u8> {
    packet[10..12].fill(0);
    let header = checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&header);
    packet[26..28].fill(0);
    let pseudo = [&packet[12..20], &[0, 17], &packet[24..26]].concat();
    let udp = checksum(&[&pseudo, &packet[20..]].concat());
    packet[26..28].copy_from_slice(&udp);
    packet
}

fn frame(to: [u8; 6], kind: &[u8], packet: &[u8]) -> Vec<u8> {
    [&to, [2, 0, 0, 0, 0, 1].as_slice(), kind, packet].concat()
}

/// Changes a packet without correcting its checksums.
fn changed(mark: &str, change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut packet = packet(mark.as_bytes());
    change(&mut packet);
    packet
}

#[test]
fn whole_datagrams_to_clients_are_heard_and_nothing_else_is() {
    let Some(link) = Link::new() else { return };
    const IP: [u8; 2] = [8, 0];
    let bad = |mark: &str, change: fn(&mut Vec<u8>)| frame(CLIENT_MAC, &IP, &changed(mark, change));
    let sealed = |mark: &str, change: fn(&mut Vec<u8>)| {
        frame(CLIENT_MAC, &IP, &with_checksums(changed(mark, change)))
    };
    let heard = [
        ("to us", frame(CLIENT_MAC, &IP, &packet(b"to us"))),
        ("to everybody", frame(EVERYBODY, &IP, &packet(b"to everybody"))),
        ("filled up", frame(CLIENT_MAC, &IP, &[packet(b"filled up"), vec![0xee; 18]].concat())),
        ("no checksum", bad("no checksum", |p| p[26..28].fill(0))),
        ("to another address", sealed("to another address", |p| p[19] = 77)),
        ("from another port", sealed("from another port", |p| p[21] = 99)),
        (
            "with a priority",
            frame(CLIENT_MAC, &[0x81, 0, 0xe0, 0, 8, 0], &packet(b"with a priority")),
        ),
    ];
    let unheard = [
        frame([2, 0, 0, 0, 0, 7], &IP, &packet(b"to another link")),
        frame(CLIENT_MAC, &[0x81, 0, 0, 5, 8, 0], &packet(b"in a VLAN")),
        frame(CLIENT_MAC, &[0x86, 0xdd], &packet(b"said to be IPv6")),
        bad("a wrong header", |p| p[1] = 4),
        bad("a wrong checksum of the header", |p| p[10] ^= 1),
        bad("a wrong checksum of UDP", |p| p[26] ^= 1),
        bad("a wrong octet", |p| p[28] ^= 1),
        sealed("IPv6 inside", |p| p[0] = 0x65),
        sealed("TCP", |p| p[9] = 6),
        sealed("to a server", |p| p[23] = 67),
        sealed("the first fragment", |p| p[6] = 0x20),
        sealed("a later fragment", |p| p[7] = 1),
        sealed("the last fragment", |p| p[6] = 0x10),
        sealed("longer than it is", |p| p[3] += 1),
        sealed("UDP longer than it is", |p| p[25] += 1),
        sealed("UDP shorter than its header", |p| p[25] = 7),
        sealed("a header longer than it is", |p| p[0] = 0x4f),
        sealed("a header shorter than it can be", |p| p[0] = 0x44),
        frame(CLIENT_MAC, &IP, &packet(b"cut off")[..30]),
        frame(CLIENT_MAC, &IP, &packet(b"")[..27]),
        frame(CLIENT_MAC, &IP, &packet(b"")[..20]),
        frame(CLIENT_MAC, &IP, &[0x45]),
        frame(CLIENT_MAC, &IP, &[]),
    ];
    let socket = link.socket();
    unheard.iter().for_each(|frame| link.inject(frame));
    heard.iter().for_each(|(_, frame)| link.inject(frame));
    let mut found = vec![];
    while found.len() < heard.len() && is_readable(&socket, 5_000) {
        found.extend(socket.receive().unwrap());
    }
    let text = |(from, payload): (Ipv4Addr, Vec<u8>)| format!("{from} {}", payload.escape_ascii());
    let found: Vec<String> = found.into_iter().map(text).collect();
    assert_eq!(found, heard.map(|(mark, _)| format!("{SERVER} {mark}")));
    assert_eq!((is_readable(&socket, 0), socket.receive()), (false, Ok(None)));
}

/// Over veth the kernel sends packets with checksum offload: the checksum is left to a network
/// card, and here no card computes it.
#[test]
fn a_checksum_that_was_left_to_a_card_is_not_missed() {
    let Some(link) = Link::new() else { return };
    let socket = link.socket();
    let server = link.server();
    server.set_broadcast(true).unwrap();
    link.lab.host.sh("ip route add 255.255.255.255 dev server");
    server.send_to(b"partial", "255.255.255.255:68").unwrap();
    assert!(is_readable(&socket, 5_000));
    assert_eq!(socket.receive().unwrap(), Some((SERVER, b"partial".to_vec())));
}

/// The filter runs in the kernel: other traffic does not wake the reader.
#[test]
fn other_traffic_is_not_even_read() {
    let Some(link) = Link::new() else { return };
    link.container.sh(&format!("ip addr add {CLIENT}/24 dev eth0"));
    let (socket, arp) = (link.socket(), link.arp());
    arp.probe(NOBODY, &MacAddr::new(&CLIENT_MAC)).unwrap();
    link.lab.host.sh(&format!("ping -c 3 -i 0.01 -W 5 {CLIENT}"));
    assert!(!is_readable(&socket, 100) && !is_readable(&arp, 100));
}

#[test]
fn servers_get_what_is_sent_from_no_address_and_from_a_lost_one() {
    let Some(link) = Link::new() else { return };
    let (socket, server) = (link.socket(), link.server());
    let mut buffer = [0; 2000];
    for length in [1, 300, 301, 1472] {
        let payload: Vec<u8> = (0..length).map(|n| n as u8).collect();
        socket.broadcast(&payload).unwrap();
        let (length, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..length], from.to_string()),
            (payload.as_slice(), "0.0.0.0:68".to_owned())
        );
    }
    socket.send(CLIENT, SERVER, b"release").unwrap();
    let (length, from) = server.recv_from(&mut buffer).unwrap();
    assert_eq!(
        (&buffer[..length], from.to_string()),
        (b"release".as_slice(), format!("{CLIENT}:68"))
    );
    let error = socket.broadcast(&[0; 1473]).unwrap_err();
    assert!(error.is_errno(Errno::EMSGSIZE), "{error}");
}

#[test]
fn a_server_is_asked_by_the_routes_of_the_container() {
    let Some(link) = Link::new() else { return };
    let ask = |from, to, ifname| link.inside.run(|| unicast(from, to, ifname, b"renew"));
    link.container.sh("ip link set lo up"); // until the first address exists, the kernel permits any source
    let error = ask(CLIENT, SERVER, "eth0").unwrap_err();
    assert!(error.is_errno(Errno::EADDRNOTAVAIL), "{error}");
    assert!(
        error.msg.starts_with("send a datagram from 192.0.2.9 to 192.0.2.1 over \"eth0\": "),
        "{error}"
    );
    assert!(ask(CLIENT, SERVER, "eth7").unwrap_err().is_not_found());
    link.container.sh(&format!("ip addr add {CLIENT}/24 dev eth0"));
    // Another process of the container may have bound the port, as long as it shares it.
    let server = link.server();
    let (mut buffer, socket) = ([0; 100], link.socket());
    let asking = ask(CLIENT, SERVER, "eth0").unwrap();
    let again = ask(CLIENT, SERVER, "eth0").unwrap();
    for _ in 0..2 {
        let (length, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..length], from.to_string()),
            (b"renew".as_slice(), format!("{CLIENT}:68"))
        );
    }
    server.send_to(b"ack", (CLIENT, 68)).unwrap();
    assert!(is_readable(&socket, 5_000));
    assert_eq!(socket.receive().unwrap(), Some((SERVER, b"ack".to_vec())));
    drop((asking, again));
}

#[test]
fn the_owner_of_an_address_answers() {
    let Some(link) = Link::new() else { return };
    let (arp, mac) = (link.arp(), MacAddr::new(&CLIENT_MAC));
    link.lab.host.sh(&format!("ip neigh flush all; ping -c 1 -W 0.05 {NOBODY} || true"));
    assert!(!is_readable(&arp, 0), "it has not asked yet");
    arp.probe(SERVER, &mac).unwrap();
    assert!(is_readable(&arp, 5_000));
    let claim = Claim { address: SERVER, mac: MacAddr::new(&[2, 0, 0, 0, 0, 1]) };
    assert_eq!(arp.receive(), Ok(Some(claim)));
    assert_eq!(arp.receive(), Ok(None));
    arp.probe(NOBODY, &mac).unwrap();
    assert!(!is_readable(&arp, 200));
    // The host asks for another address; its ARP request claims only the sender's own.
    link.lab.host.try_sh("ping -c 1 -W 0.05 192.0.2.51");
    assert!(!is_readable(&arp, 200));
    let neighbours = link.lab.host.sh("ip neigh show dev server");
    assert!(!neighbours.contains("02:00:00:00:00:09"), "a probe claims nothing: {neighbours}");
}

#[test]
fn a_link_that_goes_down_is_reported() {
    let Some(link) = Link::new() else { return };
    let socket = link.socket();
    link.container.sh("ip link set eth0 down");
    assert!(is_readable(&socket, 5_000));
    let error = socket.receive().unwrap_err();
    assert!(error.is_errno(Errno::ENETDOWN), "{error}");
    assert!(socket.broadcast(b"x").unwrap_err().is_errno(Errno::ENETDOWN));
    link.container.sh("ip link del eth0");
    let ifindex = link.ifindex;
    let gone = link.inside.run(|| PacketSocket::open(ifindex).map(drop)).unwrap_err();
    assert!(gone.is_not_found(), "{gone}");
}
