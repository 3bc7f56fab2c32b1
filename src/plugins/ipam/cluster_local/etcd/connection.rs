//! One TCP connection to a member, with or without TLS, that never blocks.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, sockopt};
use rustls::ClientConnection;

use super::endpoint::Endpoint;
use super::tls::{self, Files, Tls};
use crate::error::{Error, Result};

/// How many times a ready connection is read before others get their turn.
const READS: usize = 16;
/// The bytes of one read.
const PIECE: usize = 16 * 1024;
/// The idle seconds after which the kernel probes a connection.
const PROBE_AFTER: u32 = 20;

/// A connection to a member.
pub struct Connection {
    socket: TcpStream,
    session: Option<Box<ClientConnection>>,
    /// The files of certificates, for errors of TLS.
    files: Arc<Files>,
    peer: String,
    connected: bool,
    /// Bytes of requests that have not been passed on.
    unsent: Vec<u8>,
    /// Whether any byte of a request has left: from then on the member may have executed it.
    has_sent: bool,
    /// Whether any byte of a reply has arrived.
    has_heard: bool,
}

/// What has arrived.
#[derive(Debug, Default)]
pub struct Received {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether the member has closed the connection.
    pub ended: bool,
}

impl Connection {
    /// Begins to connect.
    pub fn open(endpoint: &Endpoint, address: SocketAddr, tls: &Tls) -> Result<Connection> {
        let what = || format!("connect to {endpoint}");
        let socket = connect(address).map_err(|e| Error::io(what(), &e.into()))?;
        let session = match endpoint.tls {
            true => Some(Box::new(tls.session(endpoint)?)),
            false => None,
        };
        let peer = endpoint.to_string();
        Ok(Connection {
            socket,
            session,
            files: tls.files(),
            peer,
            connected: false,
            unsent: vec![],
            has_sent: false,
            has_heard: false,
        })
    }

    /// The events to wait for.
    pub fn interest(&self) -> PollFlags {
        if !self.connected {
            return PollFlags::POLLOUT;
        }
        let tls_writes = self.session.as_ref().is_some_and(|session| session.wants_write());
        let writes = tls_writes || (self.is_established() && !self.unsent.is_empty());
        if writes { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }

    /// Whether requests can pass: TCP, and TLS if there is any, are connected.
    pub fn is_established(&self) -> bool {
        self.connected && !self.session.as_ref().is_some_and(|session| session.is_handshaking())
    }

    /// Whether any byte of the last request has left.
    pub fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// The URL of the member.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// What may be the reason of a connection that ended without any reply. A member without TLS
    /// closes it; TLS 1.3 refuses a client certificate after the handshake, and the refusal may be
    /// lost.
    pub fn advice(&self) -> &'static str {
        match &self.session {
            Some(session) if session.is_handshaking() => {
                "the member ended the handshake of TLS; is its URL http://?"
            }
            Some(_) if !self.has_heard => {
                "the member may have refused the client certificate; its log says so"
            }
            _ => "",
        }
    }

    /// Queues a request, which is sent once the connection is established.
    pub fn send(&mut self, request: &[u8]) {
        self.unsent.extend_from_slice(request);
        self.has_sent = false;
    }

    /// Sends and receives what is possible without waiting.
    pub fn advance(&mut self) -> Result<Received> {
        if !self.connected && !self.finish_connecting()? {
            return Ok(Received::default());
        }
        self.write()?;
        let received = self.read()?;
        self.has_heard = self.has_heard || !received.bytes.is_empty();
        self.write()?; // what TLS answers, and the request after the handshake
        Ok(received)
    }

    fn finish_connecting(&mut self) -> Result<bool> {
        let failed = self.socket.take_error().and_then(|error| error.map_or(Ok(()), Err));
        failed.map_err(|e| Error::io(format_args!("connect to {}", self.peer), &e))?;
        self.connected = match self.socket.peer_addr() {
            Ok(_) => true,
            Err(e) if e.raw_os_error() == Some(Errno::ENOTCONN as i32) => false,
            Err(e) => return Err(Error::io(format_args!("connect to {}", self.peer), &e)),
        };
        Ok(self.connected)
    }

    fn write(&mut self) -> Result<()> {
        let done = if self.session.is_some() { self.write_session() } else { self.write_plain() };
        done.map_err(|e| Error::io(format_args!("send to {}", self.peer), &e))
    }

    fn write_plain(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let Some(count) = unless_blocked(self.socket.write(&self.unsent))? else { break };
            self.unsent.drain(..count);
            self.has_sent = true;
        }
        Ok(())
    }

    /// A request is handed to the session only after the handshake: until then none has left.
    fn write_session(&mut self) -> io::Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        if !session.is_handshaking() && !self.unsent.is_empty() {
            session.writer().write_all(&self.unsent)?;
            self.unsent.clear();
            self.has_sent = true;
        }
        while session.wants_write() {
            if unless_blocked(session.write_tls(&mut self.socket))?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<Received> {
        let mut received = Received::default();
        for _ in 0..READS {
            let before = received.bytes.len();
            let more = match self.session.is_some() {
                true => self.read_session(&mut received)?,
                false => self.read_plain(&mut received)?,
            };
            if !more || received.ended || received.bytes.len() - before > PIECE * READS {
                break;
            }
        }
        Ok(received)
    }

    /// Whether there may be more.
    fn read_plain(&mut self, received: &mut Received) -> Result<bool> {
        let mut piece = [0; PIECE];
        let read = unless_blocked(self.socket.read(&mut piece));
        let read = read.map_err(|e| Error::io(format_args!("read from {}", self.peer), &e))?;
        let Some(count) = read else { return Ok(false) };
        received.ended = count == 0;
        received.bytes.extend_from_slice(&piece[..count]);
        Ok(count > 0)
    }

    fn read_session(&mut self, received: &mut Received) -> Result<bool> {
        let advice = self.advice();
        let Some(session) = &mut self.session else { return Ok(false) };
        let read = unless_blocked(session.read_tls(&mut self.socket));
        let read = read.map_err(|e| {
            Error::io(format_args!("read from {}", self.peer), &e).with_details(advice)
        })?;
        let Some(count) = read else { return Ok(false) };
        if let Err(error) = session.process_new_packets() {
            let _ = session.write_tls(&mut self.socket); // tells the member why, if it still listens
            // A member that refuses the client certificate does so before it reads a request.
            let refuses_us = matches!(error, rustls::Error::AlertReceived(_)) && !self.has_heard;
            self.has_sent = self.has_sent && !refuses_us;
            return Err(self.explain(&error));
        }
        received.ended = count == 0 || !drain(session, &mut received.bytes);
        Ok(true)
    }

    fn explain(&self, error: &rustls::Error) -> Error {
        tls::explain(&self.files, error).context(format_args!("TLS with {}", self.peer))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Moves the session's bytes; false if the member has said that there are no more.
fn drain(session: &mut ClientConnection, bytes: &mut Vec<u8>) -> bool {
    let mut piece = [0; PIECE];
    loop {
        match session.reader().read(&mut piece) {
            Ok(0) => return false,
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
            Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

/// None if the operation would have to wait.
fn unless_blocked(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Ok(count) => Ok(Some(count)),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

fn connect(address: SocketAddr) -> nix::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(family, SockType::Stream, flags, None)?;
    socket::setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
    socket::setsockopt(&socket, sockopt::KeepAlive, &true)?;
    socket::setsockopt(&socket, sockopt::TcpKeepIdle, &PROBE_AFTER)?;
    match socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(socket)),
        Err(errno) => Err(errno),
    }
}
