//! The life of a lease: performs its client's actions, and calls the client when it is due.

use std::fmt;
use std::time::Duration;

use super::Daemon;
use super::exchange::Exchange;
use super::interface::Absent;
use super::metrics::{Count, state_text};
use super::release::{acquire, give_back, resume};
use super::table::{Entry, Undone};
use crate::error::{Code, Error, Result};
use crate::plugins::ipam::dhcp::client::{Reason, State};
use crate::plugins::ipam::dhcp::family::{Action, Heard, Lease};
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

impl Daemon {
    /// Resumes the leases in the journal.
    pub(super) fn resume_all(&mut self) -> Result<()> {
        let now = since_boot();
        for read in self.journal.read_all()? {
            match read {
                Read::Record(record) => self.resume(Entry::new(*record, NEVER), now),
                Read::Void(path) => self
                    .hub
                    .log
                    .line(format_args!("{}: of an earlier start of the machine", path.display())),
                Read::Unread(path, why) => {
                    self.hub.log.line(format_args!("{}: left alone: {why}", path.display()))
                }
                Read::Torn(path, why) => {
                    self.hub.log.line(format_args!("{}: set aside: {why}", path.display()))
                }
            }
        }
        self.hub.log.line(format_args!(
            "listening socket={:?} leases={}",
            super::socket_of(&self.flags),
            self.table.iter().count()
        ));
        Ok(())
    }

    fn resume(&mut self, mut entry: Entry, now: Moment) {
        let Some(lease) = entry.record.lease.clone() else {
            // No plugin has received this lease, and no connection waits for it any more.
            return self.let_go(entry);
        };
        // Looks for the namespace only when the lease is due: its mounts may not be in place yet.
        entry.client = Some(resume(&entry.record, &lease, &self.flags, now));
        self.settle(entry, now);
    }

    /// Starts to acquire a lease if there is room for another exchange; otherwise queues it.
    pub(super) fn acquire(&mut self, mut entry: Entry, now: Moment) {
        if self.table.exchanges() >= EXCHANGES_MAX {
            self.table.turns.push_back(entry.name.clone());
            let limit = entry.limit;
            return self.table.put(entry, limit);
        }
        match Exchange::open(&entry.record.place, &self.flags.hostprefix, entry.record.family()) {
            Ok(exchange) => entry.exchange = Some(exchange),
            Err(absent) => return self.forget(entry, End::Failed(absent.into())),
        }
        self.begin(entry, now);
    }

    /// Requests a lease, once the exchange can send.
    fn begin(&mut self, mut entry: Entry, now: Moment) {
        if !entry.exchange.as_ref().is_some_and(Exchange::is_ready) {
            return self.settle(entry, now);
        }
        let (client, actions) = acquire(&entry, &self.flags, now, &mut self.random);
        entry.client = Some(client);
        self.go_on(entry, actions, now);
    }

    /// Starts queued leases while there is room.
    pub(super) fn next_turns(&mut self) {
        // Any of them may have ended while it was queued, or have been replaced.
        while self.table.exchanges() < EXCHANGES_MAX_WITH_RENEWALS
            && let Some(name) = self.table.overdue.pop_front()
        {
            match self.table.take(&name) {
                Some(entry) if entry.client.is_some() => self.look(entry, since_boot()),
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

    /// Handles a lease that is due.
    pub(super) fn on_time(&mut self, name: &str, now: Moment) {
        let Some(entry) = self.table.take(name) else { return };
        if entry.client.is_none() {
            let msg = match entry.exchange {
                None => {
                    format!("{NO_MORE_TRIES}: {EXCHANGES_MAX} others were under way all the time")
                }
                Some(_) => {
                    format!(
                        "interface {:?} has no link-local address",
                        entry.record.key.ifname.as_str()
                    )
                }
            };
            return self.forget(entry, End::Failed(Error::new(Code::TRY_AGAIN, msg)));
        }
        self.look(entry, now);
    }

    /// Lets the client do what is due, with sockets if it may need them.
    fn look(&mut self, mut entry: Entry, now: Moment) {
        if entry.unsaved {
            self.save(&mut entry);
        }
        if let Err(end) = self.change_interface(&mut entry) {
            return self.forget(entry, end);
        }
        let needs = entry.client.as_ref().is_some_and(|client| client.needs_sockets(now));
        let place = &entry.record.place;
        let is_full = self.table.exchanges() >= EXCHANGES_MAX_WITH_RENEWALS;
        let opened = match (&entry.exchange, needs) {
            // But the expiry of a lease never queues: what cannot be sent now is sent again later.
            (None, true) if is_full && now < entry.end() => {
                self.table.overdue.push_back(entry.name.clone());
                let end = entry.end();
                return self.table.put(entry, end);
            }
            (None, true) if !is_full => {
                let exchange = Exchange::open(place, &self.flags.hostprefix, entry.record.family());
                exchange.map(|exchange| entry.exchange = Some(exchange))
            }
            _ => place.is_there(&self.flags.hostprefix),
        };
        match opened {
            Ok(()) => (),
            Err(Absent::Gone(why)) => return self.forget(entry, End::Gone(why)),
            // The lease's time runs on regardless; what is not sent now is sent again later.
            Err(Absent::Failed(error)) => self.log_problem(&entry.name, &error),
        }
        let Some(client) = &mut entry.client else { return };
        let actions = client.on_time(now, &mut self.random);
        self.go_on(entry, actions, now);
    }

    /// Handles a readable socket of an exchange.
    pub(super) fn receive(&mut self, name: &str) {
        let Some(mut entry) = self.table.take(name) else { return };
        let now = since_boot();
        match self.heard(&mut entry, now) {
            Ok(_) if entry.client.is_none() => self.begin(entry, now),
            Ok(actions) => self.go_on(entry, actions, now),
            Err(error) => {
                // The sockets report an error both for a link that was set down and for one that
                // was deleted.
                match entry.record.place.visit(&self.flags.hostprefix, &mut |_| Ok(())) {
                    Err(Absent::Gone(why)) => self.forget(entry, End::Gone(why)),
                    _ => {
                        self.log_problem(&entry.name, &error);
                        self.settle(entry, now);
                    }
                }
            }
        }
    }

    /// Passes received packets to the client.
    fn heard(&mut self, entry: &mut Entry, now: Moment) -> Result<Vec<Action>> {
        let Some(exchange) = &mut entry.exchange else { return Ok(vec![]) };
        let mut actions = vec![];
        for heard in exchange.hear()? {
            match heard {
                Heard::Malformed(from) => {
                    self.metrics.count(Count::Malformed);
                    if !std::mem::replace(&mut entry.told_malformed, true) {
                        self.log(
                            &entry.name,
                            format_args!("problem=\"what {from} sends is not a DHCP message\""),
                        );
                    }
                }
                Heard::V4(_) | Heard::V6(_) | Heard::Router(..) => {
                    self.metrics.count(Count::Received)
                }
                Heard::ClaimV4(_) | Heard::ClaimV6(_) => (),
            }
            let Some(client) = &mut entry.client else { continue };
            actions.extend(client.on_heard(heard, now, &mut self.random));
        }
        Ok(actions)
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
            Action::Send(outgoing) => {
                let Some(exchange) = &mut entry.exchange else { return Ok(()) };
                match exchange.send(&outgoing, &entry.record.place, &self.flags.hostprefix) {
                    Ok(()) => self.metrics.count(Count::Sent),
                    Err(Absent::Gone(why)) => return Err(End::Gone(why)),
                    Err(Absent::Failed(error)) => {
                        self.metrics.count(Count::Unsent);
                        self.log_problem(&entry.name, &error);
                    }
                }
            }
            Action::Probe(address) => {
                let Some(exchange) = &mut entry.exchange else { return Ok(()) };
                let probed = exchange.probe(address, &entry.record.place, &self.flags.hostprefix);
                self.changed(&entry.name, probed)?;
            }
            Action::Intend(intent) => {
                entry.record.intent = Some(intent);
                self.journal.write(&entry.record).map_err(|error| {
                    entry.record.intent = None; // nothing is requested
                    End::Failed(error)
                })?;
            }
            Action::Bound(lease) => self.bound(entry, lease, now)?,
            Action::Renewed(lease) => {
                let before = entry.record.lease.as_ref().and_then(Lease::router);
                let router = lease.router();
                entry.record.lease = Some(lease);
                self.save(entry);
                self.tell_state(entry, State::Bound);
                if router != before {
                    entry.undone = Some(Undone::Reroute(before));
                    self.change_interface(entry)?;
                }
            }
            Action::Lost(reason) => self.lost(entry, reason)?,
            Action::Regained(lease) => self.regained(entry, lease)?,
            Action::GaveUp(why) => {
                let ifname = entry.record.key.ifname.as_str();
                let msg = format!("lease an address for interface {ifname:?}: {why}");
                entry.record.intent = None; // the client has released it
                return Err(End::Failed(
                    Error::new(Code::ADDRESS_UNAVAILABLE, msg).saying(NO_MORE_TRIES),
                ));
            }
        }
        Ok(())
    }

    /// Journals a new lease, then answers the connections that wait for it.
    fn bound(&mut self, entry: &mut Entry, lease: Lease, now: Moment) -> Result<(), End> {
        entry.record.intent = None;
        entry.record.lease = Some(lease);
        self.journal.write(&entry.record).map_err(End::Failed)?;
        let answer = super::requests::result_text(&entry.record);
        let mut is_heard = false;
        for id in std::mem::take(&mut entry.asked_by) {
            is_heard |= self.hub.connections.answer(id, &answer, now);
        }
        self.tell_state(entry, State::Bound);
        if is_heard {
            Ok(())
        } else {
            Err(End::Failed(Error::new(Code::TRY_AGAIN, "the client has hung up")))
        }
    }

    /// Takes the address off the interface: the server may soon grant it to another client.
    fn lost(&mut self, entry: &mut Entry, reason: Reason) -> Result<(), End> {
        entry.record.lost = true;
        let address =
            entry.record.lease.as_ref().map(|lease| lease.net().to_string()).unwrap_or_default();
        self.log(
            &entry.name,
            format_args!("state=expired address={address} reason={:?}", reason.to_string()),
        );
        self.metrics.transition(State::Expired);
        entry.state = Some(State::Expired);
        entry.undone = Some(Undone::TakeOff);
        let done = self.change_interface(entry);
        self.save(entry);
        done
    }

    fn regained(&mut self, entry: &mut Entry, lease: Lease) -> Result<(), End> {
        entry.record.lost = false;
        entry.record.lease = Some(lease);
        entry.undone = Some(Undone::PutBack);
        self.save(entry);
        self.tell_state(entry, State::Bound);
        self.change_interface(entry)
    }

    /// Makes the pending change at the interface. If that fails, it stays pending.
    fn change_interface(&mut self, entry: &mut Entry) -> Result<(), End> {
        let (Some(undone), Some(lease)) = (entry.undone, &entry.record.lease) else {
            return Ok(());
        };
        let routes = &mut entry.routes;
        let priority = entry.record.terms.priority;
        let done = entry.record.place.visit(&self.flags.hostprefix, &mut |at| match undone {
            Undone::TakeOff => at.take_off(lease.address()).map(|taken| *routes = taken),
            Undone::PutBack => at.put_back(lease, priority, routes),
            Undone::Reroute(before) => at.reroute(before, lease, priority),
        });
        if done.is_ok() {
            entry.undone = None;
        }
        self.changed(&entry.name, done)
    }

    /// Checks the outcome of a visit: logs a failure, and ends a lease without an interface.
    fn changed(&mut self, name: &str, done: Result<(), Absent>) -> Result<(), End> {
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
        if let Err(error) = written {
            self.metrics.count(Count::JournalFailures);
            self.log_problem(&entry.name, &error);
        }
    }

    /// Puts a lease back into the table: closes sockets it does not need, and sets when it is due.
    pub(super) fn settle(&mut self, mut entry: Entry, now: Moment) {
        let Some((state, due, needs)) = entry
            .client
            .as_ref()
            .map(|client| (client.state(), client.deadline(), client.needs_sockets(now)))
        else {
            let limit = entry.limit;
            return self.table.put(entry, limit);
        };
        if !needs {
            entry.close();
        }
        if entry.state != Some(state) {
            self.tell_state(&mut entry, state);
        }
        let due = if entry.unsaved || entry.undone.is_some() { due.min(now + AGAIN) } else { due };
        // After a failure to open sockets, do not retry at once.
        let due = if due <= now { now + Duration::from_millis(100) } else { due };
        self.table.put(entry, due);
    }

    /// Logs a change of state.
    fn tell_state(&mut self, entry: &mut Entry, state: State) {
        entry.state = Some(state);
        self.metrics.transition(state);
        let text = state_text(Some(state));
        match entry.record.lease.as_ref().filter(|_| state == State::Bound) {
            Some(lease) => self.log(&entry.name, format_args!("state={text} {}", Times(lease))),
            None => self.log(&entry.name, format_args!("state={text}")),
        }
    }

    /// Forgets a lease that has ended or was never acquired, and answers the connections that wait
    /// for it.
    fn forget(&mut self, mut entry: Entry, end: End) {
        let error = match end {
            End::Gone(why) => {
                self.metrics.count(Count::Gone);
                self.log(&entry.name, format_args!("state=gone reason={why:?}"));
                entry.record.intent = None;
                entry.record.lease = None; // nothing can be sent from there
                Error::new(Code::UNKNOWN_CONTAINER, format!("lease {}: {why}", entry.name))
            }
            End::Failed(error) => {
                self.metrics.count(Count::AcquireFailures);
                self.log(&entry.name, format_args!("state=failed reason={:?}", error.to_string()));
                error
            }
        };
        let asked_by = std::mem::take(&mut entry.asked_by);
        self.let_go(entry);
        self.tell(asked_by, &error); // last: the client may look at what is left
    }

    /// Answers waiting connections with an error: there will be no lease.
    pub(super) fn tell(&mut self, asked_by: Vec<u64>, error: &Error) {
        let answer = super::requests::error_text(error);
        let now = since_boot();
        for id in asked_by {
            self.hub.connections.answer(id, &answer, now);
        }
    }

    /// Releases a lease and forgets it.
    pub(super) fn let_go(&mut self, mut entry: Entry) {
        let given_back =
            give_back(&entry.record, entry.exchange.as_mut(), &self.flags, &mut self.random);
        entry.close();
        match given_back {
            Ok(true) => {
                self.metrics.count(Count::Sent);
                self.metrics.count(Count::Released);
                self.log(&entry.name, format_args!("state=released"));
            }
            Ok(false) => self.log(&entry.name, format_args!("state=ended")),
            Err(Absent::Gone(why)) => {
                self.log(&entry.name, format_args!("state=ended reason={why:?}"))
            }
            Err(Absent::Failed(error)) => {
                self.metrics.count(Count::Unsent);
                self.log(&entry.name, format_args!("state=ended problem={:?}", error.to_string()));
            }
        }
        if let Err(error) = self.journal.remove(&entry.record.name()) {
            self.metrics.count(Count::JournalFailures);
            self.log_problem(&entry.name, &error);
        }
    }
}

/// A lease's fields for the log; times are seconds since it was requested.
struct Times<'a>(&'a Lease);

impl fmt::Display for Times<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = self.0;
        write!(f, "address={} server={}", lease.net(), lease.server())?;
        let [acquired, t1, t2, expires] = lease.times();
        for (key, moment) in [("t1", t1), ("t2", t2), ("expires", expires)] {
            match moment {
                NEVER => write!(f, " {key}=never")?,
                _ => write!(f, " {key}={}s", moment.saturating_sub(acquired).as_secs())?,
            }
        }
        Ok(())
    }
}
