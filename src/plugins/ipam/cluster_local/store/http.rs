//! Blocking HTTP/1.1, one request at a time, over TCP or TLS, with timeouts. A connection is kept for
//! the next request. A request goes on to the next endpoint as long as no byte of it was sent, and a
//! read always: a write of which a byte was sent is never repeated.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use rustls::{ClientConnection, StreamOwned};

use super::endpoint::Endpoint;
use super::incoming::{Head, Incoming};
use super::tls::{self, Tls};
use crate::error::{Code, Error, Result};

/// How long a connection may take, and its handshake.
const CONNECT: Duration = Duration::from_secs(2);
/// How long a server may take from the request to the end of its reply.
const REPLY: Duration = Duration::from_secs(5);
/// The limit in bytes of a reply.
const LARGEST_REPLY: usize = 32 << 20;
/// The idle seconds after which the kernel probes a connection, each further second until one is
/// answered, and how many probes are not until the connection is dead.
const PROBES: [u32; 3] = [20, 5, 3];

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: &'static str,
    /// The path, with its query.
    pub path: String,
    /// Headers beyond host and length. No value has a line break.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: String,
    /// Whether a second execution changes nothing.
    pub is_read: bool,
}

/// A reply that has arrived as a whole.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status and what else is known from its headers.
    pub head: Head,
    /// Its body.
    pub body: Vec<u8>,
}

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Whether a byte of the request was sent, so that it may have been executed.
    pub is_sent: bool,
    /// The reason, for people.
    pub reason: String,
}

/// The endpoints of one service, all of which have the same data.
pub struct Http {
    endpoints: Vec<Endpoint>,
    tls: Tls,
    /// The endpoint that is used, as an index.
    current: usize,
    /// Counts connections, so that each address of a name has its turn.
    opened: usize,
    /// The connection of the last request.
    kept: Option<Line>,
}

impl Http {
    /// Endpoints, of which there has to be one. Connects when there is a request.
    pub fn new(endpoints: Vec<Endpoint>, tls: Tls) -> Http {
        Http { endpoints, tls, current: 0, opened: 0, kept: None }
    }

    /// Replaces the certificates, for connections from now on.
    pub fn set_tls(&mut self, tls: Tls) {
        self.tls = tls;
        self.kept = None;
    }

    /// This endpoint answers nonsense: the next request goes to another.
    pub fn distrust(&mut self) {
        self.kept = None;
        self.current = (self.current + 1) % self.endpoints.len().max(1);
    }

    /// The reply to a request, of whichever status.
    pub fn exchange(&mut self, request: &Request) -> Result<Reply, Failure> {
        let mut left = self.endpoints.len();
        loop {
            let reply = self.attempt(request);
            let (has_failed, is_sent) = match &reply {
                Ok(reply) => (reply.head.status >= 500, true),
                Err(failure) => (true, failure.is_sent),
            };
            if has_failed {
                self.distrust();
            }
            left = left.saturating_sub(1);
            if !has_failed || left == 0 || (is_sent && !request.is_read) {
                return reply;
            }
        }
    }

    fn attempt(&mut self, request: &Request) -> Result<Reply, Failure> {
        let mut line = self.begin(request)?;
        let reply = line.reply().map_err(|error| line.failure(&error))?;
        self.kept = Some(line).filter(|line| reply.head.persists && line.incoming.is_at_end());
        Ok(reply)
    }

    /// Passes each line of an endless reply to `take` until that returns false. A reply with another
    /// status than 200 is returned.
    pub fn stream(
        &mut self,
        request: &Request,
        silence: Duration,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Option<Reply>, Failure> {
        let mut line = self.begin(request)?;
        let streamed = line.stream(silence, take).map_err(|error| line.failure(&error));
        if streamed.is_err() {
            self.distrust();
        }
        streamed
    }

    /// Sends a request, on the connection that was kept if that is still alive.
    fn begin(&mut self, request: &Request) -> Result<Line, Failure> {
        let kept = self.kept.take().filter(|line| line.is_idle());
        let unsent = |error: Error| Failure { is_sent: false, reason: error.to_string() };
        let mut line = kept.map_or_else(|| self.open(), Ok).map_err(unsent)?;
        line.send(request).map_err(|error| line.failure(&error))?;
        Ok(line)
    }

    fn open(&mut self) -> Result<Line> {
        let none = || Error::new(Code::INVALID_CONFIG, "there is no endpoint");
        let endpoint = self.endpoints.get(self.current).ok_or_else(none)?;
        let addresses = endpoint.addresses()?;
        self.opened = self.opened.wrapping_add(1);
        let address = addresses.get(self.opened % addresses.len().max(1)).ok_or_else(none)?;
        Line::open(endpoint, *address, &self.tls)
    }
}

/// A connection.
struct Line {
    endpoint: Endpoint,
    tls: Tls,
    incoming: Incoming<Box<dyn Wire>>,
    /// Whether a byte of the request may have been sent.
    is_sent: bool,
    /// Whether any reply has arrived.
    has_heard: bool,
}

impl Line {
    fn open(endpoint: &Endpoint, address: SocketAddr, tls: &Tls) -> Result<Line> {
        let since = Instant::now();
        let what = || format!("connect to {endpoint}");
        let socket =
            TcpStream::connect_timeout(&address, CONNECT).map_err(|e| Error::io(what(), &e))?;
        set_options(&socket).map_err(|errno| Error::kernel(what(), errno))?;
        let timed = Timed { socket, since, patience: CONNECT };
        let wire: Box<dyn Wire> = match endpoint.tls {
            false => Box::new(timed),
            true => {
                let mut stream = StreamOwned::new(tls.session(endpoint)?, timed);
                let shaken = stream.conn.complete_io(&mut stream.sock);
                shaken.map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                        Error::new(Code::IO, format!("{}: the connection ended", what()))
                            .with_details(
                                "the server ended the handshake of TLS; is its URL http://?",
                            )
                    }
                    _ => tls.explain(endpoint, &error),
                })?;
                Box::new(stream)
            }
        };
        let incoming = Incoming::new(wire);
        let (endpoint, tls) = (endpoint.clone(), tls.clone());
        Ok(Line { endpoint, tls, incoming, is_sent: false, has_heard: false })
    }

    /// Whether the server has neither closed the connection nor sent anything unasked.
    fn is_idle(&self) -> bool {
        let socket = &self.incoming.source.timed().socket;
        let peeked = socket.set_nonblocking(true).and_then(|()| socket.peek(&mut [0]));
        socket.set_nonblocking(false).is_ok()
            && peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    fn send(&mut self, request: &Request) -> io::Result<()> {
        self.incoming.source.timed_mut().wait_for(REPLY);
        let text = request.text(&self.endpoint);
        self.is_sent = true;
        self.incoming.source.write_all(text.as_bytes())?;
        self.incoming.source.flush()
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let head = self.incoming.head()?;
        self.has_heard = true;
        Ok(Reply { head, body: self.incoming.body(LARGEST_REPLY)? })
    }

    fn stream(
        &mut self,
        silence: Duration,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> io::Result<Option<Reply>> {
        let head = self.incoming.head()?;
        if head.status != 200 {
            return Ok(Some(Reply { head, body: self.incoming.body(LARGEST_REPLY)? }));
        }
        while let Some(line) = self.incoming.line()? {
            if !take(&line) {
                return Ok(None);
            }
            self.incoming.source.timed_mut().wait_for(silence);
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn failure(&self, error: &io::Error) -> Failure {
        use io::ErrorKind::{ConnectionReset, TimedOut, UnexpectedEof};
        let (endpoint, alert) = (&self.endpoint, tls::error(error));
        // A server that refuses the client certificate does so before it reads a request.
        let refuses_us = matches!(alert, Some(rustls::Error::AlertReceived(_))) && !self.has_heard;
        let is_silent = matches!(error.kind(), ConnectionReset | UnexpectedEof) && !self.has_heard;
        let reason = match error.kind() {
            _ if alert.is_some() => self.tls.explain(endpoint, error),
            TimedOut => {
                let patience = self.incoming.source.timed().patience.as_secs();
                Error::new(Code::IO, format!("{endpoint} did not answer within {patience} s"))
            }
            // TLS 1.3 refuses a client certificate after the handshake, and the refusal may be lost.
            _ if is_silent && endpoint.tls => Error::io(endpoint, error).with_details(
                "the server may have refused the client certificate; its log says so",
            ),
            _ => Error::io(endpoint, error),
        };
        Failure { is_sent: self.is_sent && !refuses_us, reason: reason.to_string() }
    }
}

impl Request {
    fn text(&self, endpoint: &Endpoint) -> String {
        let Request { method, path, body, .. } = self;
        let (host, length) = (endpoint.authority(), body.len());
        let headers = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
        let headers: String = headers.collect();
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        )
    }
}

fn set_options(socket: &TcpStream) -> nix::Result<()> {
    let [after, interval, count] = PROBES;
    setsockopt(socket, sockopt::TcpNoDelay, &true)?;
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &after)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &interval)?;
    setsockopt(socket, sockopt::TcpKeepCount, &count)
}

/// What bytes of HTTP pass through.
trait Wire: Read + Write + Send {
    fn timed(&self) -> &Timed;
    fn timed_mut(&mut self) -> &mut Timed;
}

impl Wire for Timed {
    fn timed(&self) -> &Timed {
        self
    }

    fn timed_mut(&mut self) -> &mut Timed {
        self
    }
}

impl Wire for StreamOwned<ClientConnection, Timed> {
    fn timed(&self) -> &Timed {
        &self.sock
    }

    fn timed_mut(&mut self) -> &mut Timed {
        &mut self.sock
    }
}

/// A socket that waits until a point in time, however often it is read.
struct Timed {
    socket: TcpStream,
    since: Instant,
    patience: Duration,
}

impl Timed {
    fn wait_for(&mut self, patience: Duration) {
        (self.since, self.patience) = (Instant::now(), patience);
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.patience.saturating_sub(self.since.elapsed());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

/// The kernel reports the end of a wait as if there had been none.
fn timeout(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(into).map_err(timeout)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(bytes).map_err(timeout)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
