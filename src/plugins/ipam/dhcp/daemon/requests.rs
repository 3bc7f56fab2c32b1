//! The requests to the daemon, and their answers.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use super::Daemon;
use super::interface::{Absent, Place};
use super::journal::{Record, forget_all_torn, forget_torn};
use super::metrics::state_text;
use super::table::{Entry, Name, name_of};
use crate::cni::attachment::{ContainerId, IfName, Key, NetworkName};
use crate::error::{Code, Error, Result};
use crate::family::Family;
use crate::plugins::ipam::dhcp::client::State;
use crate::plugins::ipam::dhcp::family::Lease;
use crate::plugins::ipam::dhcp::wire::{self, DAEMON, Described, Request, Wish};
use crate::sys::clock::{Moment, NEVER, since_boot};

/// The start of a request of the reference's plugin.
const HTTP: &[u8] = b"CONNECT ";
/// Added to the time in the flags: for entering namespaces and for other leases.
const ON_TOP: Duration = Duration::from_secs(5);

/// Container id and interface of a valid attachment.
type Names = (ContainerId, IfName);

/// The answer to an ADD.
pub fn result_text(record: &Record) -> String {
    let lease = record.lease.as_ref();
    let result = lease.map(|lease| lease.result(record.terms.priority, record.place.mtu));
    let document = result.unwrap_or_default().into_document(wire::RESULT_VERSION);
    let document = document.map_err(|e| Error::new(Code::BUG, e.to_string()));
    DAEMON.answer_line(&document.map(|document| document.to_value()))
}

/// The answer to a failed request.
pub fn error_text(error: &Error) -> String {
    DAEMON.answer_line::<()>(&Err(error.clone()))
}

/// The answer to a completed request.
fn done() -> String {
    DAEMON.answer_line(&Ok(()))
}

impl Daemon {
    /// Handles a request; the answer may have to wait for servers.
    pub(super) fn take_request(&mut self, id: u64, line: &[u8]) {
        let now = since_boot();
        if line.starts_with(HTTP) {
            return self.reply(id, wire::TO_THE_REFERENCE, now);
        }
        match Request::read(line) {
            Ok(Request::Add(wish)) => self.take_wish(id, wish, now),
            Ok(request) => {
                let answer = self.answer(request, now);
                self.reply(id, &answer, now);
            }
            Err(error) => self.reply(id, &error_text(&error), now),
        }
    }

    fn take_wish(&mut self, id: u64, wish: Wish, now: Moment) {
        match Place::find(&self.flags.hostprefix, &wish) {
            Ok(place) => self.add(id, Record::wanted(wish, place), now),
            Err(error) => self.reply(id, &error_text(&error), now),
        }
    }

    /// Answers a connection. A client that has hung up needs no answer.
    pub(super) fn reply(&mut self, id: u64, answer: &str, now: Moment) {
        self.hub.connections.answer(id, answer, now);
    }

    /// The answer to a request that is completed at once.
    fn answer(&mut self, request: Request, now: Moment) -> String {
        match request {
            Request::Check { key, family } => DAEMON.answer_line(&self.check(&key, family)),
            Request::Del(key) => self.del(&key),
            Request::Gc { network, valid } => self.gc(&network, &valid),
            Request::Leases => DAEMON.answer_line(&Ok(self.leases(now))),
            Request::Release(name) => DAEMON.answer_line(&self.release(&name)),
            Request::Metrics => DAEMON.answer_line(&Ok(self.metrics.text(&self.table))),
            Request::Add(_) | Request::Status => done(), // take_request handles ADD
        }
    }

    fn del(&mut self, key: &Key) -> String {
        Family::ALL.into_iter().for_each(|family| self.end(&name_of(key, family)));
        forget_torn(&self.journal, key);
        done()
    }

    /// Answers an ADD with the lease that the same interface has; otherwise acquires one.
    fn add(&mut self, id: u64, record: Record, now: Moment) {
        let mut entry = Entry::new(record, now + self.flags.resendtimeout);
        if let Some(before) = self.table.take(&entry.name) {
            if before.record.place.is_same(&entry.record.place) && !before.record.lost {
                return self.add_again(id, before, now);
            }
            entry.wanted = self.replace(before);
        }
        self.promise(id, &mut entry);
        self.acquire(entry, now);
    }

    /// Answers an ADD of an interface that has a lease, or is acquiring one.
    fn add_again(&mut self, id: u64, mut entry: Entry, now: Moment) {
        if entry.is_new() {
            self.promise(id, &mut entry);
        } else {
            self.reply(id, &result_text(&entry.record), now);
        }
        self.settle(entry, now);
    }

    /// Forgets a lease for a new ADD, and returns its address: the container was recreated, or has
    /// lost its address. To the server it is the same client.
    fn replace(&mut self, mut entry: Entry) -> Option<IpAddr> {
        let msg = format!("lease {}: another ADD has come in between", entry.name);
        self.tell(std::mem::take(&mut entry.asked_by), &Error::new(Code::TRY_AGAIN, msg));
        entry.close();
        entry.record.lease.map(|lease| lease.address())
    }

    /// Reports to a connection how long it may have to wait, and adds it to those waiting.
    fn promise(&mut self, id: u64, entry: &mut Entry) {
        let patience = self.flags.resendtimeout + ON_TOP;
        self.hub.connections.tell(id, &DAEMON.patience_line(patience));
        entry.asked_by.push(id);
    }

    /// Handles a closed connection. A lease that no other connection waits for is released.
    pub(super) fn forget_client(&mut self, id: u64) {
        let Some(mut entry) = self.table.take_awaited_by(id) else { return };
        entry.asked_by.retain(|other| *other != id);
        if entry.asked_by.is_empty() {
            self.let_go(entry)
        } else {
            self.settle(entry, since_boot())
        }
    }

    fn check(&self, key: &Key, family: Family) -> Result<Described> {
        let name = name_of(key, family);
        let entry = self.held(&name)?;
        match entry.record.place.require_interface(&self.flags.hostprefix) {
            Err(Absent::Gone(why)) => Err(Error::check(format!("lease {name}: {why}"))),
            _ => Ok(described(&name, entry, since_boot())),
        }
    }

    /// A lease that has been granted.
    fn held(&self, name: &str) -> Result<&Entry> {
        let unknown = || Error::check(format!("the DHCP daemon has no lease {name}"));
        self.table.get(name).filter(|entry| !entry.is_new()).ok_or_else(unknown)
    }

    /// DEL: releases a lease; a missing lease is not an error.
    fn end(&mut self, name: &str) {
        let Some(mut entry) = self.table.take(name) else { return };
        let asked_by = std::mem::take(&mut entry.asked_by);
        self.let_go(entry);
        self.tell(
            asked_by,
            &Error::new(Code::TRY_AGAIN, format!("lease {name}: a DEL has come in between")),
        );
    }

    /// Releases the stale leases of a network, and forgets what is left of others.
    fn gc(&mut self, network: &NetworkName, valid: &[Names]) -> String {
        for name in self.stale(network, valid) {
            self.end(&name);
        }
        forget_all_torn(&self.journal, network, texts(valid));
        done()
    }

    /// The stale leases of a network. One that a connection waits for is not stale: its ADD is under
    /// way.
    fn stale(&self, network: &NetworkName, valid: &[Names]) -> Vec<Name> {
        let valid: HashSet<(&str, &str)> = texts(valid).collect();
        let is_stale = |entry: &Entry| {
            let key = &entry.record.key;
            let is_valid = valid.contains(&(key.container_id.as_str(), key.ifname.as_str()));
            key.network == *network && !is_valid && entry.asked_by.is_empty()
        };
        self.table.names_of(is_stale)
    }

    /// An operator's release: the container still runs, so the address is taken off its interface.
    fn release(&mut self, name: &str) -> Result<()> {
        let entry = self.table.get(name).ok_or_else(|| no_lease(name))?;
        let place = entry.record.place.clone();
        let address = entry.record.lease.as_ref().map(Lease::address);
        self.end(name); // first, since the message is sent from the address
        address.map_or(Ok(()), |address| self.take_off(address, &place))
    }

    /// Takes an address off its interface, if that still exists.
    fn take_off(&self, address: IpAddr, place: &Place) -> Result<()> {
        let taken = place.visit(&self.flags.hostprefix, &mut |at| at.take_off(address).map(drop));
        match taken {
            Err(Absent::Failed(error)) => {
                Err(error.context(format_args!("take {address} off the interface")))
            }
            _ => Ok(()),
        }
    }

    fn leases(&self, now: Moment) -> Vec<Described> {
        self.table.iter().map(|(name, entry)| described(name, entry, now)).collect()
    }
}

fn no_lease(name: &str) -> Error {
    Error::new(Code::UNKNOWN_CONTAINER, format!("there is no lease {name:?}"))
        .with_details("`cni-multi dhcp leases` lists them by key")
}

fn texts(valid: &[Names]) -> impl Iterator<Item = (&str, &str)> {
    valid.iter().map(|(id, ifname)| (id.as_str(), ifname.as_str()))
}

/// A lease as operators and CHECK see it.
fn described(name: &str, entry: &Entry, now: Moment) -> Described {
    let lease = entry.record.lease.as_ref();
    let times = lease.map(Lease::times);
    Described {
        key: name.to_owned(),
        state: state_text(state_of(entry, now)).to_owned(),
        address: lease.map(|lease| lease.net().to_string()),
        server: lease.map(Lease::server),
        renew_seconds: times.and_then(|[_, t1, _, _]| seconds_until(t1, now)),
        expire_seconds: times.and_then(|[.., expires]| seconds_until(expires, now)),
        namespace: entry.record.place.netns.clone(),
    }
}

/// The state of a lease, which may have expired before its turn.
fn state_of(entry: &Entry, now: Moment) -> Option<State> {
    if now < entry.end() { entry.state } else { Some(State::Expired) }
}

fn seconds_until(moment: Moment, now: Moment) -> Option<u64> {
    (moment != NEVER).then(|| moment.saturating_sub(now).as_secs())
}
