//! The connection: one request, and the answer to it.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::socket::UnixAddr;

use super::values::Values;
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::sys::local_stream::LocalStream;

/// The timeout of connecting, and of a whole request with its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The bytes of one read.
const PIECE: usize = 16 * 1024;

/// A connection.
pub struct Connection {
    stream: LocalStream,
    values: Values,
    deadline: Deadline,
}

impl Connection {
    /// Connects.
    pub fn open(address: &Address, deadline: Deadline) -> io::Result<Connection> {
        let patience = deadline.limit(PATIENCE);
        let stream = match address {
            Address::Unix(path) => LocalStream::connect(&UnixAddr::new(path)?, patience)?,
            Address::Tcp(address) => {
                // The deadlines of a Unix stream socket are socket options that a TCP socket has as
                // well.
                let socket = OwnedFd::from(TcpStream::connect_timeout(address, patience)?);
                LocalStream::over(socket.into(), patience)
            }
        };
        Ok(Connection { stream, values: Values::default(), deadline })
    }

    /// Wraps an existing connection.
    pub fn over(socket: OwnedFd, deadline: Deadline) -> Connection {
        let stream = LocalStream::over(socket.into(), deadline.limit(PATIENCE));
        Connection { stream, values: Values::default(), deadline }
    }

    /// Sends a request and returns the answer with its `id`. Echo requests of the server are
    /// answered; other messages are passed over.
    pub fn exchange(&mut self, request: &Value, id: u64) -> io::Result<Value> {
        self.stream.allow(self.deadline.limit(PATIENCE));
        self.send(request)?;
        loop {
            match sorted(self.receive()?) {
                Message::Answer(of, answer) if of == id => return Ok(answer),
                Message::Echo(pong) => self.send(&pong)?,
                Message::Answer(..) | Message::Other => (),
            }
        }
    }

    fn send(&mut self, value: &Value) -> io::Result<()> {
        self.stream.write_all(value.to_text().as_bytes())
    }

    fn receive(&mut self) -> io::Result<Value> {
        let mut piece = [0; PIECE];
        loop {
            if let Some(text) = self.values.next_whole().map_err(malformed)? {
                return Value::parse(&text).map_err(|e| malformed(e.msg.clone()));
            }
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(io::Error::other("the server has closed the connection")),
                Ok(length) => self.values.push(&piece[..length]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => (),
                Err(e) => return Err(e),
            }
        }
    }
}

/// What a message is.
enum Message {
    /// The answer to the request of this number.
    Answer(u64, Value),
    /// A question whether this side lives, with the answer that the server expects.
    Echo(Value),
    /// A notification.
    Other,
}

/// Sorts a message.
fn sorted(message: Value) -> Message {
    if message.get("method").and_then(Value::as_str) == Some("echo") {
        let part = |key| message.get(key).cloned().unwrap_or_default();
        let pong = [("id", part("id")), ("error", Value::Null), ("result", part("params"))];
        return Message::Echo(Value::object(pong));
    }
    match message.get("id").and_then(Value::as_u64) {
        Some(id) if message.get("method").is_none() => Message::Answer(id, message),
        _ => Message::Other,
    }
}

/// The error for bytes that are no answer of OVSDB.
pub fn malformed(problem: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no answer of OVSDB: {}", problem.into()))
}

/// The port that IANA has assigned to OVSDB.
const PORT: u16 = 6640;
/// The forms of an address.
const FORMS: &str = "unix:PATH or tcp:IP:PORT";

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

impl Address {
    /// Parses `unix:PATH`, `tcp:IP:PORT` or an absolute path; IPv6 stands in brackets.
    pub fn parse(text: &str) -> Result<Address> {
        if text.starts_with("ssl:") {
            return Err(Error::config("socket_file", "this client has no TLS").expecting(FORMS));
        }
        let address = match text.strip_prefix("tcp:") {
            Some(place) => {
                let bare = place.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
                let of_bare = bare.map(|ip| SocketAddr::new(ip, PORT));
                place.parse().or(of_bare).ok().map(Address::Tcp)
            }
            None => {
                let path = text.strip_prefix("unix:").unwrap_or(text);
                let is_path = path.starts_with('/') && !path.contains('\0');
                is_path.then(|| Address::Unix(path.into()))
            }
        };
        address.ok_or_else(|| {
            let problem = format_args!("{text:?} is no address of OVSDB");
            Error::config("socket_file", problem).expecting(FORMS)
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}
