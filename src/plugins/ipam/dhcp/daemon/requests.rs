//! The requests to the daemon, and their answers.

use std::collections::HashSet;
use std::time::Duration;

use super::interface::{Absent, Place};
use super::journal::{Record, file_name, forget_all_torn};
use super::table::{Entry, name_of};
use super::{Daemon, state_text};
use crate::cni::attachment::NetworkName;
use crate::error::{Code, Error, Result};
use crate::family::Family;
use crate::plugins::ipam::dhcp::client::{Lease, State};
use crate::plugins::ipam::dhcp::wire::{self, DAEMON, Described, Names, Request, Wish};
use crate::sys::clock::{Moment, NEVER, since_boot};

/// The start of a request of the reference's plugin.
const HTTP: &[u8] = b"CONNECT ";
/// Added to the time in the flags: for entering namespaces and for other leases.
const ON_TOP: Duration = Duration::from_secs(5);

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

impl Daemon {
    /// Handles a request; the answer to an ADD may have to wait for servers.
    pub(super) fn take_request(&mut self, id: u64, line: &[u8]) {
        let now = since_boot();
        if line.starts_with(HTTP) {
            return self.reply(id, wire::TO_THE_REFERENCE, now);
        }
        let answer = match Request::read(line) {
            Ok(Request::Add(wish)) => match Place::find(&self.flags.hostprefix, &wish) {
                Ok(place) => return self.add(id, wish, place, now),
                Err(error) => error_text(&error),
            },
            Ok(Request::Check { key, family }) => {
                DAEMON.answer_line(&self.check(&name_of(&key, family), now))
            }
            Ok(Request::Del(key)) => {
                for family in Family::ALL {
                    self.end(&name_of(&key, family));
                    self.journal.forget_torn(&file_name(&key, family));
                }
                DAEMON.answer_line(&Ok(()))
            }
            Ok(Request::Gc { network, valid }) => {
                self.gc(&network, &valid);
                DAEMON.answer_line(&Ok(()))
            }
            Ok(Request::Status) => DAEMON.answer_line(&Ok(())),
            Ok(Request::Leases) => {
                let leases = self.table.iter().map(|(name, entry)| described(name, entry, now));
                DAEMON.answer_line(&Ok(leases.collect::<Vec<_>>()))
            }
            Ok(Request::Release { key }) => DAEMON.answer_line(&self.release(&key)),
            Ok(Request::Metrics) => DAEMON.answer_line(&Ok(self.metrics.text(&self.table))),
            Err(error) => error_text(&error),
        };
        self.reply(id, &answer, now);
    }

    /// Answers a connection. A client that has hung up needs no answer.
    pub(super) fn reply(&mut self, id: u64, answer: &str, now: Moment) {
        self.hub.connections.answer(id, answer, now);
    }

    /// Answers an ADD with the lease that the same interface has; otherwise acquires one.
    fn add(&mut self, id: u64, wish: Wish, place: Place, now: Moment) {
        let Wish { key, terms, .. } = wish;
        let record = Record { key, place, terms, lost: false, lease: None, intent: None };
        let mut entry = Entry::new(record, now + self.flags.resendtimeout);
        if let Some(mut before) = self.table.take(&entry.name) {
            if before.record.place.is_same(&entry.record.place) && !before.record.lost {
                if before.is_new() {
                    self.promise(id, &mut before);
                } else {
                    self.reply(id, &result_text(&before.record), now);
                }
                return self.settle(before, now);
            }
            // The container was recreated, or has lost its address. To the server it is the same
            // client.
            let msg = format!("lease {}: another ADD has come in between", before.name);
            self.tell(std::mem::take(&mut before.asked_by), &Error::new(Code::TRY_AGAIN, msg));
            before.close();
            entry.wanted = before.record.lease.map(|lease| lease.net().addr());
        }
        self.promise(id, &mut entry);
        self.acquire(entry, now);
    }

    /// Reports to a connection how long it may have to wait, and adds it to those waiting.
    fn promise(&mut self, id: u64, entry: &mut Entry) {
        let patience = self.flags.resendtimeout + ON_TOP;
        self.hub.connections.tell(id, &DAEMON.patience_line(patience));
        entry.asked_by.push(id);
    }

    /// Describes a lease that has been granted, and whose interface exists.
    fn check(&self, name: &str, now: Moment) -> Result<Described> {
        let entry = self.table.get(name).filter(|entry| !entry.is_new());
        let entry =
            entry.ok_or_else(|| Error::check(format!("the DHCP daemon has no lease {name}")))?;
        match entry.record.place.visit(|_| Ok(())) {
            Err(Absent::Gone(why)) => Err(Error::check(format!("lease {name}: {why}"))),
            _ => Ok(described(name, entry, now)),
        }
    }

    /// DEL: releases a lease; a missing lease is not an error.
    fn end(&mut self, name: &str) {
        let Some(mut entry) = self.table.take(name) else { return };
        let asked_by = std::mem::take(&mut entry.asked_by);
        self.let_go(entry);
        let msg = format!("lease {name}: a DEL has come in between");
        self.tell(asked_by, &Error::new(Code::TRY_AGAIN, msg));
    }

    /// Releases the stale leases of a network, and forgets what is left of others. A lease that a
    /// connection waits for is not stale: its ADD is under way.
    fn gc(&mut self, network: &NetworkName, valid: &[Names]) {
        let listed: HashSet<(&str, &str)> =
            valid.iter().map(|(id, ifname)| (id.as_str(), ifname.as_str())).collect();
        let is_stale = |entry: &Entry| {
            let key = &entry.record.key;
            let is_valid = listed.contains(&(key.container_id.as_str(), key.ifname.as_str()));
            key.network == *network && !is_valid && entry.asked_by.is_empty()
        };
        for name in self.table.names_of(is_stale) {
            self.end(&name);
        }
        forget_all_torn(&self.journal, network, valid);
    }

    /// An operator's release: the container still runs, so the address is taken off its interface,
    /// if that still exists.
    fn release(&mut self, name: &str) -> Result<()> {
        let entry = self.table.get(name).ok_or_else(|| {
            Error::new(Code::UNKNOWN_CONTAINER, format!("there is no lease {name:?}"))
                .with_details("`cni-multi dhcp leases` lists them by key")
        })?;
        let place = entry.record.place.clone();
        let address = entry.record.lease.as_ref().map(|lease| lease.net().addr());
        self.end(name); // first, since the message is sent from the address
        let Some(address) = address else { return Ok(()) };
        match place.visit(|at| at.take_off(address)) {
            Err(Absent::Failed(error)) => {
                Err(error.context(format_args!("take {address} off the interface")))
            }
            _ => Ok(()),
        }
    }
}

/// A lease as operators and CHECK see it. It may have expired before its turn.
fn described(name: &str, entry: &Entry, now: Moment) -> Described {
    let lease = entry.record.lease.as_ref();
    let state = if now < entry.end() { entry.state } else { Some(State::Expired) };
    let seconds_until =
        |moment: Moment| (moment != NEVER).then(|| moment.saturating_sub(now).as_secs());
    Described {
        key: name.to_owned(),
        state: state_text(state).to_owned(),
        address: lease.map(|lease| lease.net().to_string()),
        server: lease.map(Lease::server),
        renew_seconds: lease.and_then(|lease| seconds_until(lease.times().t1)),
        expire_seconds: lease.and_then(|lease| seconds_until(lease.times().expires)),
        namespace: entry.record.place.netns.clone(),
    }
}
