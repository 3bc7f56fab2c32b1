//! One stream of changes: a request whose response does not end, with one message a line.

use std::os::fd::{AsFd as _, BorrowedFd};

use nix::poll::PollFlags;

use super::super::engine::{Change, Name, OperationId, Outcome};
use super::connection::Connection;
use super::found;
use super::keys::{Keys, Part};
use super::reply::{Event, Message, StreamError, WatchReply, decode};
use super::request::{KeyRange, Request};
use super::response::{Limits, Response};
use super::transport::{CONNECT, REPLY};
use super::verdict::Verdict;
use crate::error::{Code, Error, Result};
use crate::sys::clock::Moment;

/// The longest message. A longer one ends the watch: the list that follows has all it said.
const LIMITS: Limits = Limits { head: 16 * 1024, body: 4 << 20 };

/// A stream of the changes of one realm.
pub struct Watch {
    id: OperationId,
    realm: Name,
    line: Connection,
    response: Response,
    /// Until when the member has to have begun the stream; None once it has.
    deadline: Option<Moment>,
    established: bool,
}

/// Why a watch has ended.
#[derive(Debug)]
pub enum End {
    /// Its outcome.
    Outcome(Outcome),
    /// The token was not accepted.
    Unauthenticated(String),
}

impl Watch {
    /// Begins to watch a realm on a connection that was just opened, which has `request`.
    pub fn new(id: OperationId, realm: Name, line: Connection, now: Moment) -> Watch {
        let response = Response::new(LIMITS);
        Watch { id, realm, line, response, deadline: Some(now + CONNECT), established: false }
    }

    /// The request for the changes of a realm.
    pub fn request(keys: &Keys, realm: &Name, from: u64) -> Request {
        Request::watch(&KeyRange::prefix(&keys.realm(realm)), from)
    }

    /// The operation that asked for it.
    pub fn id(&self) -> OperationId {
        self.id
    }

    /// The descriptor to wait for.
    pub fn descriptor(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.line.as_fd(), self.line.interest())
    }

    /// The time of the next timeout.
    pub fn next_timer(&self) -> Option<Moment> {
        self.deadline
    }

    /// Whether the member has not begun the stream in time.
    pub fn is_late(&self, now: Moment) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// The outcome of a watch that is late.
    pub fn late(&self) -> End {
        unreachable(format!("{}: no answer to a watch", self.line.peer()))
    }

    /// Reads what has arrived: the changes, and the end if it was that.
    pub fn advance(&mut self, keys: &Keys, now: Moment) -> (Vec<Change>, Option<End>) {
        let mut changes = vec![];
        let end = match self.receive(now) {
            Ok(ended) => {
                self.interpret(keys, &mut changes).or_else(|| ended.then(|| self.closed()))
            }
            Err(error) => Some(unreachable(error.to_string())),
        };
        (changes, end)
    }

    /// Whether the connection has ended.
    fn receive(&mut self, now: Moment) -> Result<bool> {
        let received = self.line.advance()?;
        if self.line.is_established() && !self.established {
            self.established = true;
            self.deadline = Some(now + REPLY);
        }
        let flawed = |flaw| Error::new(Code::IO, format!("{}: {flaw}", self.line.peer()));
        self.response.feed(&received.bytes).map_err(flawed)?;
        Ok(received.ended)
    }

    fn closed(&self) -> End {
        unreachable(format!("{} has ended the watch", self.line.peer()))
    }

    fn interpret(&mut self, keys: &Keys, changes: &mut Vec<Change>) -> Option<End> {
        let status = self.response.status()?;
        if status != 200 {
            return self
                .response
                .is_complete()
                .then(|| refused(Verdict::of(status, self.response.body())));
        }
        while let Some(line) = self.response.take_line() {
            if line.is_empty() {
                continue;
            }
            match self.message(keys, &line) {
                Ok(more) => changes.extend(more),
                Err(end) => return Some(*end),
            }
        }
        self.response.is_complete().then(|| self.closed())
    }

    fn message(&mut self, keys: &Keys, line: &[u8]) -> Result<Vec<Change>, Box<End>> {
        let message: Message<WatchReply> =
            decode(line).map_err(|flaw| Box::new(unreachable(flaw)))?;
        if let Some(error) = message.error {
            return Err(Box::new(of_stream(&error)));
        }
        let reply = message.result.unwrap_or_default();
        if reply.canceled {
            return Err(Box::new(canceled(&reply)));
        }
        self.deadline = None;
        Ok(reply.events.iter().filter_map(|event| change(keys, &self.realm, event)).collect())
    }
}

fn change(keys: &Keys, realm: &Name, event: &Event) -> Option<Change> {
    let is_deleted = event.r#type == "DELETE";
    match keys.part(realm, &event.kv.key)? {
        Part::Block(block) if is_deleted => Some(Change::Released(block)),
        Part::Block(_) => found::block(keys, realm, &event.kv).map(Change::Claimed),
        Part::Note(block) if is_deleted => Some(Change::Noted(block, None)),
        Part::Note(block) => {
            let note = serde_json::from_slice(&event.kv.value.0).ok();
            note.map(|note| Change::Noted(block, Some(note)))
        }
        Part::Want(node) if is_deleted => Some(Change::Wanted(node, None)),
        Part::Want(node) => {
            let want = serde_json::from_slice(&event.kv.value.0).ok();
            want.map(|want| Change::Wanted(node, Some(want)))
        }
        Part::Pool(_) => None, // it warns of mistakes, and can wait for the next list
    }
}

fn unreachable(reason: String) -> End {
    End::Outcome(Outcome::Unreachable { reason })
}

fn of_stream(error: &StreamError) -> End {
    refused(Verdict::of_code(error.grpc_code, &error.message))
}

fn canceled(reply: &WatchReply) -> End {
    if reply.compact_revision.0 > 0 {
        return End::Outcome(Outcome::Compacted { revision: reply.compact_revision.0 });
    }
    match reply.cancel_reason.as_str() {
        reason if reason.contains("invalid auth token") => End::Unauthenticated(reason.to_owned()),
        reason if reason.contains("permission denied") => {
            refused(Verdict::Refused(reason.to_owned()))
        }
        reason => unreachable(format!("the watch was canceled: {reason}")),
    }
}

fn refused(verdict: Verdict) -> End {
    match verdict {
        Verdict::Unauthenticated(reason) => End::Unauthenticated(reason),
        Verdict::Refused(reason) => End::Outcome(Outcome::Refused { reason }),
        Verdict::Elsewhere(reason) | Verdict::Unknown(reason) => unreachable(reason),
        Verdict::Done | Verdict::Compacted => unreachable("the watch was refused".into()),
    }
}
