//! The daemon's leases, each with the moment when it is due.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

use super::exchange::{self, Exchange};
use super::interface::Absent;
use super::journal::Record;
use crate::cni::attachment::Key;
use crate::family::Family;
use crate::net::netlink::RouteEntry;
use crate::plugins::ipam::dhcp::client::{Client, State};
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
    pub client: Option<Box<dyn Client>>,
    /// The state that was last logged.
    pub state: Option<State>,
    /// The open sockets, while answers are expected.
    pub exchange: Option<Box<dyn Exchange>>,
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
    pub fn open(&mut self) -> Result<(), Absent> {
        self.exchange = Some(exchange::open(&self.record)?);
        Ok(())
    }

    /// Closes the sockets.
    pub fn close(&mut self) {
        self.told_malformed = false;
        if let Some(exchange) = self.exchange.take() {
            exchange.close();
        }
    }

    /// When the address must leave the interface.
    pub fn end(&self) -> Moment {
        let lease = self.record.lease.as_ref().filter(|_| !self.record.lost);
        lease.map_or(NEVER, |lease| lease.times().expires)
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

    /// The lease that is due next, and when.
    pub fn next(&self) -> Option<&(Moment, Name)> {
        self.timers.first()
    }

    /// The number of open exchanges.
    pub fn exchanges(&self) -> usize {
        self.talking.len()
    }

    /// The leases with an open exchange.
    pub fn talking(&self) -> impl Iterator<Item = (&Name, &dyn Exchange)> {
        let exchange = |name| Some((name, self.entries.get(name)?.exchange.as_deref()?));
        self.talking.iter().filter_map(exchange)
    }
}
