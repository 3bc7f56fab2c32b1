//! The daemon: keeps the leases of containers for as long as these live. It stands on
//! [`service`](crate::service).
//!
//! While a lease is held there is nothing of it but data ([`table`]) and a file ([`journal`]).

mod confinement;
mod exchange;
mod exchange_v4;
mod exchange_v6;
pub mod flags;
mod interface;
pub mod journal;
mod leases;
mod metrics;
pub mod orphans;
mod release;
mod requests;
mod table;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use nix::poll::PollFlags;

use self::flags::Flags;
use self::journal::Journal;
use self::metrics::Metrics;
use self::table::{Name, Table};
use crate::error::Result;
use crate::plugins::ipam::dhcp::wire::DAEMON;
use crate::service::event_loop::{self, Hub, Place, Service};
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// All that the daemon has.
pub struct Daemon {
    flags: Flags,
    hub: Hub,
    journal: Journal,
    table: Table,
    metrics: Metrics,
    random: Random,
}

/// Runs the daemon until a signal ends it. The leases stay, for the next one.
pub fn run(flags: Flags, variable: impl Fn(&str) -> String) -> Result<()> {
    let socket = socket_of(&flags);
    let pidfile = flags.pidfile.clone();
    let place = Place { socket: &socket, pidfile: &pidfile };
    let (events, hub, journal) =
        event_loop::start(&DAEMON, &confinement::CONFINEMENT, place, variable)?;
    let mut daemon = Daemon {
        flags,
        hub,
        journal,
        table: Table::default(),
        metrics: Metrics::new(),
        random: Random::new(),
    };
    events.serve(&mut daemon)
}

/// Where a daemon with these flags listens.
fn socket_of(flags: &Flags) -> PathBuf {
    let mut socket = std::ffi::OsString::from(&flags.hostprefix);
    socket.push(&flags.socketpath);
    PathBuf::from(socket)
}

impl Daemon {
    /// A line of the log about a lease.
    fn log(&self, name: &str, text: impl fmt::Display) {
        self.hub.log.about("lease", name, text);
    }
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
        self.resume_all()
    }

    fn request(&mut self, id: u64, line: &[u8]) {
        self.take_request(id, line);
    }

    fn hung_up(&mut self, id: u64) {
        self.forget_client(id);
    }

    fn next_timer(&self) -> Option<Moment> {
        self.table.next()
    }

    fn timer(&mut self, now: Moment) {
        while let Some(name) = self.table.due(now) {
            self.on_time(&name, now);
        }
        self.next_turns();
    }

    fn descriptors(&self) -> Vec<(Name, BorrowedFd<'_>, PollFlags)> {
        let talking = self.table.talking();
        talking
            .flat_map(|(name, exchange)| {
                exchange
                    .descriptors()
                    .into_iter()
                    .map(move |fd| (name.clone(), fd, PollFlags::POLLIN))
            })
            .collect()
    }

    fn readable(&mut self, name: &Name) {
        self.receive(name);
    }
}
