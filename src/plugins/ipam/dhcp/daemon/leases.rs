//! The life of a lease: performs its client's actions, and calls the client when it is due.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use super::Daemon;
use super::interface::Absent;
use super::journal::Record;
use super::metrics::{Count, state_text};
use super::release::{acquire, give_back, resume};
use super::table::{Entry, Undone};
use crate::error::{Code, Error, Result};
use crate::plugins::ipam::dhcp::client::{Reason, State};
use crate::plugins::ipam::dhcp::family::{Action, Heard, Intent, Lease, Outgoing};
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
            self.resume_read(read, now);
        }
        self.log_start();
        Ok(())
    }

    fn log_start(&self) {
        let socket = super::socket_of(&self.flags);
        let leases = self.table.iter().count();
        self.hub.log.line(format_args!("listening socket={socket:?} leases={leases}"));
    }

    fn resume_read(&mut self, read: Read<Record>, now: Moment) {
        match read {
            Read::Record(record) => self.resume(Entry::new(*record, NEVER), now),
            Read::Void(path) => self.log_file(&path, "of an earlier start of the machine"),
            Read::Unread(path, why) => self.log_file(&path, format_args!("left alone: {why}")),
            Read::Torn(path, why) => self.log_file(&path, format_args!("set aside: {why}")),
        }
    }

    /// Logs why a file of the journal is not resumed.
    fn log_file(&self, path: &Path, why: impl fmt::Display) {
        self.hub.log.line(format_args!("{}: {why}", path.display()));
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
            return self.put_until_limit(entry);
        }
        match entry.open(&self.flags.hostprefix) {
            Ok(()) => self.begin(entry, now),
            Err(absent) => self.forget(entry, End::Failed(absent.into())),
        }
    }

    /// Puts back a lease without a client.
    fn put_until_limit(&mut self, entry: Entry) {
        let limit = entry.limit;
        self.table.put(entry, limit);
    }

    /// Requests a lease, once the exchange can send.
    fn begin(&mut self, mut entry: Entry, now: Moment) {
        if !entry.can_send() {
            return self.settle(entry, now);
        }
        let (client, actions) = acquire(&entry, &self.flags, now, &mut self.random);
        entry.client = Some(client);
        self.go_on(entry, actions, now);
    }

    /// Starts queued leases while there is room.
    pub(super) fn next_turns(&mut self) {
        // Any of them may have ended while it was queued, or have been replaced.
        while !self.is_full()
            && let Some(name) = self.table.overdue.pop_front()
        {
            self.look_again(&name);
        }
        while self.table.exchanges() < EXCHANGES_MAX
            && let Some(name) = self.table.turns.pop_front()
        {
            self.acquire_queued(&name);
        }
    }

    fn look_again(&mut self, name: &str) {
        match self.table.take(name) {
            Some(entry) if entry.client.is_some() => self.look(entry, since_boot()),
            Some(entry) => self.settle(entry, since_boot()),
            None => (),
        }
    }

    fn acquire_queued(&mut self, name: &str) {
        match self.table.take(name) {
            Some(entry) if entry.client.is_none() => self.acquire(entry, since_boot()),
            Some(entry) => self.settle(entry, since_boot()),
            None => (),
        }
    }

    /// Whether no lease may open an exchange.
    fn is_full(&self) -> bool {
        self.table.exchanges() >= EXCHANGES_MAX_WITH_RENEWALS
    }

    /// Handles a lease that is due.
    pub(super) fn on_time(&mut self, name: &str, now: Moment) {
        let Some(entry) = self.table.take(name) else { return };
        if entry.client.is_some() {
            return self.look(entry, now);
        }
        let error = Error::new(Code::TRY_AGAIN, why_not_begun(&entry));
        self.forget(entry, End::Failed(error));
    }

    /// Lets the client do what is due, with sockets if it may need them.
    fn look(&mut self, mut entry: Entry, now: Moment) {
        if entry.unsaved {
            self.save(&mut entry);
        }
        if let Err(end) = self.change_interface(&mut entry) {
            return self.forget(entry, end);
        }
        // The expiry of a lease never queues: what cannot be sent now is sent again later.
        if entry.needs_exchange(now) && self.is_full() && now < entry.end() {
            return self.queue_overdue(entry);
        }
        match self.open_if_needed(&mut entry, now) {
            Ok(()) => self.call_client(entry, now),
            Err(end) => self.forget(entry, end),
        }
    }

    fn queue_overdue(&mut self, entry: Entry) {
        self.table.overdue.push_back(entry.name.clone());
        let end = entry.end();
        self.table.put(entry, end);
    }

    /// Opens an exchange, if one is needed and there is room. A failure other than a missing interface
    /// is only logged: the lease's time runs on, and what is not sent now is sent again later.
    fn open_if_needed(&mut self, entry: &mut Entry, now: Moment) -> Result<(), End> {
        let reached = if entry.needs_exchange(now) && !self.is_full() {
            entry.open(&self.flags.hostprefix)
        } else {
            entry.record.place.is_there(&self.flags.hostprefix)
        };
        self.changed(&entry.name, reached)
    }

    fn call_client(&mut self, mut entry: Entry, now: Moment) {
        if let Some(client) = &mut entry.client {
            let actions = client.on_time(now, &mut self.random);
            self.go_on(entry, actions, now);
        }
    }

    /// Handles a readable socket of an exchange.
    pub(super) fn receive(&mut self, name: &str) {
        let Some(mut entry) = self.table.take(name) else { return };
        let now = since_boot();
        match self.heard(&mut entry, now) {
            Ok(_) if entry.client.is_none() => self.begin(entry, now),
            Ok(actions) => self.go_on(entry, actions, now),
            Err(error) => self.on_socket_error(entry, &error, now),
        }
    }

    /// Handles an error of a socket, which reports one both for a link that was set down and for
    /// one that was deleted.
    fn on_socket_error(&mut self, entry: Entry, error: &Error, now: Moment) {
        match entry.record.place.require_interface(&self.flags.hostprefix) {
            Err(Absent::Gone(why)) => self.forget(entry, End::Gone(why)),
            _ => {
                self.log_problem(&entry.name, error);
                self.settle(entry, now);
            }
        }
    }

    /// Passes received packets to the client.
    fn heard(&mut self, entry: &mut Entry, now: Moment) -> Result<Vec<Action>> {
        let Some(exchange) = &mut entry.exchange else { return Ok(vec![]) };
        let mut actions = vec![];
        for heard in exchange.hear()? {
            self.count_heard(&heard, entry);
            let Some(client) = &mut entry.client else { continue };
            actions.extend(client.on_heard(heard, now, &mut self.random));
        }
        Ok(actions)
    }

    fn count_heard(&mut self, heard: &Heard, entry: &mut Entry) {
        match heard {
            Heard::Malformed(from) => self.note_malformed(*from, entry),
            Heard::V4(_) | Heard::V6(_) | Heard::Router(..) => self.metrics.count(Count::Received),
            Heard::ClaimV4(_) | Heard::ClaimV6(_) => (),
        }
    }

    /// Logs the first malformed packet of an exchange.
    fn note_malformed(&mut self, from: IpAddr, entry: &mut Entry) {
        self.metrics.count(Count::Malformed);
        if !std::mem::replace(&mut entry.told_malformed, true) {
            let problem = format_args!("problem=\"what {from} sends is not a DHCP message\"");
            self.log(&entry.name, problem);
        }
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
            Action::Probe(address) => self.probe(entry, address),
            Action::Intend(intent) => self.intend(entry, intent),
            Action::Bound(lease) => self.bound(entry, lease, now),
            Action::Renewed(lease) => self.renewed(entry, lease),
            Action::Lost(reason) => self.lost(entry, reason),
            Action::Regained(lease) => self.regained(entry, lease),
            Action::GaveUp(why) => {
                entry.record.intent = None; // the client has released it
                Err(gave_up(entry, &why))
            }
        }
    }

    fn send(&mut self, entry: &mut Entry, outgoing: &Outgoing) -> Result<(), End> {
        let Some(exchange) = &mut entry.exchange else { return Ok(()) };
        let sent = exchange.send(outgoing, &entry.record.place, &self.flags.hostprefix);
        match sent {
            Ok(()) => self.metrics.count(Count::Sent),
            Err(Absent::Failed(_)) => self.metrics.count(Count::Unsent),
            Err(Absent::Gone(_)) => (),
        }
        self.changed(&entry.name, sent)
    }

    fn probe(&mut self, entry: &mut Entry, address: IpAddr) -> Result<(), End> {
        let probed = entry.probe(address, &self.flags.hostprefix);
        self.changed(&entry.name, probed)
    }

    /// Journals what is about to be requested. If that fails, nothing is.
    fn intend(&mut self, entry: &mut Entry, intent: Intent) -> Result<(), End> {
        entry.record.intent = Some(intent);
        let written = self.journal.write(&entry.record);
        if written.is_err() {
            entry.record.intent = None;
        }
        written.map_err(End::Failed)
    }

    /// Journals an extended lease, and follows a change of its router.
    fn renewed(&mut self, entry: &mut Entry, lease: Lease) -> Result<(), End> {
        let before = entry.router();
        let router = lease.router();
        self.hold(entry, lease);
        if router == before {
            return Ok(());
        }
        self.change(entry, Undone::Reroute(before))
    }

    /// Journals a lease that the interface has, or is about to have.
    fn hold(&mut self, entry: &mut Entry, lease: Lease) {
        entry.record.lease = Some(lease);
        self.save(entry);
        self.tell_state(entry, State::Bound);
    }

    /// Makes a change at the interface.
    fn change(&mut self, entry: &mut Entry, change: Undone) -> Result<(), End> {
        entry.undone = Some(change);
        self.change_interface(entry)
    }

    /// Journals a new lease, then answers the connections that wait for it.
    fn bound(&mut self, entry: &mut Entry, lease: Lease, now: Moment) -> Result<(), End> {
        entry.record.intent = None;
        entry.record.lease = Some(lease);
        self.journal.write(&entry.record).map_err(End::Failed)?;
        let is_heard = self.answer_waiting(entry, now);
        self.tell_state(entry, State::Bound);
        if is_heard {
            return Ok(());
        }
        Err(End::Failed(Error::new(Code::TRY_AGAIN, "the client has hung up")))
    }

    /// Answers the connections that wait for the lease. False if all have hung up.
    fn answer_waiting(&mut self, entry: &mut Entry, now: Moment) -> bool {
        let answer = super::requests::result_text(&entry.record);
        let mut is_heard = false;
        for id in std::mem::take(&mut entry.asked_by) {
            is_heard |= self.hub.connections.answer(id, &answer, now);
        }
        is_heard
    }

    /// Takes the address off the interface: the server may soon grant it to another client.
    fn lost(&mut self, entry: &mut Entry, reason: Reason) -> Result<(), End> {
        entry.record.lost = true;
        self.log_lost(entry, reason);
        self.metrics.transition(State::Expired);
        entry.state = Some(State::Expired);
        let done = self.change(entry, Undone::TakeOff);
        self.save(entry);
        done
    }

    fn log_lost(&self, entry: &Entry, reason: Reason) {
        let lease = entry.record.lease.as_ref();
        let address = lease.map(|lease| lease.net().to_string()).unwrap_or_default();
        let reason = reason.to_string();
        self.log(&entry.name, format_args!("state=expired address={address} reason={reason:?}"));
    }

    fn regained(&mut self, entry: &mut Entry, lease: Lease) -> Result<(), End> {
        entry.record.lost = false;
        self.hold(entry, lease);
        self.change(entry, Undone::PutBack)
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
        let Some(client) = &entry.client else { return self.put_until_limit(entry) };
        let state = client.state();
        let deadline = client.deadline();
        if !client.needs_sockets(now) {
            entry.close();
        }
        if entry.state != Some(state) {
            self.tell_state(&mut entry, state);
        }
        let due = next_look(&entry, deadline, now);
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
            End::Gone(why) => self.note_gone(&mut entry, why),
            End::Failed(error) => self.note_failed(&entry, error),
        };
        let asked_by = std::mem::take(&mut entry.asked_by);
        self.let_go(entry);
        self.tell(asked_by, &error); // last: the client may look at what is left
    }

    fn note_gone(&mut self, entry: &mut Entry, why: &str) -> Error {
        self.metrics.count(Count::Gone);
        self.log(&entry.name, format_args!("state=gone reason={why:?}"));
        entry.record.intent = None;
        entry.record.lease = None; // nothing can be sent from there
        Error::new(Code::UNKNOWN_CONTAINER, format!("lease {}: {why}", entry.name))
    }

    fn note_failed(&mut self, entry: &Entry, error: Error) -> Error {
        self.metrics.count(Count::AcquireFailures);
        self.log(&entry.name, format_args!("state=failed reason={:?}", error.to_string()));
        error
    }

    /// Answers waiting connections with an error: there will be no lease.
    pub(super) fn tell(&mut self, asked_by: Vec<u64>, error: &Error) {
        let answer = super::requests::error_text(error);
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
        self.note_given_back(&entry.name, given_back);
        let removed = self.journal.remove(&entry.record.name());
        self.note_journalled(&entry.name, removed);
    }

    fn note_given_back(&mut self, name: &str, given_back: Result<bool, Absent>) {
        match given_back {
            Ok(true) => self.note_released(name),
            Ok(false) => self.log(name, "state=ended"),
            Err(Absent::Gone(why)) => self.log(name, format_args!("state=ended reason={why:?}")),
            Err(Absent::Failed(error)) => self.note_unsent(name, &error),
        }
    }

    fn note_released(&mut self, name: &str) {
        self.metrics.count(Count::Sent);
        self.metrics.count(Count::Released);
        self.log(name, "state=released");
    }

    fn note_unsent(&mut self, name: &str, error: &Error) {
        self.metrics.count(Count::Unsent);
        self.log(name, format_args!("state=ended problem={:?}", error.to_string()));
    }
}

/// A time of a lease for the log.
fn since(acquired: Moment, moment: Moment) -> String {
    match moment {
        NEVER => "never".to_owned(),
        _ => format!("{}s", moment.saturating_sub(acquired).as_secs()),
    }
}

/// Why a lease without a client has not been requested in its time.
fn why_not_begun(entry: &Entry) -> String {
    let ifname = entry.record.key.ifname.as_str();
    match entry.exchange {
        None => format!("{NO_MORE_TRIES}: {EXCHANGES_MAX} others were under way all the time"),
        Some(_) => format!("interface {ifname:?} has no link-local address"),
    }
}

/// The end of a lease that could not be acquired, for this reason.
fn gave_up(entry: &Entry, why: &str) -> End {
    let ifname = entry.record.key.ifname.as_str();
    let msg = format!("lease an address for interface {ifname:?}: {why}");
    End::Failed(Error::new(Code::ADDRESS_UNAVAILABLE, msg).saying(NO_MORE_TRIES))
}

/// When to look at a lease again.
fn next_look(entry: &Entry, deadline: Moment, now: Moment) -> Moment {
    let has_failed = entry.unsaved || entry.undone.is_some();
    let due = if has_failed { deadline.min(now + AGAIN) } else { deadline };
    // After a failure to open sockets, do not retry at once.
    if due <= now { now + Duration::from_millis(100) } else { due }
}

/// A lease's fields for the log; times are seconds since it was requested.
struct Times<'a>(&'a Lease);

impl fmt::Display for Times<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = self.0;
        write!(f, "address={} server={}", lease.net(), lease.server())?;
        let [acquired, t1, t2, expires] = lease.times();
        for (key, moment) in [("t1", t1), ("t2", t2), ("expires", expires)] {
            write!(f, " {key}={}", since(acquired, moment))?;
        }
        Ok(())
    }
}
