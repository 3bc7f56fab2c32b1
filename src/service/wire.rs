//! The protocol of a daemon's socket: one line of JSON in each direction.
//!
//! `{"protocol":1,…}` is answered by `{"protocol":1,"answer":…}` or `{"protocol":1,"error":{…}}`,
//! with the members of a CNI error object. If the answer may take long,
//! `{"protocol":1,"patience":208}` precedes it: the maximum number of seconds.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::UnixAddr;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Identity;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::sys::local_stream::LocalStream;

/// The code of errors about another program on the socket.
const OTHER_PROGRAM: Code = Code::CONFLICT;
/// The longest request that a daemon reads: ten times a GC of a thousand attachments.
pub const REQUEST_MAX: usize = 1 << 20;
/// The longest answer: the whole state of a daemon.
const ANSWER_MAX: u64 = 1 << 26;
/// The timeout for an immediate answer of a healthy daemon.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest wait for an answer, whatever is announced: another program may have the socket.
const LONGEST: Duration = Duration::from_secs(3600);

/// A line with the protocol version.
#[derive(Serialize, Deserialize)]
struct Line<T> {
    #[serde(flatten)]
    said: T,
    protocol: u64,
}

/// The members of a line that are read first.
#[derive(Deserialize)]
struct Head {
    protocol: Option<u64>,
}

/// The content of a daemon's line, as sent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Words<A> {
    /// The answer.
    Answer(A),
    /// An error in its place.
    Error(ErrorObject),
    /// The number of seconds within which one of these follows.
    Patience(u64),
}

/// An error as sent.
#[derive(Debug, Serialize, Deserialize)]
pub struct ErrorObject {
    code: u32,
    msg: String,
    #[serde(default)]
    details: String,
}

impl From<&Error> for ErrorObject {
    fn from(error: &Error) -> ErrorObject {
        ErrorObject { code: error.code.0, msg: error.msg.clone(), details: error.details() }
    }
}

impl From<ErrorObject> for Error {
    fn from(told: ErrorObject) -> Error {
        Error::new(Code(told.code), told.msg).with_details(told.details)
    }
}

impl Identity {
    /// Encodes a request, without its newline.
    pub fn request_line<Q: Serialize>(&self, request: &Q) -> String {
        line(self, request)
    }

    /// Decodes a request. Code 6 if it is not of this protocol.
    pub fn read_request<Q: DeserializeOwned>(&self, line: &[u8]) -> Result<Q> {
        self.verify_request(line)?;
        decode(line).map_err(|e| e.context("read the request"))
    }

    /// Checks that a request is of this protocol, for a daemon that decodes the rest itself. Code 6
    /// if not.
    pub fn verify_request(&self, line: &[u8]) -> Result<()> {
        let protocol = protocol_of(line).map_err(|e| e.context("read the request"))?;
        if protocol != Some(self.protocol) {
            return Err(self.other_version("the client", protocol, "daemon"));
        }
        Ok(())
    }

    /// Encodes the answer to a request.
    pub fn answer_line<A: Serialize>(&self, answer: &Result<A>) -> String {
        let words = match answer {
            Ok(answer) => Words::Answer(answer),
            Err(error) => Words::Error(error.into()),
        };
        line(self, &words) + "\n"
    }

    /// Encodes the line before an answer that may take this long.
    pub fn patience_line(&self, patience: Duration) -> String {
        line(self, &Words::<()>::Patience(patience.as_secs())) + "\n"
    }

    /// Decodes a line from the daemon that listens at `socket`.
    pub fn read_answer<A: DeserializeOwned>(&self, line: &[u8], socket: &Path) -> Result<Words<A>> {
        let asked = format_args!("ask the {} at {socket:?}", self.name);
        if line.starts_with(b"HTTP/") {
            let error = Error::new(OTHER_PROGRAM, "another program answers there, in HTTP");
            let rival = self.rival.unwrap_or("another daemon");
            return Err(error.context(asked).with_details(format_args!(
                "is it {rival}? stop that one and start {} of cni-multi",
                self.units
            )));
        }
        if !line.ends_with(b"\n") {
            return Err(self.hung_up(socket));
        }
        let answer = || {
            let protocol = protocol_of(line)?;
            if protocol != Some(self.protocol) {
                return Err(self.other_version("the daemon", protocol, "client"));
            }
            decode(line).map(|line: Line<Words<A>>| line.said)
        };
        answer().map_err(|e| e.context(asked))
    }

    /// Connects to the daemon that listens at `socket`; see [`Identity::unreached`].
    pub fn connect<'a>(
        &'static self,
        socket: &'a Path,
        deadline: Deadline,
    ) -> io::Result<Connected<'a>> {
        let stream = LocalStream::connect(&UnixAddr::new(socket)?, deadline.limit(PATIENCE))?;
        Ok(Connected { identity: self, stream, socket, deadline })
    }

    /// The error for a connection that could not be made.
    pub fn unreached(&self, socket: &Path, error: &io::Error) -> Error {
        let error = Error::io(format_args!("connect to the {} at {socket:?}", self.name), error);
        if is_nobody(&error) {
            error.with_details(format_args!("it does not run: start {}", self.units))
        } else {
            error
        }
    }

    /// The error for a connection that failed later.
    fn broken(&self, socket: &Path, error: &io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => self.hung_up(socket),
            _ => Error::io(format_args!("talk to the {} at {socket:?}", self.name), error),
        }
    }

    fn hung_up(&self, socket: &Path) -> Error {
        let msg = format!("ask the {} at {socket:?}: it hung up without an answer", self.name);
        Error::new(Code::TRY_AGAIN, msg)
            .with_details("it may have been restarted; its log says why")
    }

    fn other_version(&self, who: &str, theirs: Option<u64>, we: &str) -> Error {
        let theirs = theirs
            .map_or("no protocol of ours".to_owned(), |version| format!("protocol {version}"));
        let msg = format!("{who} speaks {theirs}, this {we} {}", self.protocol);
        Error::new(Code::DECODE, msg)
            .with_details("plugin and daemon are one binary: restart the daemon after an upgrade")
    }
}

fn protocol_of(line: &[u8]) -> Result<Option<u64>> {
    decode(line).map(|head: Head| head.protocol)
}

/// Decodes a line, or a part of it.
fn decode<T: DeserializeOwned>(line: &[u8]) -> Result<T> {
    let text = String::from_utf8_lossy(line);
    serde_json::from_str(&text).map_err(|e| Error::new(Code::DECODE, e.to_string()))
}

/// How long to wait for an answer that the daemon has announced within these seconds. Its operator has
/// set that time, which may be longer than an operation; only what is added to it ends with the
/// operation's deadline.
fn announced(seconds: u64, deadline: Deadline) -> Duration {
    let patience = Duration::from_secs(seconds).min(LONGEST);
    deadline.limit(patience + PATIENCE).max(patience)
}

/// Encodes a line. Strings, numbers and lists of them always serialise.
fn line<T: Serialize>(identity: &Identity, said: &T) -> String {
    serde_json::to_string(&Line { said, protocol: identity.protocol }).unwrap_or_default()
}

/// A connection to a daemon.
pub struct Connected<'a> {
    identity: &'static Identity,
    stream: LocalStream,
    socket: &'a Path,
    deadline: Deadline,
}

impl<'a> Connected<'a> {
    /// Sends a request; the answer may be awaited later.
    pub fn ask<Q: Serialize>(mut self, request: &Q) -> Result<Asked<'a>> {
        let line = self.identity.request_line(request) + "\n";
        let Connected { identity, socket, deadline, .. } = self;
        self.stream.write_all(line.as_bytes()).map_err(|e| identity.broken(socket, &e))?;
        Ok(Asked { identity, stream: BufReader::new(self.stream), socket, deadline })
    }
}

/// A sent request.
pub struct Asked<'a> {
    identity: &'static Identity,
    stream: BufReader<LocalStream>,
    socket: &'a Path,
    deadline: Deadline,
}

impl Asked<'_> {
    /// Waits for the answer. The inner result is the daemon's answer, the outer one reports that
    /// there was none. Code 11 means that the daemon ended meanwhile.
    pub fn answer<A: DeserializeOwned>(mut self) -> Result<Result<A>> {
        self.stream.get_mut().allow(self.deadline.limit(PATIENCE));
        let begin = Instant::now();
        loop {
            let line = self.read_line().map_err(|e| self.identity.broken(self.socket, &e))?;
            match self.identity.read_answer(&line, self.socket)? {
                Words::Answer(answer) => return Ok(Ok(answer)),
                Words::Error(error) => return Ok(Err(error.into())),
                Words::Patience(seconds) => {
                    let left = LONGEST.saturating_sub(begin.elapsed()); // it may announce for ever
                    self.stream.get_mut().allow(announced(seconds, self.deadline).min(left));
                }
            }
        }
    }

    fn read_line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = vec![];
        (&mut self.stream).take(ANSWER_MAX).read_until(b'\n', &mut line)?;
        Ok(line)
    }
}

/// Whether no daemon of ours can be at the socket: no process listens, another program does, or a
/// file is in the place of a directory.
pub fn is_not_running(error: &Error) -> bool {
    is_nobody(error) || error.is_errno(Errno::ENOTDIR) || error.code == OTHER_PROGRAM
}

fn is_nobody(error: &Error) -> bool {
    error.is_errno(Errno::ENOENT) || error.is_errno(Errno::ECONNREFUSED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_wait_has_an_end() {
        for (seconds, expected) in [(208, 208), (3600, 3600), (3601, 3600), (u64::MAX, 3600)] {
            let wait = announced(seconds, Deadline::after(Duration::ZERO));
            assert_eq!(wait.as_secs(), expected);
        }
    }

    #[test]
    fn an_announced_answer_may_take_longer_than_the_operation() {
        let seconds = Duration::from_secs;
        let cases = [(500, 55, 85), (60, 55, 60), (0, 55, 55), (60, 213, 213), (0, 0, 5)];
        for (left, patience, expected) in cases {
            let wait = announced(patience, Deadline::after(seconds(left)));
            assert_eq!(wait.as_secs_f64().round() as u64, expected, "{left} {patience}");
        }
    }
}
