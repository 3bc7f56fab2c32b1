//! The life of a lease: performs its client's actions, and calls the client when it is due.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::PollFlags;

use super::interface::Absent;
use super::release::{acquire, give_back, resume};
use super::requests::{error_text, result_text};
use super::table::{Entry, Name, Undone};
use super::{Count, Daemon, socket_of, state_text};
use crate::error::{Code, Error, Result};
use crate::plugins::ipam::dhcp::client::{Action, Heard, Lease, Outgoing, Reason, State, Turn};
use crate::service::event_loop::{Hub, Service};
use crate::service::journal::{Read, Record as _};
use crate::sys::clock::{Moment, NEVER, since_boot};

/// How many exchanges may be open while leases are acquired; further leases queue for their turn.
const EXCHANGES_MAX: usize = 200;
/// The reference's error message for a lease that cannot be acquired.
const NO_MORE_TRIES: &str = "error calling DHCP.Allocate: no more tries";
/// How many exchanges may be open in total: renewals do not queue behind networks without a server
/// that answers.
const EXCHANGES_MAX_WITH_RENEWALS: usize = 400;
/// The back-off after a system error: a failed write of the journal, or of opening sockets.
const AGAIN: Duration = Duration::from_secs(10);

/// Why a lease leaves the table.
enum End {
    /// Its namespace or interface is gone: forgotten, and no message can be sent.
    Gone(&'static str),
    /// It was never acquired, for this reason.
    Failed(Error),
}

impl Service for Daemon {
    type Source = Name;

    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn hub_mut(&mut self) -> &mut Hub {
        &mut self.hub
    }

    fn resume(&mut self) -> Result<()> {
        let now = since_boot();
        for read in self.journal.read_all()? {
            let (path, why) = match read {
                Read::Record(mut record) => {
                    record.place.prefix.clone_from(&self.flags.hostprefix);
                    let mut entry = Entry::new(*record, NEVER);
                    let Some(lease) = &entry.record.lease else {
                        // No plugin has received this lease, and no connection waits for it any more.
                        self.let_go(entry);
                        continue;
                    };
                    // Looks for the namespace only when the lease is due: its mounts may not be in
                    // place yet.
                    entry.client = Some(resume(&entry.record, lease, &self.flags, now));
                    self.settle(entry, now);
                    continue;
                }
                Read::Void(path) => (path, "of an earlier start of the machine".to_owned()),
                Read::Unread(path, why) => (path, format!("left alone: {why}")),
                Read::Torn(path, why) => (path, format!("set aside: {why}")),
            };
            self.hub.log.line(format_args!("{}: {why}", path.display()));
        }
        let socket = socket_of(&self.flags);
        let leases = self.table.iter().count();
        self.hub.log.line(format_args!("listening socket={socket:?} leases={leases}"));
        Ok(())
    }

    fn request(&mut self, id: u64, line: &[u8]) {
        self.take_request(id, line);
    }

    fn hung_up(&mut self, id: u64) {
        let awaited = self.table.names_of(|entry| entry.asked_by.contains(&id));
        let Some(mut entry) = awaited.first().and_then(|name| self.table.take(name)) else {
            return;
        };
        entry.asked_by.retain(|other| *other != id);
        if entry.asked_by.is_empty() {
            self.let_go(entry)
        } else {
            self.settle(entry, since_boot())
        }
    }

    fn next_timer(&self) -> Option<Moment> {
        self.table.next().map(|(due, _)| *due)
    }

    fn timer(&mut self, now: Moment) {
        while let Some((due, name)) = self.table.next()
            && *due <= now
        {
            let name = name.clone();
            self.on_time(&name, now);
        }
        self.next_turns();
    }

    fn descriptors(&self) -> Vec<(Name, BorrowedFd<'_>, PollFlags)> {
        let mut all = vec![];
        for (name, exchange) in self.table.talking() {
            let descriptors = exchange.descriptors().into_iter();
            all.extend(descriptors.map(|fd| (name.clone(), fd, PollFlags::POLLIN)));
        }
        all
    }

    fn readable(&mut self, name: &Name) {
        let Some(mut entry) = self.table.take(name) else { return };
        let now = since_boot();
        let heard = entry.exchange.as_mut().map_or(Ok(vec![]), |exchange| exchange.hear());
        let error = match heard {
            Ok(heard) => {
                let actions = self.pass_on(heard, &mut entry, now);
                if entry.client.is_none() {
                    return self.begin(entry, now);
                }
                return self.go_on(entry, actions, now);
            }
            Err(error) => error,
        };
        // A socket reports an error both for a link that was set down and for one that was deleted.
        match entry.record.place.visit(|_| Ok(())) {
            Err(Absent::Gone(why)) => self.forget(entry, End::Gone(why)),
            _ => {
                self.log_problem(&entry.name, &error);
                self.settle(entry, now);
            }
        }
    }
}

impl Daemon {
    /// Starts to acquire a lease if there is room for another exchange; otherwise queues it.
    pub(super) fn acquire(&mut self, mut entry: Entry, now: Moment) {
        if self.table.exchanges() >= EXCHANGES_MAX {
            self.table.turns.push_back(entry.name.clone());
            return self.settle(entry, now);
        }
        match entry.open() {
            Ok(()) => self.begin(entry, now),
            Err(Absent::Gone(why)) => {
                self.forget(entry, End::Failed(Error::new(Code::UNKNOWN_CONTAINER, why)))
            }
            Err(Absent::Failed(error)) => self.forget(entry, End::Failed(error)),
        }
    }

    /// Requests a lease, once the exchange can send.
    fn begin(&mut self, mut entry: Entry, now: Moment) {
        if !entry.exchange.as_ref().is_some_and(|exchange| exchange.is_ready()) {
            return self.settle(entry, now);
        }
        let (client, actions) = acquire(&entry, &self.flags, now, &mut self.random);
        entry.client = Some(client);
        self.go_on(entry, actions, now);
    }

    /// Starts queued leases while there is room.
    fn next_turns(&mut self) {
        // Any of them may have ended while it was queued, or have been replaced.
        while !self.is_full()
            && let Some(name) = self.table.overdue.pop_front()
        {
            match self.table.take(&name) {
                Some(entry) if entry.client.is_some() => self.do_what_is_due(entry, since_boot()),
                Some(entry) => self.settle(entry, since_boot()),
                None => (),
            }
        }
        while self.table.exchanges() < EXCHANGES_MAX
            && let Some(name) = self.table.turns.pop_front()
        {
            match self.table.take(&name) {
                Some(entry) if entry.client.is_none() => self.acquire(entry, since_boot()),
                Some(entry) => self.settle(entry, since_boot()),
                None => (),
            }
        }
    }

    /// Whether no lease may open an exchange.
    fn is_full(&self) -> bool {
        self.table.exchanges() >= EXCHANGES_MAX_WITH_RENEWALS
    }

    /// Handles a lease that is due. One without a client has not been requested in its time.
    fn on_time(&mut self, name: &str, now: Moment) {
        let Some(entry) = self.table.take(name) else { return };
        if entry.client.is_some() {
            return self.do_what_is_due(entry, now);
        }
        let ifname = entry.record.key.ifname.as_str();
        let why = match entry.exchange {
            None => format!("{NO_MORE_TRIES}: {EXCHANGES_MAX} others were under way all the time"),
            Some(_) => format!("interface {ifname:?} has no link-local address"),
        };
        self.forget(entry, End::Failed(Error::new(Code::TRY_AGAIN, why)));
    }

    /// Lets the client do what is due, with sockets if it may need them.
    fn do_what_is_due(&mut self, mut entry: Entry, now: Moment) {
        if entry.unsaved {
            self.save(&mut entry);
        }
        if let Err(end) = self.change_interface(&mut entry) {
            return self.forget(entry, end);
        }
        let needs_exchange = entry.exchange.is_none()
            && entry.client.as_ref().is_some_and(|client| client.needs_sockets(now));
        let is_full = self.is_full();
        // The expiry of a lease never queues: what cannot be sent now is sent again later.
        if needs_exchange && is_full && now < entry.end() {
            self.table.overdue.push_back(entry.name.clone());
            let end = entry.end();
            return self.table.put(entry, end);
        }
        // A failure to open sockets is only logged: the lease's time runs on, and what is not sent
        // now is sent again later.
        let reached = if needs_exchange && !is_full {
            entry.open()
        } else {
            entry.record.place.netns().map(drop)
        };
        if let Err(end) = self.unless_gone(&entry.name, reached) {
            return self.forget(entry, end);
        }
        if let Some(client) = &mut entry.client {
            let actions = client.on_time(Turn::new(now, &mut self.random));
            self.go_on(entry, actions, now);
        }
    }

    /// Counts received packets and passes them to the client.
    fn pass_on(&mut self, heard: Vec<Heard>, entry: &mut Entry, now: Moment) -> Vec<Action> {
        let mut actions = vec![];
        for heard in heard {
            match &heard {
                Heard::Malformed(from) => {
                    self.metrics.count(Count::Malformed);
                    if !std::mem::replace(&mut entry.told_malformed, true) {
                        let problem = format!("what {from} sends is not a DHCP message");
                        self.log(&entry.name, format_args!("problem={problem:?}"));
                    }
                }
                Heard::V4(_) | Heard::V6(_) | Heard::Router(..) => {
                    self.metrics.count(Count::Received)
                }
                Heard::ClaimV4(_) | Heard::ClaimV6(_) => (),
            }
            if let Some(client) = &mut entry.client {
                actions.extend(client.on_heard(heard, Turn::new(now, &mut self.random)));
            }
        }
        actions
    }

    /// Performs the client's actions, and puts the lease back into the table unless one ended it.
    fn go_on(&mut self, mut entry: Entry, actions: Vec<Action>, now: Moment) {
        for action in actions {
            if let Err(end) = self.perform(&mut entry, action, now) {
                return self.forget(entry, end);
            }
        }
        if entry.asked_by.is_empty() && entry.is_new() {
            return self.let_go(entry); // no connection waits for it any more
        }
        self.settle(entry, now);
    }

    fn perform(&mut self, entry: &mut Entry, action: Action, now: Moment) -> Result<(), End> {
        match action {
            Action::Send(outgoing) => self.send(entry, &outgoing),
            Action::Probe(address) => {
                let Some(exchange) = &mut entry.exchange else { return Ok(()) };
                let probed = exchange.probe(address, &entry.record.place);
                self.unless_gone(&entry.name, probed)
            }
            Action::Intend(intent) => {
                entry.record.intent = Some(intent);
                self.journal.write(&entry.record).map_err(|error| {
                    entry.record.intent = None; // nothing is requested
                    End::Failed(error)
                })
            }
            Action::Bound(lease) => self.bound(entry, lease, now),
            Action::Renewed(lease) => {
                let before = entry.record.lease.as_ref().and_then(Lease::router);
                let router = lease.router();
                self.hold(entry, lease);
                if router == before {
                    return Ok(());
                }
                self.change(entry, Undone::Reroute(before))
            }
            Action::Lost(reason) => self.lost(entry, reason),
            Action::Regained(lease) => {
                entry.record.lost = false;
                self.hold(entry, lease);
                self.change(entry, Undone::PutBack)
            }
            Action::GaveUp(why) => {
                entry.record.intent = None; // the client has released it
                let ifname = entry.record.key.ifname.as_str();
                let msg = format!("lease an address for interface {ifname:?}: {why}");
                Err(End::Failed(Error::new(Code::ADDRESS_UNAVAILABLE, msg).saying(NO_MORE_TRIES)))
            }
        }
    }

    fn send(&mut self, entry: &mut Entry, outgoing: &Outgoing) -> Result<(), End> {
        let Some(exchange) = &mut entry.exchange else { return Ok(()) };
        let sent = exchange.send(outgoing, &entry.record.place);
        match sent {
            Ok(()) => self.metrics.count(Count::Sent),
            Err(Absent::Failed(_)) => self.metrics.count(Count::Unsent),
            Err(Absent::Gone(_)) => (),
        }
        self.unless_gone(&entry.name, sent)
    }

    /// Journals a lease that the interface has, or is about to have.
    fn hold(&mut self, entry: &mut Entry, lease: Lease) {
        entry.record.lease = Some(lease);
        self.save(entry);
        self.log_state(entry, State::Bound);
    }

    /// Journals a new lease, then answers the connections that wait for it.
    fn bound(&mut self, entry: &mut Entry, lease: Lease, now: Moment) -> Result<(), End> {
        entry.record.intent = None;
        entry.record.lease = Some(lease);
        self.journal.write(&entry.record).map_err(End::Failed)?;
        let answer = result_text(&entry.record);
        let mut is_heard = false;
        for id in std::mem::take(&mut entry.asked_by) {
            is_heard |= self.hub.connections.answer(id, &answer, now);
        }
        self.log_state(entry, State::Bound);
        if is_heard {
            return Ok(());
        }
        Err(End::Failed(Error::new(Code::TRY_AGAIN, "the client has hung up")))
    }

    /// Takes the address off the interface: the server may soon grant it to another client.
    fn lost(&mut self, entry: &mut Entry, reason: Reason) -> Result<(), End> {
        entry.record.lost = true;
        let lease = entry.record.lease.as_ref();
        let address = lease.map(|lease| lease.net().to_string()).unwrap_or_default();
        let reason = reason.to_string();
        self.log(&entry.name, format_args!("state=expired address={address} reason={reason:?}"));
        self.metrics.transition(State::Expired);
        entry.state = Some(State::Expired);
        let done = self.change(entry, Undone::TakeOff);
        self.save(entry);
        done
    }

    /// Makes a change at the interface.
    fn change(&mut self, entry: &mut Entry, change: Undone) -> Result<(), End> {
        entry.undone = Some(change);
        self.change_interface(entry)
    }

    /// Makes the pending change at the interface. If that fails, it stays pending.
    fn change_interface(&mut self, entry: &mut Entry) -> Result<(), End> {
        let (Some(undone), Some(lease)) = (entry.undone, &entry.record.lease) else {
            return Ok(());
        };
        let routes = &mut entry.routes;
        let priority = entry.record.terms.priority;
        let done = entry.record.place.visit(|at| match undone {
            Undone::TakeOff => at.take_off(lease.net().addr()).map(|taken| *routes = taken),
            Undone::PutBack => at.put_back(lease, priority, routes),
            Undone::Reroute(before) => at.reroute(before, lease, priority),
        });
        if done.is_ok() {
            entry.undone = None;
        }
        self.unless_gone(&entry.name, done)
    }

    /// Checks the outcome of a visit: logs a failure, and ends a lease without an interface.
    fn unless_gone(&mut self, name: &str, done: Result<(), Absent>) -> Result<(), End> {
        match done {
            Ok(()) => Ok(()),
            Err(Absent::Gone(why)) => Err(End::Gone(why)),
            Err(Absent::Failed(error)) => {
                self.log_problem(name, &error);
                Ok(())
            }
        }
    }

    /// Journals a lease that is held even if that fails; a failed write is retried.
    fn save(&mut self, entry: &mut Entry) {
        let written = self.journal.write(&entry.record);
        entry.unsaved = written.is_err();
        self.note_journalled(&entry.name, written);
    }

    fn note_journalled(&mut self, name: &str, done: Result<()>) {
        if let Err(error) = done {
            self.metrics.count(Count::JournalFailures);
            self.log_problem(name, &error);
        }
    }

    /// Puts a lease back into the table: closes sockets it does not need, and sets when it is due.
    pub(super) fn settle(&mut self, mut entry: Entry, now: Moment) {
        let Some(client) = &entry.client else {
            let limit = entry.limit;
            return self.table.put(entry, limit);
        };
        let state = client.state();
        let mut due = client.deadline();
        if !client.needs_sockets(now) {
            entry.close();
        }
        if entry.state != Some(state) {
            self.log_state(&mut entry, state);
        }
        if entry.unsaved || entry.undone.is_some() {
            due = due.min(now + AGAIN);
        }
        if due <= now {
            due = now + Duration::from_millis(100); // after a failure to open sockets
        }
        self.table.put(entry, due);
    }

    /// Logs a change of state; times are seconds since the lease was requested.
    fn log_state(&mut self, entry: &mut Entry, state: State) {
        entry.state = Some(state);
        self.metrics.transition(state);
        let mut line = format!("state={}", state_text(Some(state)));
        if let Some(lease) = entry.record.lease.as_ref().filter(|_| state == State::Bound) {
            line.push_str(&format!(" address={} server={}", lease.net(), lease.server()));
            let times = lease.times();
            for (key, moment) in [("t1", times.t1), ("t2", times.t2), ("expires", times.expires)] {
                line.push_str(&match moment {
                    NEVER => format!(" {key}=never"),
                    _ => format!(" {key}={}s", moment.saturating_sub(times.acquired).as_secs()),
                });
            }
        }
        self.log(&entry.name, line);
    }

    /// Forgets a lease that has ended or was never acquired, and answers the connections that wait
    /// for it.
    fn forget(&mut self, mut entry: Entry, end: End) {
        let name = &entry.name;
        let error = match end {
            End::Gone(why) => {
                self.metrics.count(Count::Gone);
                self.log(name, format_args!("state=gone reason={why:?}"));
                entry.record.intent = None;
                entry.record.lease = None; // nothing can be sent from there
                Error::new(Code::UNKNOWN_CONTAINER, format!("lease {name}: {why}"))
            }
            End::Failed(error) => {
                self.metrics.count(Count::AcquireFailures);
                self.log(name, format_args!("state=failed reason={:?}", error.to_string()));
                error
            }
        };
        let asked_by = std::mem::take(&mut entry.asked_by);
        self.let_go(entry);
        self.tell(asked_by, &error); // last: the client may look at what is left
    }

    /// Answers waiting connections with an error: there will be no lease.
    pub(super) fn tell(&mut self, asked_by: Vec<u64>, error: &Error) {
        let answer = error_text(error);
        let now = since_boot();
        for id in asked_by {
            self.reply(id, &answer, now);
        }
    }

    /// Releases a lease and forgets it.
    pub(super) fn let_go(&mut self, mut entry: Entry) {
        let given_back =
            give_back(&entry.record, entry.exchange.as_mut(), &self.flags, &mut self.random);
        entry.close();
        let name = &entry.name;
        match given_back {
            Ok(true) => {
                self.metrics.count(Count::Sent);
                self.metrics.count(Count::Released);
                self.log(name, "state=released");
            }
            Ok(false) => self.log(name, "state=ended"),
            Err(Absent::Gone(why)) => self.log(name, format_args!("state=ended reason={why:?}")),
            Err(Absent::Failed(error)) => {
                self.metrics.count(Count::Unsent);
                self.log(name, format_args!("state=ended problem={:?}", error.to_string()));
            }
        }
        let removed = self.journal.remove(&entry.record.name());
        self.note_journalled(name, removed);
    }
}
