//! One request at a time to whichever member answers: connects, sends, and goes on to the next
//! member as long as no member can have executed the request.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use nix::poll::PollFlags;

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::request::Request;
use super::response::{Limits, Response};
use super::tls::Tls;
use super::verdict::Verdict;
use crate::error::{Code, Error, Result};
use crate::sys::clock::Moment;

/// How long a connection may take, with TLS.
pub const CONNECT: Duration = Duration::from_secs(2);
/// How long a member may take from the request to the end of its reply.
pub const REPLY: Duration = Duration::from_secs(5);

/// A reply has at most a page of keys.
const LIMITS: Limits = Limits { head: 16 * 1024, body: 8 << 20 };

/// The members, and the request that is under way.
pub struct Transport {
    endpoints: Vec<Endpoint>,
    tls: Tls,
    /// The member that is used, as an index.
    current: usize,
    /// Counts connections, so that each address of a name has its turn.
    opened: usize,
    line: Option<Connection>,
    exchange: Option<Exchange>,
}

/// A request under way.
struct Exchange {
    request: Request,
    token: Option<String>,
    response: Response,
    deadline: Moment,
    /// Whether the line was established when the deadline was set.
    established: bool,
    /// How many members have failed.
    failed: usize,
}

/// How a request ended.
#[derive(Debug)]
pub enum Ended {
    /// A member has executed it; the body of its reply.
    Reply(Vec<u8>),
    /// It was not executed, for a reason that every member would give.
    Verdict(Verdict),
    /// No member was sent the request.
    Unreachable(String),
    /// It was sent; whether it was executed is unknown.
    Unknown(String),
}

impl Transport {
    /// There has to be an endpoint.
    pub fn new(endpoints: Vec<Endpoint>, tls: Tls) -> Transport {
        Transport { endpoints, tls, current: 0, opened: 0, line: None, exchange: None }
    }

    /// Replaces the certificates: the next connection has them.
    pub fn set_tls(&mut self, tls: Tls) {
        self.tls = tls;
        if self.exchange.is_none() {
            self.line = None;
        }
    }

    /// Whether the next request has a connection already.
    pub fn is_connected(&mut self) -> bool {
        if self.exchange.is_none() {
            self.drop_dead_line();
        }
        self.line.is_some()
    }

    /// The member that is used.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoints.get(self.current)
    }

    /// Whether a request is under way.
    pub fn is_busy(&self) -> bool {
        self.exchange.is_some()
    }

    /// Begins a request. The transport must not be busy.
    pub fn start(&mut self, request: Request, token: Option<String>, now: Moment) -> Option<Ended> {
        let response = Response::new(LIMITS);
        let deadline = now + CONNECT;
        self.exchange =
            Some(Exchange { request, token, response, deadline, established: false, failed: 0 });
        self.drop_dead_line();
        self.pursue(now)
    }

    /// The descriptor to wait for.
    pub fn descriptor(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        self.line.as_ref().map(|line| (line.as_fd(), line.interest()))
    }

    /// The time of the next timeout.
    pub fn next_timer(&self) -> Option<Moment> {
        self.exchange.as_ref().map(|exchange| exchange.deadline)
    }

    /// Handles a ready descriptor.
    pub fn ready(&mut self, now: Moment) -> Option<Ended> {
        if self.exchange.is_none() {
            self.drop_dead_line();
            return None;
        }
        match self.advance(now) {
            Ok(true) => self.conclude(now),
            Ok(false) => None,
            Err(error) => self.fail(&error.to_string(), now),
        }
    }

    /// Handles a timeout.
    pub fn timer(&mut self, now: Moment) -> Option<Ended> {
        let exchange = self.exchange.as_ref()?;
        if now < exchange.deadline {
            return None;
        }
        let peer = self.endpoint().map(ToString::to_string).unwrap_or_default();
        let why = match exchange.established {
            true => format!("{peer} did not answer within {} s", REPLY.as_secs()),
            false => format!("connect to {peer}: timed out after {} s", CONNECT.as_secs()),
        };
        self.fail(&why, now)
    }

    /// Opens a connection to a member for something else than requests.
    pub fn open(&mut self) -> Result<Connection> {
        let none = || Error::new(Code::INVALID_CONFIG, "etcd.endpoints: empty");
        let endpoint = self.endpoints.get(self.current).ok_or_else(none)?;
        let addresses = endpoint.addresses()?;
        self.opened = self.opened.wrapping_add(1);
        let address = addresses.get(self.opened % addresses.len().max(1)).ok_or_else(none)?;
        Connection::open(endpoint, *address, &self.tls)
    }

    /// A member may close an idle connection at any time; one that has closed it already is not
    /// sent a request, whose outcome would be unknown.
    fn drop_dead_line(&mut self) {
        let Some(line) = &mut self.line else { return };
        let is_idle =
            line.advance().is_ok_and(|received| !received.ended && received.bytes.is_empty());
        if !is_idle {
            self.line = None;
        }
    }

    /// Sends the request on the line, which is opened if there is none.
    fn pursue(&mut self, now: Moment) -> Option<Ended> {
        if self.line.is_none() {
            match self.open() {
                Ok(line) => self.line = Some(line),
                Err(error) => return self.fail(&error.to_string(), now),
            }
        }
        let (Some(line), Some(exchange)) = (&mut self.line, &mut self.exchange) else {
            return None;
        };
        let endpoint = self.endpoints.get(self.current)?;
        exchange.deadline = now + CONNECT;
        exchange.established = false;
        exchange.response = Response::new(LIMITS);
        line.send(&exchange.request.to_http(endpoint, exchange.token.as_deref()));
        self.ready(now)
    }

    /// Moves bytes; whether the reply is complete.
    fn advance(&mut self, now: Moment) -> Result<bool> {
        let (Some(line), Some(exchange)) = (&mut self.line, &mut self.exchange) else {
            return Ok(false);
        };
        let received = line.advance()?;
        if line.is_established() && !exchange.established {
            exchange.established = true;
            exchange.deadline = now + REPLY;
        }
        let flawed = |flaw| Error::new(Code::IO, format!("{}: {flaw}", line.peer()));
        exchange.response.feed(&received.bytes).map_err(flawed)?;
        if received.ended {
            exchange.response.end().map_err(|flaw| flawed(flaw).with_details(line.advice()))?;
        }
        Ok(exchange.response.is_complete())
    }

    /// The reply is complete.
    fn conclude(&mut self, now: Moment) -> Option<Ended> {
        let response = &self.exchange.as_ref()?.response;
        let usable = response.leaves_connection_usable();
        let ended = match Verdict::of(response.status().unwrap_or(0), response.body()) {
            Verdict::Unknown(why) => return self.fail(&self.naming_member(&why), now),
            Verdict::Elsewhere(why) => {
                self.line = None; // it was sent and not executed, as if it had not been sent
                return self.fail(&self.naming_member(&why), now);
            }
            Verdict::Done => Ended::Reply(self.exchange.take()?.response.into_body()),
            verdict => Ended::Verdict(verdict),
        };
        self.exchange = None;
        self.line = self.line.take().filter(|_| usable);
        Some(ended)
    }

    /// The member answers nonsense: the next request goes to another.
    pub fn distrust(&mut self) {
        self.line = None;
        self.current = (self.current + 1) % self.endpoints.len().max(1);
    }

    fn naming_member(&self, why: &str) -> String {
        self.endpoint().map_or_else(|| why.to_owned(), |endpoint| format!("{endpoint}: {why}"))
    }

    /// This member has failed. A write that may have been executed ends here; anything else goes on
    /// to the next member until each has failed.
    fn fail(&mut self, why: &str, now: Moment) -> Option<Ended> {
        let was_sent = self.line.take().is_some_and(|line| line.has_sent());
        self.distrust();
        let exchange = self.exchange.as_mut()?;
        exchange.failed += 1;
        let is_over = exchange.failed >= self.endpoints.len();
        if !is_over && (exchange.request.is_read || !was_sent) {
            return self.pursue(now);
        }
        self.exchange = None;
        Some(if was_sent {
            Ended::Unknown(why.to_owned())
        } else {
            Ended::Unreachable(why.to_owned())
        })
    }
}
