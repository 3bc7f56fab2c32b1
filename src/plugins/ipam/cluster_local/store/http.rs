//! Blocking HTTP/1.1, one request at a time, over TCP or TLS, with timeouts. A connection is kept for
//! the next request. A request goes on to the next endpoint as long as no byte of it was sent, and a
//! read always: a write of which a byte was sent is never repeated.

pub mod endpoint;
pub mod incoming;
pub mod tls;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use rustls::{ClientConnection, StreamOwned};

use self::endpoint::Endpoint;
use self::incoming::Incoming;
use self::tls::Tls;
use super::Failed;
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
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
    /// The URL of the server.
    pub server: String,
}

/// A connection.
type Line = Incoming<Box<dyn Wire>>;

/// The endpoints of one service, all of which have the same data.
pub struct Http {
    endpoints: Vec<Endpoint>,
    tls: Tls,
    /// The endpoint that is used, as an index.
    current: usize,
    /// Counts connections, so that each address of a name has its turn.
    opened: usize,
    /// The connection of the last request, to the endpoint that is used.
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

    /// The reply to a request, of whichever status; unknown if it was sent and there is none.
    pub fn exchange(&mut self, request: &Request) -> Result<Reply, Failed> {
        let mut left = self.endpoints.len();
        loop {
            let reply = self.attempt(request, |line, server| reply(line, server, false));
            if reply.as_ref().is_ok_and(|reply| reply.status < 500) {
                return reply;
            }
            self.distrust();
            left = left.saturating_sub(1);
            let is_unsent = matches!(reply, Err(Failed::Unreachable(_)));
            if left == 0 || !(is_unsent || request.is_read) {
                return reply;
            }
        }
    }

    /// Passes each line of an endless reply to `take` until that returns false. A reply with another
    /// status than 200 is returned.
    pub fn stream(
        &mut self,
        request: &Request,
        silence: Duration,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Option<Reply>, Failed> {
        let streamed = self.attempt(request, |line, server| {
            let reply = reply(line, server, true)?;
            if reply.status != 200 {
                return Ok(Some(reply));
            }
            while let Some(text) = line.line()? {
                if !take(&text) {
                    return Ok(None);
                }
                line.source.timed().wait_for(silence);
            }
            Err(io::Error::other("the server has ended the stream"))
        });
        if streamed.is_err() {
            self.distrust();
        }
        streamed
    }

    /// Sends a request, on the connection that was kept if that is still alive, and receives.
    fn attempt<T>(
        &mut self,
        request: &Request,
        receive: impl FnOnce(&mut Line, &Endpoint) -> io::Result<T>,
    ) -> Result<T, Failed> {
        let none = || Failed::Unreachable("there is no endpoint".to_owned());
        let endpoint = self.endpoints.get(self.current).cloned().ok_or_else(none)?;
        let kept = self.kept.take().and_then(|mut line| is_idle(&mut line).then_some(line));
        let opened = kept.map_or_else(|| self.open(&endpoint), Ok);
        let mut line = opened.map_err(|error| Failed::Unreachable(error.to_string()))?;
        let sent = send(&mut line, request, &endpoint);
        match sent.and_then(|()| receive(&mut line, &endpoint)) {
            Ok(received) => {
                self.kept = Some(line).filter(Incoming::is_reusable);
                Ok(received)
            }
            Err(error) => Err(failure(&mut line, &endpoint, &error)),
        }
    }

    fn open(&mut self, endpoint: &Endpoint) -> Result<Line> {
        let addresses = endpoint.addresses()?;
        self.opened = self.opened.wrapping_add(1);
        let address = addresses[self.opened % addresses.len()]; // it has one at least
        let since = Instant::now();
        let connect = || -> io::Result<TcpStream> {
            let socket = TcpStream::connect_timeout(&address, CONNECT)?;
            let [after, interval, count] = PROBES;
            setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
            setsockopt(&socket, sockopt::KeepAlive, &true)?;
            setsockopt(&socket, sockopt::TcpKeepIdle, &after)?;
            setsockopt(&socket, sockopt::TcpKeepInterval, &interval)?;
            setsockopt(&socket, sockopt::TcpKeepCount, &count)?;
            Ok(socket)
        };
        let failed = |e| Error::io(format_args!("connect to {endpoint}"), &e);
        let mut timed = Timed { socket: connect().map_err(failed)?, since, patience: CONNECT };
        if !endpoint.tls {
            return Ok(Incoming::new(Box::new(timed)));
        }
        let mut session = tls::session(&self.tls, endpoint)?;
        session.complete_io(&mut timed).map_err(|error| tls::explain(endpoint, &error))?;
        Ok(Incoming::new(Box::new(StreamOwned::new(session, timed))))
    }
}

/// Whether the server has neither closed the connection nor sent anything unasked.
fn is_idle(line: &mut Line) -> bool {
    let socket = &line.source.timed().socket;
    let peeked = socket.set_nonblocking(true).and_then(|()| socket.peek(&mut [0]));
    socket.set_nonblocking(false).is_ok()
        && peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn send(line: &mut Line, request: &Request, endpoint: &Endpoint) -> io::Result<()> {
    let Request { method, path, body, .. } = request;
    let (host, length) = (endpoint.authority(), body.len());
    let headers = request.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
    let headers: String = headers.collect();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    );
    line.source.timed().wait_for(REPLY);
    line.source.write_all(text.as_bytes())?;
    line.source.flush()
}

/// The reply; with status 200 its body may be a stream, which is left.
fn reply(line: &mut Line, endpoint: &Endpoint, is_stream: bool) -> io::Result<Reply> {
    let status = line.head()?;
    let has_end = !is_stream || status != 200;
    let body = if has_end { line.body(LARGEST_REPLY)? } else { vec![] };
    Ok(Reply { status, body, server: endpoint.to_string() })
}

/// Why a request has no reply that was sent, or began to be.
fn failure(line: &mut Line, endpoint: &Endpoint, error: &io::Error) -> Failed {
    let reason = match error.kind() {
        io::ErrorKind::TimedOut => {
            let patience = line.source.timed().patience.as_secs();
            Error::new(Code::IO, format!("{endpoint} did not answer within {patience} s"))
        }
        _ if endpoint.tls && !line.has_heard => tls::explain(endpoint, error),
        _ => Error::io(endpoint, error),
    };
    // A server that refuses the client certificate does so before it reads a request.
    match tls::error(error) {
        Some(rustls::Error::AlertReceived(_)) if !line.has_heard => {
            Failed::Unreachable(reason.to_string())
        }
        _ => Failed::Unknown(reason.to_string()),
    }
}

/// A socket, with or without TLS.
trait Wire: Read + Write + Send {
    /// The socket.
    fn timed(&mut self) -> &mut Timed;
}

/// A socket that waits until a point in time, however often it is read.
struct Timed {
    socket: TcpStream,
    since: Instant,
    patience: Duration,
}

impl Wire for Timed {
    fn timed(&mut self) -> &mut Timed {
        self
    }
}

impl Wire for StreamOwned<ClientConnection, Timed> {
    fn timed(&mut self) -> &mut Timed {
        &mut self.sock
    }
}

impl Timed {
    fn wait_for(&mut self, patience: Duration) {
        (self.since, self.patience) = (Instant::now(), patience);
    }

    /// Does something with the socket that ends in time.
    fn within<T>(&mut self, act: impl FnOnce(&mut TcpStream) -> io::Result<T>) -> io::Result<T> {
        let left = self.patience.saturating_sub(self.since.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        self.socket.set_write_timeout(Some(left))?;
        act(&mut self.socket).map_err(|error| match error.kind() {
            // The kernel reports the end of a wait as if there had been none.
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.within(|socket| socket.read(into))
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.within(|socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::settings::Access;
    use super::super::tests::fake::{Answer, Fake, reply};
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
        let reply = http.exchange(&request);
        reply.map(|reply| reply.status).map_err(|failed| matches!(failed, Failed::Unknown(_)))
    }

    fn of(urls: &[&str]) -> Http {
        let endpoints = urls.iter().map(|url| Endpoint::parse(url).unwrap()).collect();
        Http::new(endpoints, tls::load(&Access::default()).unwrap())
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
