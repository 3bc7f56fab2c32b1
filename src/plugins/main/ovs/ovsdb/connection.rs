//! The connection: one request, and the answer to it.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::socket::UnixAddr;

use super::address::Address;
use super::message::{self, Message};
use super::values::Values;
use crate::cni::json::Value;
use crate::deadline::Deadline;
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
            match message::of(self.receive()?) {
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
            if let Some(text) = self.values.next().map_err(message::malformed)? {
                return Value::parse(&text).map_err(|e| message::malformed(e.msg.clone()));
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
