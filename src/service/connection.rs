//! Client connections of a daemon: one request and one answer each.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::PollFlags;

use super::wire::REQUEST_MAX;
use crate::sys::clock::{Moment, NEVER};

/// The maximum number of connections, without those that wait for a slow answer; further ones wait
/// in the socket's queue.
pub const CONNECTIONS_MAX: usize = 512;
/// The timeout for receiving a request, and for sending an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client connection.
struct Connection {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    phase: Phase,
    /// When it times out; never while its request is processed.
    deadline: Moment,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Asking,
    Waiting,
    Answered,
}

/// The outcome of serving a ready connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A whole line, without its newline.
    Line(Vec<u8>),
    /// A partial line, or an answer that is not sent completely.
    Nothing,
    /// The connection is closed, by the client or by us.
    End,
}

/// All client connections.
#[derive(Default)]
pub struct Connections {
    all: BTreeMap<u64, Connection>,
    last: u64,
}

impl Connections {
    /// Adds a connection.
    pub fn add(&mut self, stream: UnixStream, now: Moment) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        self.last += 1;
        self.all.insert(self.last, Connection::new(stream, now + PATIENCE));
        Ok(())
    }

    /// Whether another connection is allowed.
    pub fn has_room(&self) -> bool {
        self.all.values().filter(|connection| connection.phase != Phase::Waiting).count()
            < CONNECTIONS_MAX
    }

    /// The events that each connection waits for. While its request is processed, only a hangup is
    /// reported.
    pub fn descriptors(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>, PollFlags)> {
        let all = self.all.iter();
        all.map(|(id, connection)| (*id, connection.stream.as_fd(), connection.awaited()))
    }

    /// Serves a ready connection.
    pub fn serve(&mut self, id: u64, flags: PollFlags) -> Heard {
        let Some(connection) = self.all.get_mut(&id) else { return Heard::Nothing };
        let heard = connection.serve(flags);
        if heard == Heard::End {
            self.all.remove(&id);
        }
        heard
    }

    /// Sends a line ahead of the answer.
    pub fn tell(&mut self, id: u64, line: &str) {
        if let Some(connection) = self.all.get_mut(&id) {
            connection.output.extend(line.as_bytes());
        }
    }

    /// Answers a request, after which the connection is closed. False if the client has hung up.
    pub fn answer(&mut self, id: u64, text: &str, now: Moment) -> bool {
        let Some(connection) = self.all.get_mut(&id) else { return false };
        connection.output.extend(text.as_bytes());
        connection.phase = Phase::Answered;
        connection.deadline = now + PATIENCE;
        let is_whole = connection.flush() != Heard::End || connection.output.is_empty();
        if connection.output.is_empty() || !is_whole {
            self.all.remove(&id);
        }
        is_whole
    }

    /// The next timeout of a connection.
    pub fn next(&self) -> Option<Moment> {
        self.all
            .values()
            .map(|connection| connection.deadline)
            .filter(|deadline| *deadline != NEVER)
            .min()
    }

    /// Closes the connections that have timed out.
    pub fn expire(&mut self, now: Moment) {
        self.all.retain(|_, connection| now < connection.deadline);
    }
}

impl Connection {
    fn new(stream: UnixStream, deadline: Moment) -> Connection {
        Connection { stream, input: vec![], output: vec![], phase: Phase::Asking, deadline }
    }

    /// The events that it waits for.
    fn awaited(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::POLLIN, self.phase == Phase::Asking);
        flags.set(PollFlags::POLLOUT, !self.output.is_empty());
        flags
    }

    fn serve(&mut self, flags: PollFlags) -> Heard {
        match self.phase {
            _ if flags.contains(PollFlags::POLLOUT) => self.flush(),
            Phase::Asking => self.read(),
            _ => Heard::End, // the client hung up
        }
    }

    fn read(&mut self) -> Heard {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => Heard::End,
            Ok(count) => self.hear(&buffer[..count]),
            Err(e) if is_for_later(&e) => Heard::Nothing,
            Err(_) => Heard::End,
        }
    }

    /// Takes in a part of the request.
    fn hear(&mut self, bytes: &[u8]) -> Heard {
        let newline = bytes.iter().position(|byte| *byte == b'\n');
        self.input.extend(&bytes[..newline.unwrap_or(bytes.len())]);
        if newline.is_some() {
            (self.phase, self.deadline) = (Phase::Waiting, NEVER);
            return Heard::Line(std::mem::take(&mut self.input));
        }
        if self.input.len() > REQUEST_MAX { Heard::End } else { Heard::Nothing }
    }

    /// Writes as much as possible; returns the end once an answer is complete.
    fn flush(&mut self) -> Heard {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(e) if is_for_later(&e) => return Heard::Nothing,
                Err(_) => return Heard::End,
            }
        }
        if self.phase == Phase::Answered { Heard::End } else { Heard::Nothing }
    }
}

/// Whether the call of a non-blocking socket is to be repeated once that is ready.
pub fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const NOW: Moment = Duration::from_secs(100);

    /// A connection, from the client's side and ours.
    fn connected() -> (UnixStream, Connections) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let mut connections = Connections::default();
        connections.add(ours, NOW).unwrap();
        (theirs, connections)
    }

    #[test]
    fn a_line_may_come_in_pieces_and_the_answer_ends_the_connection() {
        let (mut theirs, mut connections) = connected();
        assert_eq!(connections.serve(1, PollFlags::POLLIN), Heard::Nothing, "nothing has come");
        theirs.write_all(b"ab").unwrap();
        assert_eq!(connections.serve(1, PollFlags::POLLIN), Heard::Nothing);
        theirs.write_all(b"c\nrest").unwrap();
        assert_eq!(connections.serve(1, PollFlags::POLLIN), Heard::Line(b"abc".to_vec()));
        assert_eq!((connections.next(), connections.all.len()), (None, 1), "it waits for us");
        connections.tell(1, "wait\n");
        assert!(connections.answer(1, "yes\n", NOW));
        let mut answer = String::new();
        theirs.read_to_string(&mut answer).unwrap();
        assert_eq!((answer.as_str(), connections.all.len()), ("wait\nyes\n", 0));
    }

    #[test]
    fn an_answer_that_does_not_fit_goes_on_when_there_is_room() {
        let (mut theirs, mut connections) = connected();
        theirs.write_all(b"\n").unwrap();
        connections.serve(1, PollFlags::POLLIN);
        let long = "x".repeat(4 << 20);
        assert!(connections.answer(1, &long, NOW));
        let reader = std::thread::spawn(move || {
            let mut answer = String::new();
            theirs.read_to_string(&mut answer).unwrap();
            answer.len()
        });
        while connections.serve(1, PollFlags::POLLOUT) != Heard::End {}
        assert_eq!(reader.join().unwrap(), long.len());
    }

    #[test]
    fn who_hangs_up_is_forgotten_and_cannot_be_answered() {
        let (theirs, mut connections) = connected();
        drop(theirs);
        assert!(!connections.answer(1, "yes\n", NOW));
        assert_eq!(connections.all.len(), 0);
        let (theirs, mut connections) = connected();
        drop(theirs);
        assert_eq!(connections.serve(1, PollFlags::POLLIN | PollFlags::POLLHUP), Heard::End);
        assert_eq!(connections.all.len(), 0);
    }

    /// A request in progress does not count against the limit.
    #[test]
    fn a_connection_that_waits_for_us_leaves_its_room_to_others() {
        let (theirs, mut connections) = connected();
        for _ in 1..CONNECTIONS_MAX {
            connections.add(theirs.try_clone().unwrap(), NOW).unwrap();
        }
        assert!(!connections.has_room());
        connections.all.values_mut().for_each(|connection| connection.phase = Phase::Waiting);
        assert!(connections.has_room());
    }

    #[test]
    fn who_is_silent_or_never_ends_is_hung_up_on() {
        let (_theirs, mut connections) = connected();
        assert_eq!(connections.next(), Some(NOW + PATIENCE));
        connections.expire(NOW + PATIENCE);
        assert_eq!(connections.all.len(), 0);
        let (mut theirs, mut connections) = connected();
        let endless = std::thread::spawn(move || while theirs.write_all(&[b'x'; 4096]).is_ok() {});
        while connections.serve(1, PollFlags::POLLIN) != Heard::End {}
        endless.join().unwrap();
    }
}
