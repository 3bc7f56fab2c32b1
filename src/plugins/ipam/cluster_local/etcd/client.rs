//! The engine: takes operations, yields their outcomes, and never waits.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use nix::poll::PollFlags;

use super::super::engine::{Name, Operation, OperationId, Outcome};
use super::backoff::Backoff;
use super::encoding::Number;
pub use super::event::{Event, Inspection, Source, Store};
use super::job::{Flaw, Job, Next, known};
use super::keys::Keys;
use super::login::Login;
use super::reply::{RangeReply, decode};
use super::request::{KeyRange, Range, Request};
use super::tls::Tls;
use super::transport::{Ended, Transport};
use super::verdict::Verdict;
use super::watch::{End, Watch};
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// Where Kubernetes keeps its objects: a user who can read them reads every secret of the cluster.
const REGISTRY: &str = "/registry/";

/// A client of one etcd.
pub struct Client {
    keys: Keys,
    transport: Transport,
    login: Option<Login>,
    backoff: Backoff,
    /// Why no member could be reached.
    last_failure: String,
    tasks: VecDeque<(OperationId, Task)>,
    /// What the request under way is for.
    purpose: Purpose,
    watches: Vec<Watch>,
    events: VecDeque<Event>,
}

/// What waits in the queue.
enum Task {
    Job(Box<Job>),
    Inspection,
}

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Task,
    Token,
}

impl Client {
    /// A client that connects when it has something to ask.
    pub fn new(store: Store, random: Random) -> Client {
        Client {
            keys: Keys::of(&store.cluster),
            transport: Transport::new(store.endpoints, store.tls),
            login: store.login,
            backoff: Backoff::new(random),
            last_failure: String::new(),
            tasks: VecDeque::new(),
            purpose: Purpose::Task,
            watches: vec![],
            events: VecDeque::new(),
        }
    }

    /// Queues an operation. Operations are executed one after the other.
    pub fn submit(&mut self, id: OperationId, operation: Operation, now: Moment) {
        let job = Task::Job(Box::new(Job::new(operation, &self.keys)));
        self.tasks.push_back((id, job));
        self.pump(now);
    }

    /// Queues the question whether this is the etcd of a Kubernetes control plane.
    pub fn inspect(&mut self, now: Moment) {
        self.tasks.push_back((OperationId::default(), Task::Inspection));
        self.pump(now);
    }

    /// Ends a watch, which then has no outcome.
    pub fn forget(&mut self, id: OperationId) {
        self.watches.retain(|watch| watch.id() != id);
    }

    /// Replaces certificates and login, for connections and tokens from now on.
    pub fn set_credentials(&mut self, tls: Tls, login: Option<Login>) {
        self.transport.set_tls(tls);
        self.login = login;
    }

    /// Whether the next request needs neither a new connection nor a new token.
    pub fn is_connected(&mut self) -> bool {
        let has_token = self.login.as_ref().is_none_or(|login| login.token().is_some());
        self.transport.is_connected() && has_token
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The descriptors, and the events that each waits for.
    pub fn descriptors(&self) -> Vec<(Source, BorrowedFd<'_>, PollFlags)> {
        let requests = self.transport.descriptor().map(|(fd, flags)| (Source::Requests, fd, flags));
        let watches = self.watches.iter().map(|watch| {
            let (fd, flags) = watch.descriptor();
            (Source::Watch(watch.id()), fd, flags)
        });
        requests.into_iter().chain(watches).collect()
    }

    /// Handles a ready descriptor, whichever event it was ready for.
    pub fn ready(&mut self, source: Source, now: Moment) {
        match source {
            Source::Requests => {
                let ended = self.transport.ready(now);
                self.handle(ended, now);
            }
            Source::Watch(id) => self.read_watch(id, now),
        }
    }

    /// The time of the next [`Client::timer`] call.
    pub fn next_timer(&self) -> Option<Moment> {
        let watches = self.watches.iter().filter_map(Watch::next_timer);
        self.transport.next_timer().into_iter().chain(watches).min()
    }

    /// Handles everything due by now.
    pub fn timer(&mut self, now: Moment) {
        let ended = self.transport.timer(now);
        self.handle(ended, now);
        for watch in std::mem::take(&mut self.watches) {
            if watch.is_late(now) {
                self.end_watch(watch.id(), watch.late());
            } else {
                self.watches.push(watch);
            }
        }
    }

    fn handle(&mut self, ended: Option<Ended>, now: Moment) {
        if let Some(ended) = ended {
            self.ended(ended, now);
            self.pump(now);
        }
    }

    /// Begins requests until one is under way or nothing waits.
    fn pump(&mut self, now: Moment) {
        while !self.transport.is_busy() && !self.tasks.is_empty() {
            if self.backoff.left(now).is_some() {
                return self.refuse_all(now);
            }
            if let Some(ended) = self.begin(now) {
                self.ended(ended, now);
            }
        }
    }

    /// No member could be reached a moment ago: what waits is answered at once.
    fn refuse_all(&mut self, now: Moment) {
        let left = self.backoff.left(now).unwrap_or_default().as_secs_f32();
        let reason = format!("{}; the next attempt is in {left:.1} s", self.last_failure);
        while !self.tasks.is_empty() {
            self.finish(Outcome::Unreachable { reason: reason.clone() });
        }
    }

    /// Begins the request of the first task, or of the token that it needs.
    fn begin(&mut self, now: Moment) -> Option<Ended> {
        let needs_token = self.login.as_ref().filter(|login| login.token().is_none());
        if let Some(login) = needs_token {
            self.purpose = Purpose::Token;
            let request = login.request();
            return self.transport.start(request, None, now);
        }
        self.purpose = Purpose::Task;
        let (id, task) = self.tasks.front()?;
        let request = match task {
            Task::Inspection => inspection(),
            Task::Job(job) => match job.operation() {
                Operation::Watch { realm, from } => {
                    let (id, realm, from) = (*id, realm.clone(), *from);
                    self.begin_watch(id, &realm, from, now);
                    return None;
                }
                _ => job.request(&self.keys),
            },
        };
        let token = self.token();
        self.transport.start(request, token, now)
    }

    fn token(&self) -> Option<String> {
        self.login.as_ref().and_then(Login::token).map(str::to_owned)
    }

    /// A watch has a connection of its own and leaves the queue.
    fn begin_watch(&mut self, id: OperationId, realm: &Name, from: u64, now: Moment) {
        let request = Watch::request(&self.keys, realm, from);
        let token = self.token();
        let mut line = match self.transport.open() {
            Ok(line) => line,
            Err(error) => {
                self.transport.distrust();
                return self.finish(Outcome::Unreachable { reason: error.to_string() });
            }
        };
        let Some(endpoint) = self.transport.endpoint() else { return };
        line.send(&request.to_http(endpoint, token.as_deref()));
        self.tasks.pop_front();
        self.watches.push(Watch::new(id, realm.clone(), line, now));
    }

    fn read_watch(&mut self, id: OperationId, now: Moment) {
        let Some(watch) = self.watches.iter_mut().find(|watch| watch.id() == id) else { return };
        let (changes, end) = watch.advance(&self.keys, now);
        self.events.extend(changes.into_iter().map(|change| Event::Change(id, change)));
        if let Some(end) = end {
            self.watches.retain(|watch| watch.id() != id);
            self.end_watch(id, end);
        }
    }

    fn end_watch(&mut self, id: OperationId, end: End) {
        let outcome = match end {
            End::Outcome(outcome) => outcome,
            // The list before the next watch authenticates again.
            End::Unauthenticated(reason) => {
                self.login.iter_mut().for_each(Login::forget_token);
                Outcome::Unreachable { reason }
            }
        };
        self.events.push_back(Event::Outcome(id, outcome));
    }

    /// A request has ended.
    fn ended(&mut self, ended: Ended, now: Moment) {
        match &ended {
            Ended::Reply(_) | Ended::Verdict(_) => self.backoff.succeeded(),
            Ended::Unreachable(why) => self.contact_lost(why, now),
            Ended::Unknown(why) if self.is_read() => self.contact_lost(why, now),
            Ended::Unknown(_) => (),
        }
        match self.purpose {
            Purpose::Token => self.token_ended(ended),
            Purpose::Task => self.task_ended(ended),
        }
    }

    fn contact_lost(&mut self, why: &str, now: Moment) {
        why.clone_into(&mut self.last_failure);
        self.backoff.failed(now);
    }

    /// Whether the request under way changes nothing.
    fn is_read(&self) -> bool {
        match (self.purpose, self.tasks.front()) {
            (Purpose::Task, Some((_, Task::Job(job)))) => job.request(&self.keys).is_read,
            _ => true,
        }
    }

    fn token_ended(&mut self, ended: Ended) {
        let Some(login) = &mut self.login else { return };
        let outcome = match ended {
            Ended::Reply(body) => match login.replied(&body) {
                Ok(()) => return,
                Err(reason) => Outcome::Unreachable { reason },
            },
            Ended::Verdict(Verdict::Unauthenticated(reason)) => Outcome::Unauthenticated { reason },
            Ended::Verdict(verdict) => refusal(verdict),
            Ended::Unreachable(reason) | Ended::Unknown(reason) => Outcome::Unreachable { reason },
        };
        self.finish(outcome);
    }

    fn task_ended(&mut self, ended: Ended) {
        if let Ended::Verdict(Verdict::Unauthenticated(_)) = &ended
            && self.login.as_mut().is_some_and(Login::may_retry)
        {
            return; // the token has expired: the task begins again with a new one
        }
        let is_read = self.is_read();
        let outcome = match ended {
            Ended::Reply(body) => return self.task_replied(&body),
            Ended::Verdict(Verdict::Compacted) => return self.task_compacted(),
            Ended::Verdict(verdict) => refusal(verdict),
            Ended::Unknown(reason) if !is_read => Outcome::Unknown { reason },
            Ended::Unreachable(reason) | Ended::Unknown(reason) => Outcome::Unreachable { reason },
        };
        self.finish(outcome);
    }

    fn task_replied(&mut self, body: &[u8]) {
        self.login.iter_mut().for_each(Login::accepted);
        let is_read = self.is_read();
        match self.tasks.front_mut() {
            Some((_, Task::Job(job))) => match job.replied(&self.keys, body) {
                Ok(Next::Request) => (),
                Ok(Next::Finished(outcome)) => self.finish(outcome),
                Err(reason) => self.distrust(reason, is_read),
            },
            Some((_, Task::Inspection)) => match inspected(body) {
                Ok(found) => self.inspected(found),
                Err(reason) => self.distrust(reason, true),
            },
            None => (),
        }
    }

    fn task_compacted(&mut self) {
        let Some((_, Task::Job(job))) = self.tasks.front_mut() else { return };
        if let Next::Finished(outcome) = job.compacted(&self.keys) {
            self.finish(outcome);
        }
    }

    /// A reply made no sense: the next request goes to another member.
    fn distrust(&mut self, reason: String, is_read: bool) {
        self.transport.distrust();
        self.finish(match is_read {
            true => Outcome::Unreachable { reason },
            false => Outcome::Unknown { reason },
        });
    }

    fn inspected(&mut self, found: Inspection) {
        self.tasks.pop_front();
        self.events.push_back(Event::Inspected(found));
    }

    /// The first task has ended.
    fn finish(&mut self, outcome: Outcome) {
        let event = match (self.tasks.pop_front(), outcome) {
            (None, _) => return,
            (Some((id, Task::Job(_))), outcome) => Event::Outcome(id, outcome),
            // A role for our prefix alone is what it should be.
            (Some((_, Task::Inspection)), Outcome::Refused { reason })
                if reason.contains("permission denied") =>
            {
                Event::Inspected(Inspection::Separate)
            }
            (Some((_, Task::Inspection)), outcome) => Event::Inspected(Inspection::Failed(outcome)),
        };
        self.events.push_back(event);
    }
}

fn inspection() -> Request {
    let keys = KeyRange::prefix(REGISTRY);
    Request::range(&Range { keys, limit: Number(1), keys_only: true, ..Range::default() })
}

fn inspected(body: &[u8]) -> Result<Inspection, Flaw> {
    let reply: RangeReply = decode(body)?;
    known(reply.header.revision)?;
    let is_empty = reply.kvs.is_empty();
    Ok(if is_empty { Inspection::Separate } else { Inspection::ControlPlane })
}

fn refusal(verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Unauthenticated(reason) => Outcome::Unauthenticated { reason },
        Verdict::Refused(reason) | Verdict::Elsewhere(reason) | Verdict::Unknown(reason) => {
            Outcome::Refused { reason }
        }
        Verdict::Compacted | Verdict::Done => {
            Outcome::Refused { reason: "the request was refused".into() }
        }
    }
}
