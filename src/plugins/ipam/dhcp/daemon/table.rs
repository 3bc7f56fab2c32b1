//! The daemon's leases, each with the moment when it is due.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

use super::exchange::Exchange;
use super::interface::Absent;
use super::journal::Record;
use crate::cni::attachment::Key;
use crate::family::Family;
use crate::net::netlink::RouteEntry;
use crate::plugins::ipam::dhcp::client::State;
use crate::plugins::ipam::dhcp::family::{Client, Lease};
use crate::sys::clock::{Moment, NEVER};

/// The name of a lease: `<container id>/<network>/<interface>`, with `/6` appended for IPv6.
/// Operators use it, and servers see it as the client id unless the configuration provides another.
pub type Name = String;

/// The name of an attachment's lease.
pub fn name_of(key: &Key, family: Family) -> Name {
    let family = if family == Family::V6 { "/6" } else { "" };
    format!("{}/{}/{}{family}", key.container_id, key.network, key.ifname)
}

/// A change of the interface that failed and will be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undone {
    /// Take the address off.
    TakeOff,
    /// Put the address back.
    PutBack,
    /// Move the routes from this IPv6 router to the lease's.
    Reroute(Option<Ipv6Addr>),
}

/// A lease, or one that is being acquired.
pub struct Entry {
    /// The lease's name.
    pub name: Name,
    /// The lease as journalled.
    pub record: Record,
    /// The lease's client; `None` while the lease is queued.
    pub client: Option<Client>,
    /// The state that was last logged.
    pub state: Option<State>,
    /// The open sockets, while answers are expected.
    pub exchange: Option<Exchange>,
    /// The connections that wait for the result.
    pub asked_by: Vec<u64>,
    /// When to give up acquiring.
    pub limit: Moment,
    /// The last write of the journal failed.
    pub unsaved: bool,
    /// A malformed packet of this exchange was already logged.
    pub told_malformed: bool,
    /// The pending change of the interface.
    pub undone: Option<Undone>,
    /// The address that the container had before.
    pub wanted: Option<IpAddr>,
    /// The routes that were removed with the address.
    pub routes: Vec<RouteEntry>,
    due: Moment,
}

impl Entry {
    /// A new entry in the queue.
    pub fn new(record: Record, limit: Moment) -> Entry {
        Entry {
            name: name_of(&record.key, record.family()),
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

    /// Opens the sockets, if the interface still exists.
    pub fn open(&mut self, prefix: &str) -> Result<(), Absent> {
        self.exchange = Some(Exchange::open(&self.record, prefix)?);
        Ok(())
    }

    /// Whether the sockets are open and can send.
    pub fn can_send(&self) -> bool {
        self.exchange.as_ref().is_some_and(Exchange::is_ready)
    }

    /// Whether the client needs sockets that are not open.
    pub fn needs_exchange(&self, now: Moment) -> bool {
        let client = self.client.as_ref().filter(|_| self.exchange.is_none());
        client.is_some_and(|client| client.needs_sockets(now))
    }

    /// Probes the link for a host that has the address.
    pub fn probe(&mut self, address: IpAddr, prefix: &str) -> Result<(), Absent> {
        match &mut self.exchange {
            Some(exchange) => exchange.probe(address, &self.record.place, prefix),
            None => Ok(()),
        }
    }

    /// Closes the sockets.
    pub fn close(&mut self) {
        self.told_malformed = false;
        if let Some(exchange) = self.exchange.take() {
            exchange.close();
        }
    }

    /// The IPv6 router of the lease.
    pub fn router(&self) -> Option<Ipv6Addr> {
        self.record.lease.as_ref().and_then(Lease::router)
    }

    /// When the address must leave the interface.
    pub fn end(&self) -> Moment {
        let lease = self.record.lease.as_ref().filter(|_| !self.record.lost);
        lease.map_or(NEVER, |lease| lease.times()[3])
    }

    /// Whether no lease has been granted yet.
    pub fn is_new(&self) -> bool {
        self.record.lease.is_none()
    }
}

/// All leases of the daemon.
#[derive(Default)]
pub struct Table {
    entries: BTreeMap<Name, Entry>,
    timers: BTreeSet<(Moment, Name)>,
    /// Leases to acquire that are queued for an exchange.
    pub turns: VecDeque<Name>,
    /// Held leases that are queued for an exchange.
    pub overdue: VecDeque<Name>,
    /// Leases with an open exchange.
    talking: BTreeSet<Name>,
}

impl Table {
    /// Adds a lease, or puts one back that was [taken](Table::take), due at `due`.
    pub fn put(&mut self, mut entry: Entry, due: Moment) {
        entry.due = due;
        if due != NEVER {
            self.timers.insert((due, entry.name.clone()));
        }
        if entry.exchange.is_some() {
            self.talking.insert(entry.name.clone());
        }
        self.entries.insert(entry.name.clone(), entry);
    }

    /// Removes and returns a lease, to work on it or to forget it.
    pub fn take(&mut self, name: &str) -> Option<Entry> {
        let (name, entry) = self.entries.remove_entry(name)?;
        self.talking.remove(&name);
        self.timers.remove(&(entry.due, name));
        Some(entry)
    }

    /// Removes and returns the lease that a connection waits for.
    pub fn take_awaited_by(&mut self, id: u64) -> Option<Entry> {
        let names = self.names_of(|entry| entry.asked_by.contains(&id));
        self.take(names.first()?)
    }

    /// The lease with this name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// All leases.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Entry)> {
        self.entries.iter()
    }

    /// The names of some leases.
    pub fn names_of(&self, is_wanted: impl Fn(&Entry) -> bool) -> Vec<Name> {
        let wanted = self.entries.values().filter(|entry| is_wanted(entry));
        wanted.map(|entry| entry.name.clone()).collect()
    }

    /// When the next lease is due.
    pub fn next(&self) -> Option<Moment> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// The next lease that is due by `now`.
    pub fn due(&self, now: Moment) -> Option<Name> {
        self.timers.first().filter(|(due, _)| *due <= now).map(|(_, name)| name.clone())
    }

    /// The number of open exchanges.
    pub fn exchanges(&self) -> usize {
        self.talking.len()
    }

    /// The leases with an open exchange.
    pub fn talking(&self) -> impl Iterator<Item = (&Name, &Exchange)> {
        self.talking
            .iter()
            .filter_map(|name| Some((name, self.entries.get(name)?.exchange.as_ref()?)))
    }
}
