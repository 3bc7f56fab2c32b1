//! Blocking HTTP/1.1, one request at a time, over TCP or TLS, with timeouts. A connection is kept for
//! the next request. A request goes on to the next endpoint as long as no byte of it was sent, and a
//! read always: a write of which a byte was sent is never repeated.

pub mod endpoint;
pub mod incoming;
pub mod tls;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use rustls::{ClientConnection, Stream};

use self::endpoint::Endpoint;
use self::incoming::{Head, Incoming};
use self::tls::Tls;
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
    /// The URL of the server.
    pub server: String,
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
        let kept = self.kept.take().and_then(|mut line| line.is_idle().then_some(line));
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
    incoming: Incoming<Wire>,
    /// Whether any reply has arrived.
    has_heard: bool,
}

impl Line {
    fn open(endpoint: &Endpoint, address: SocketAddr, tls: &Tls) -> Result<Line> {
        let since = Instant::now();
        let connected = TcpStream::connect_timeout(&address, CONNECT);
        let connected = connected.and_then(|socket| set_options(&socket).map(|()| socket));
        let failed = |e| Error::io(format_args!("connect to {endpoint}"), &e);
        let mut timed = Timed { socket: connected.map_err(failed)?, since, patience: CONNECT };
        let mut session = None;
        if endpoint.tls {
            let mut new = Box::new(tls.session(endpoint)?);
            new.complete_io(&mut timed).map_err(|error| tls::explain(endpoint, &error))?;
            session = Some(new);
        }
        let incoming = Incoming::new(Wire { timed, session });
        Ok(Line { endpoint: endpoint.clone(), incoming, has_heard: false })
    }

    /// Whether the server has neither closed the connection nor sent anything unasked.
    fn is_idle(&mut self) -> bool {
        let socket = &self.incoming.source().timed.socket;
        let peeked = socket.set_nonblocking(true).and_then(|()| socket.peek(&mut [0]));
        socket.set_nonblocking(false).is_ok()
            && peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    fn send(&mut self, request: &Request) -> io::Result<()> {
        let wire = self.incoming.source();
        wire.wait_for(REPLY);
        wire.send(request.text(&self.endpoint).as_bytes())
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let head = self.incoming.head()?;
        self.has_heard = true;
        self.rest(head)
    }

    fn rest(&mut self, head: Head) -> io::Result<Reply> {
        let body = self.incoming.body(LARGEST_REPLY)?;
        Ok(Reply { head, body, server: self.endpoint.to_string() })
    }

    fn stream(
        &mut self,
        silence: Duration,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> io::Result<Option<Reply>> {
        let head = self.incoming.head()?;
        if head.status != 200 {
            return self.rest(head).map(Some);
        }
        while let Some(line) = self.incoming.line()? {
            if !take(&line) {
                return Ok(None);
            }
            self.incoming.source().wait_for(silence);
        }
        Err(io::Error::other("the server has ended the stream"))
    }

    /// Why a request has no reply that was sent, or began to be.
    fn failure(&mut self, error: &io::Error) -> Failure {
        let endpoint = &self.endpoint;
        // A server that refuses the client certificate does so before it reads a request.
        let refuses_us =
            !self.has_heard && matches!(tls::error(error), Some(rustls::Error::AlertReceived(_)));
        let reason = match error.kind() {
            io::ErrorKind::TimedOut => {
                let patience = self.incoming.source().timed.patience.as_secs();
                Error::new(Code::IO, format!("{endpoint} did not answer within {patience} s"))
            }
            _ if endpoint.tls && !self.has_heard => tls::explain(endpoint, error),
            _ => Error::io(endpoint, error),
        };
        Failure { is_sent: !refuses_us, reason: reason.to_string() }
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

fn set_options(socket: &TcpStream) -> io::Result<()> {
    let [after, interval, count] = PROBES;
    setsockopt(socket, sockopt::TcpNoDelay, &true)?;
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &after)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &interval)?;
    Ok(setsockopt(socket, sockopt::TcpKeepCount, &count)?)
}

/// A socket with or without TLS that waits until a point in time, however often it is read.
struct Wire {
    timed: Timed,
    session: Option<Box<ClientConnection>>,
}

struct Timed {
    socket: TcpStream,
    since: Instant,
    patience: Duration,
}

impl Timed {
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

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.session {
            Some(session) => Stream::new(&mut **session, &mut self.timed).read(into),
            None => self.timed.read(into),
        }
    }
}

impl Wire {
    fn wait_for(&mut self, patience: Duration) {
        (self.timed.since, self.timed.patience) = (Instant::now(), patience);
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(session) = &mut self.session else { return self.timed.write_all(bytes) };
        let mut stream = Stream::new(&mut **session, &mut self.timed);
        stream.write_all(bytes)?;
        stream.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::tests::fake::{Answer, Fake, reply};
    use super::tls::Files;
    use super::*;

    /// The status of the reply to a request to these servers, or whether it was sent.
    fn exchanged(http: &mut Http, is_read: bool) -> Result<u16, bool> {
        let request = Request {
            method: "PUT",
            path: "/a?b=c".to_owned(),
            headers: vec![("X-A", "b".to_owned())],
            body: "{}".to_owned(),
            is_read,
        };
        http.exchange(&request).map(|reply| reply.head.status).map_err(|failure| failure.is_sent)
    }

    fn of(urls: &[&str]) -> Http {
        let endpoints = urls.iter().map(|url| Endpoint::parse(url).unwrap()).collect();
        Http::new(endpoints, Tls::load(&Files::default()).unwrap())
    }

    fn ok() -> Answer {
        Answer::Text(reply(200, ""))
    }

    #[test]
    fn requests_share_a_connection_until_the_server_ends_it() {
        let closing =
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_owned();
        let answers = vec![ok(), ok(), Answer::Last(reply(200, "")), Answer::Text(closing), ok()];
        let fake = Fake::new(answers);
        let mut http = of(&[&fake.url]);
        for _ in 0..5 {
            assert_eq!(exchanged(&mut http, false), Ok(200));
            std::thread::sleep(Duration::from_millis(50)); // the end of the connection arrives
        }
        let (seen, host) = (fake.seen(), fake.url.strip_prefix("http://").unwrap());
        let connections: Vec<&str> = seen.iter().map(|request| &request[..1]).collect();
        assert_eq!(connections, ["0", "0", "0", "1", "2"]);
        let text = format!(
            "0 PUT /a?b=c HTTP/1.1\r\nHost: {host}\r\nX-A: b\r\nContent-Length: 2\r\n\r\n{{}}"
        );
        assert_eq!(seen[0], text);
    }

    #[test]
    fn a_request_goes_on_to_the_next_endpoint_unless_a_write_was_sent() {
        const NONE: &str = "http://127.0.0.1:1";
        // Whether it is a read, the status that the first server answers with if it does, and the result.
        let cases = [
            (true, None, Ok(200)),
            (false, None, Err(true)),
            (true, Some(503), Ok(200)),
            (false, Some(503), Ok(503)),
        ];
        for (is_read, status, expected) in cases {
            let text = status.map(|status| reply(status, "")).unwrap_or_default();
            let [first, second] =
                [Fake::new(vec![Answer::Last(text)]), Fake::new(vec![ok(), ok()])];
            let mut http = of(&[NONE, &first.url, &second.url]);
            assert_eq!(exchanged(&mut http, is_read), expected, "{is_read}");
            assert_eq!(first.seen().len(), 1);
            assert_eq!(exchanged(&mut http, false), Ok(200), "the second serves from now on");
        }
        assert_eq!(exchanged(&mut of(&[NONE, NONE]), false), Err(false));
        let failing = Fake::new(vec![Answer::Text(reply(503, ""))]);
        assert_eq!(exchanged(&mut of(&[&failing.url]), true), Ok(503), "the last one's reply");
    }
}
