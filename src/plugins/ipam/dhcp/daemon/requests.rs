//! The requests to the daemon, and their answers.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use super::Daemon;
use super::interface::{Absent, Place};
use super::journal::{Record, forget_all_torn, forget_torn};
use super::metrics::state_text;
use super::table::{Entry, name_of};
use crate::cni::attachment::{ContainerId, IfName, Key, NetworkName};
use crate::error::{Code, Error, Result};
use crate::family::Family;
use crate::plugins::ipam::dhcp::client::State;
use crate::plugins::ipam::dhcp::family::Lease;
use crate::plugins::ipam::dhcp::wire::{self, DAEMON, Described, Request};
use crate::sys::clock::{Moment, NEVER, since_boot};

/// The start of a request of the reference's plugin.
const HTTP: &[u8] = b"CONNECT ";
/// Added to the time in the flags: for entering namespaces and for other leases.
const ON_TOP: Duration = Duration::from_secs(5);

/// The answer to an ADD.
pub fn result_text(record: &Record) -> String {
    let lease = record.lease.as_ref();
    let result = lease
        .map(|lease| lease.result(record.terms.priority, record.place.mtu))
        .unwrap_or_default();
    let document = result
        .into_document(wire::RESULT_VERSION)
        .map_err(|e| Error::new(Code::BUG, e.to_string()));
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
            self.hub.connections.answer(id, wire::TO_THE_REFERENCE, now);
            return;
        }
        let answer = match Request::read(line) {
            Ok(Request::Add(wish)) => match Place::find(&self.flags.hostprefix, &wish) {
                Ok(place) => return self.add(id, Record::wanted(wish, place), now),
                Err(error) => error_text(&error),
            },
            Ok(request) => self.answer(request, now),
            Err(error) => error_text(&error),
        };
        self.hub.connections.answer(id, &answer, now); // a client that has hung up needs no answer
    }

    /// The answer to a request that is completed at once.
    fn answer(&mut self, request: Request, now: Moment) -> String {
        match request {
            Request::Check { key, family } => DAEMON.answer_line(&self.check(&key, family)),
            Request::Del(key) => {
                Family::ALL.into_iter().for_each(|family| self.end(&name_of(&key, family)));
                forget_torn(&self.journal, &key);
                done()
            }
            Request::Gc { network, valid } => {
                self.gc(&network, &valid);
                done()
            }
            Request::Leases => DAEMON.answer_line(&Ok(self.leases(now))),
            Request::Release(name) => DAEMON.answer_line(&self.release(&name)),
            Request::Metrics => DAEMON.answer_line(&Ok(self.metrics.text(&self.table))),
            Request::Add(_) | Request::Status => done(), // take_request handles ADD
        }
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
            self.hub.connections.answer(id, &result_text(&entry.record), now);
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
        let asked = self
            .table
            .iter()
            .find(|(_, entry)| entry.asked_by.contains(&id))
            .map(|(name, _)| name.clone());
        let Some(name) = asked else { return };
        let Some(mut entry) = self.table.take(&name) else { return };
        entry.asked_by.retain(|other| *other != id);
        if entry.asked_by.is_empty() {
            self.let_go(entry)
        } else {
            self.settle(entry, since_boot())
        }
    }

    fn check(&self, key: &Key, family: Family) -> Result<Described> {
        let name = name_of(key, family);
        let unknown = || Error::check(format!("the DHCP daemon has no lease {name}"));
        let entry = self.table.get(&name).filter(|entry| !entry.is_new()).ok_or_else(unknown)?;
        if let Err(Absent::Gone(why)) =
            entry.record.place.visit(&self.flags.hostprefix, &mut |_| Ok(()))
        {
            return Err(Error::check(format!("lease {name}: {why}")));
        }
        Ok(described(&name, entry, since_boot()))
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

    /// GC. A lease that a connection waits for is not stale: its ADD is under way.
    fn gc(&mut self, network: &NetworkName, valid: &[(ContainerId, IfName)]) {
        let names = || valid.iter().map(|(id, ifname)| (id.as_str(), ifname.as_str()));
        let listed: HashSet<(&str, &str)> = names().collect();
        let is_valid =
            |key: &Key| listed.contains(&(key.container_id.as_str(), key.ifname.as_str()));
        let stale = self.table.iter().filter(|(_, entry)| {
            entry.record.key.network == *network
                && entry.asked_by.is_empty()
                && !is_valid(&entry.record.key)
        });
        for name in stale.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.end(&name);
        }
        forget_all_torn(&self.journal, network, names());
    }

    /// An operator's release: the container still runs, so the address is taken off its interface.
    fn release(&mut self, name: &str) -> Result<()> {
        let Some(entry) = self.table.get(name) else {
            let error = Error::new(Code::UNKNOWN_CONTAINER, format!("there is no lease {name:?}"));
            return Err(error.with_details("`cni-multi dhcp leases` lists them by key"));
        };
        let place = entry.record.place.clone();
        let address = entry.record.lease.as_ref().map(Lease::address);
        self.end(name); // first, since the message is sent from the address
        let Some(address) = address else { return Ok(()) };
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

/// A lease as operators and CHECK see it.
fn described(name: &str, entry: &Entry, now: Moment) -> Described {
    // It may have expired before its turn.
    let state = if now < entry.end() { entry.state } else { Some(State::Expired) };
    let lease = entry.record.lease.as_ref();
    let seconds = |moment: Moment| (moment != NEVER).then(|| moment.saturating_sub(now).as_secs());
    Described {
        key: name.to_owned(),
        state: state_text(state).to_owned(),
        address: lease.map(|lease| lease.net().to_string()),
        server: lease.map(Lease::server),
        renew_seconds: lease.and_then(|lease| seconds(lease.times()[1])),
        expire_seconds: lease.and_then(|lease| seconds(lease.times()[3])),
        namespace: entry.record.place.netns.clone(),
    }
}
