//! The daemon: keeps the leases of containers while the containers live. It is built on
//! [`service`](crate::service).
//!
//! A lease that is held is only data ([`table`]) and a file ([`journal`]): no socket is open for
//! it.

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
use crate::error::{Error, Result};
use crate::plugins::ipam::dhcp::wire::DAEMON;
use crate::service::event_loop::{self, Hub, Place, Service};
use crate::sys::clock::Moment;
use crate::sys::random::Random;

/// The state of the daemon.
pub struct Daemon {
    flags: Flags,
    hub: Hub,
    journal: Journal,
    table: Table,
    metrics: Metrics,
    random: Random,
}

/// Runs the daemon until SIGTERM or SIGINT. It releases nothing: the next daemon resumes the
/// leases.
pub fn run(flags: Flags, variable: impl Fn(&str) -> String) -> Result<()> {
    let socket = socket_of(&flags);
    let pidfile = flags.pidfile.clone();
    let place = Place { socket: &socket, journal: None, pidfile: &pidfile };
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

/// The socket path of a daemon with these flags.
fn socket_of(flags: &Flags) -> PathBuf {
    let mut socket = std::ffi::OsString::from(&flags.hostprefix);
    socket.push(&flags.socketpath);
    PathBuf::from(socket)
}

impl Daemon {
    /// Logs a line about a lease.
    fn log(&self, name: &str, text: impl fmt::Display) {
        self.hub.log.about("lease", name, text);
    }

    /// Logs a failure that a lease survives.
    fn log_problem(&self, name: &str, error: &Error) {
        self.log(name, format_args!("problem={:?}", error.to_string()));
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
