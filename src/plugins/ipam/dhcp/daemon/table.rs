//! The leases of the daemon, each with the moment when it has to be looked at.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

use super::exchange::Exchange;
use super::journal::Record;
use crate::cni::attachment::Key;
use crate::net::netlink::RouteEntry;
use crate::plugins::ipam::dhcp::client::State;
use crate::plugins::ipam::dhcp::family::{Client, Family};
use crate::sys::clock::{Moment, NEVER};

/// `<container id>/<network>/<interface>`, and `/6` behind it for that of IPv6: how a lease is
/// named to people, and to the server unless it is told another id.
pub type Name = String;

/// The name of an attachment's lease.
pub fn name_of(key: &Key, family: Family) -> Name {
    let family = if family == Family::V6 { "/6" } else { "" };
    format!("{}/{}/{}{family}", key.container_id, key.network, key.ifname)
}

/// A change of the interface that failed and is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undone {
    /// The address has to leave it.
    TakeOff,
    /// It has to have its address back.
    PutBack,
    /// Its routes have to be led by another router of IPv6 than this one.
    Reroute(Option<Ipv6Addr>),
}

/// A lease, or what is to become one.
pub struct Entry {
    /// What the journal has.
    pub record: Record,
    /// None while it waits for its turn.
    pub client: Option<Client>,
    /// The state that was told last.
    pub state: Option<State>,
    /// What is open, while answers are expected.
    pub exchange: Option<Exchange>,
    /// The connections that wait for the result.
    pub asked_by: Vec<u64>,
    /// Until when a lease is looked for.
    pub limit: Moment,
    /// The journal could not be written.
    pub unsaved: bool,
    /// The log has something malformed of this exchange.
    pub told_malformed: bool,
    /// What could not be done at the interface.
    pub undone: Option<Undone>,
    /// The address that the container had before.
    pub wanted: Option<IpAddr>,
    /// The routes that went with the address when it was lost.
    pub routes: Vec<RouteEntry>,
    due: Moment,
}

impl Entry {
    /// One that waits for its turn.
    pub fn new(record: Record, limit: Moment) -> Entry {
        Entry {
            record,
            client: None,
            state: None,
            exchange: None,
            asked_by: vec![],
            limit,
            unsaved: false,
            told_malformed: false,
            undone: None,
            wanted: None,
            routes: vec![],
            due: NEVER,
        }
    }

    /// Closes what is open.
    pub fn close(&mut self) {
        self.told_malformed = false;
        if let Some(exchange) = self.exchange.take() {
            exchange.close();
        }
    }

    /// When the container's address has to leave the interface.
    pub fn end(&self) -> Moment {
        let lease = self.record.lease.as_ref().filter(|_| !self.record.lost);
        lease.map_or(NEVER, |lease| lease.times()[3])
    }

    /// Whether the container has, or will have, nothing of it yet.
    pub fn is_new(&self) -> bool {
        self.record.lease.is_none()
    }
}

/// All leases.
#[derive(Default)]
pub struct Table {
    entries: BTreeMap<Name, Entry>,
    timers: BTreeSet<(Moment, Name)>,
    /// Those without a lease that wait for an exchange to end.
    pub turns: VecDeque<Name>,
    /// Those with a lease that do.
    pub overdue: VecDeque<Name>,
    /// Those that have an exchange.
    talking: BTreeSet<Name>,
}

impl Table {
    /// Adds a lease, or one that was [taken](Table::take) out, to be looked at when it is `due`.
    pub fn put(&mut self, name: Name, mut entry: Entry, due: Moment) {
        entry.due = due;
        if due != NEVER {
            self.timers.insert((due, name.clone()));
        }
        if entry.exchange.is_some() {
            self.talking.insert(name.clone());
        }
        self.entries.insert(name, entry);
    }

    /// Takes a lease out, to be worked on or to be forgotten.
    pub fn take(&mut self, name: &str) -> Option<Entry> {
        let (name, entry) = self.entries.remove_entry(name)?;
        self.talking.remove(&name);
        self.timers.remove(&(entry.due, name));
        Some(entry)
    }

    /// A lease.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// All leases.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Entry)> {
        self.entries.iter()
    }

    /// When the next one is due.
    pub fn next(&self) -> Option<Moment> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// The next one that is due by now.
    pub fn due(&self, now: Moment) -> Option<Name> {
        self.timers.first().filter(|(due, _)| *due <= now).map(|(_, name)| name.clone())
    }

    /// How many exchanges are open.
    pub fn exchanges(&self) -> usize {
        self.talking.len()
    }

    /// Those that have an exchange open.
    pub fn talking(&self) -> impl Iterator<Item = (&Name, &Exchange)> {
        self.talking
            .iter()
            .filter_map(|name| Some((name, self.entries.get(name)?.exchange.as_ref()?)))
    }
}
