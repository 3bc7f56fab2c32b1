//! Packets between namespaces. A socket belongs to the namespace that it was made in, so both ends
//! are in this process.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::error::{Error, Result};
use crate::net::echo;
use crate::net::netns::Netns;

/// How long packets may take: the first ones of a new link are lost.
const PATIENCE: Duration = Duration::from_secs(3);

/// Bytes of a datagram that measures a rate, and what the link adds: headers of UDP, IPv4 and
/// Ethernet.
const DATAGRAM: usize = 1200;
const HEADERS: usize = 8 + 20 + 14;
/// How many datagrams are sent at a time.
const BURST: usize = 64;
/// The receive timeout after a burst. The kernel rounds it up to a jiffy: 10 ms with HZ=100.
const PAUSE: Duration = Duration::from_millis(1);

/// Echo requests until one is answered; the time of that one.
pub fn ping(from: &Netns, to: IpAddr) -> Result<Duration> {
    from.enter(|| echo::ping(to, PATIENCE))
}

/// One end of a connection.
pub struct End<'a> {
    /// Its namespace.
    pub netns: &'a Netns,
    /// Where a server listens; where a client connects to.
    pub address: SocketAddr,
}

/// What a connection has shown.
pub struct Connection {
    /// The client's address, as the server sees it.
    pub client: IpAddr,
    /// The time from the first packet to the answer.
    pub time: Duration,
}

/// A TCP connection from the client to the server, over which each sends a line.
pub fn connect(client: &End<'_>, server: &End<'_>) -> Result<Connection> {
    let End { netns, address } = client;
    let failed = |e: io::Error| Error::io(format_args!("connect to {address}"), &e);
    let listens = server.address;
    let listener = server.netns.enter(|| TcpListener::bind(listens).map_err(failed))?;
    let begin = Instant::now();
    let stream = netns.enter(|| TcpStream::connect_timeout(address, PATIENCE).map_err(failed))?;
    let met = talk(stream, &listener).map_err(failed)?;
    Ok(Connection { client: met.ip(), time: begin.elapsed() })
}

/// connect(2) returns before the listener has the last packet of the handshake.
fn talk(mut client: TcpStream, listener: &TcpListener) -> io::Result<SocketAddr> {
    let timeout = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
    if poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], timeout)? == 0 {
        return Err(ErrorKind::TimedOut.into()); // it leads elsewhere
    }
    let (mut accepted, peer) = listener.accept()?;
    pass(&mut client, &mut accepted)?;
    pass(&mut accepted, &mut client)?;
    Ok(peer)
}

/// Sends bytes from one end to the other.
fn pass(from: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
    let mut received = [0; 6];
    from.write_all(b"hello\n")?;
    to.set_read_timeout(Some(PATIENCE))?;
    to.read_exact(&mut received)
}

/// Sends datagrams faster than `limit` for `time`, after the bucket's first burst; the rate of what
/// arrives, in bits per second on the link.
pub fn rate(from: &Netns, to: &End<'_>, burst: Duration, time: Duration) -> Result<f64> {
    let listens = to.address;
    let failed = |e: io::Error| Error::io(format_args!("send to {listens}"), &e);
    let receiver = to.netns.enter(|| UdpSocket::bind(listens).map_err(failed))?;
    let sender = from.enter(|| any_socket().map_err(failed))?;
    sender.connect(listens).map_err(failed)?;
    flood(&sender, &receiver, burst).map_err(failed)?;
    let begin = Instant::now();
    let datagrams = flood(&sender, &receiver, time).map_err(failed)?;
    Ok((datagrams * (DATAGRAM + HEADERS) * 8) as f64 / begin.elapsed().as_secs_f64())
}

/// A socket for datagrams at a port that the kernel chooses.
pub fn any_socket() -> io::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
}

/// Sends for a while; how many datagrams arrived.
fn flood(sender: &UdpSocket, receiver: &UdpSocket, time: Duration) -> io::Result<usize> {
    sender.set_nonblocking(true)?;
    receiver.set_read_timeout(Some(PAUSE))?;
    let end = Instant::now() + time;
    let mut arrived = 0;
    while Instant::now() < end {
        for _ in 0..BURST {
            let _ = sender.send(&[0; DATAGRAM]); // a full queue drops, as it should
        }
        arrived += received(receiver)?;
    }
    Ok(arrived)
}

/// How many datagrams are received before the next ones are sent, even if there is no pause.
const MOST: usize = 4 * BURST;

/// How many datagrams arrive until there is a pause.
fn received(receiver: &UdpSocket) -> io::Result<usize> {
    let mut datagram = [0; DATAGRAM];
    for count in 0..MOST {
        match receiver.recv(&mut datagram) {
            Ok(_) => (),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) =>
            {
                return Ok(count); // a pause
            }
            Err(error) => return Err(error),
        }
    }
    Ok(MOST)
}

/// Fails unless the server saw this client.
pub fn require_client(met: &Connection, expected: IpAddr) -> Result<()> {
    if met.client == expected {
        return Ok(());
    }
    let text = format!("the server sees {}, expected {expected}", met.client);
    Err(Error::check(text))
}
