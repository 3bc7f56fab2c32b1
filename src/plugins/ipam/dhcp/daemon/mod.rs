//! The daemon: keeps the leases of containers while the containers live. It is built on
//! [`service`](crate::service).
//!
//! A lease that is held is only data ([`table`]) and a file ([`journal`]): no socket is open for
//! it.

mod exchange;
pub mod flags;
mod interface;
pub mod journal;
mod leases;
mod metrics;
pub(super) mod release;
mod requests;
mod table;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use nix::libc;
use nix::poll::PollFlags;

use self::flags::Flags;
use self::journal::Journal;
use self::metrics::Metrics;
use self::table::{Name, Table};
use crate::error::{Error, Result};
use crate::plugins::ipam::dhcp::wire::DAEMON;
use crate::service::confinement::Confinement;
use crate::service::event_loop::{self, Hub, Place, Service};
use crate::sys::capabilities::Capability;
use crate::sys::clock::Moment;
use crate::sys::random::Random;
use crate::sys::seccomp::{Call, Is};

/// The privileges that the daemon keeps: links and addresses, packets, and namespaces; no files,
/// programs or processes beyond that.
const CONFINEMENT: Confinement = Confinement {
    needed: &[Capability::NetAdmin, Capability::NetRaw, Capability::SysAdmin],
    useful: &[
        (Capability::NetBindService, "servers behind a router, and DHCPv6, cannot be asked"),
        (Capability::SysPtrace, "namespaces of the form /proc/PID/ns/net cannot be entered"),
        (Capability::DacReadSearch, "namespaces in directories of other users cannot be entered"),
    ],
    families: &[libc::AF_NETLINK, libc::AF_PACKET, libc::AF_INET, libc::AF_INET6],
    always: &[],
    some: &[Call { number: libc::SYS_setns, argument: 1, is: Is::OneOf(&[libc::CLONE_NEWNET]) }],
};

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
    let (events, hub, journal) = event_loop::start(&DAEMON, &CONFINEMENT, place, variable)?;
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
        self.table.next().map(|(due, _)| *due)
    }

    fn timer(&mut self, now: Moment) {
        while let Some((due, name)) = self.table.next()
            && *due <= now
        {
            let name = name.clone();
            self.on_time(&name, now);
        }
        self.next_turns();
    }

    fn descriptors(&self) -> Vec<(Name, BorrowedFd<'_>, PollFlags)> {
        let mut all = vec![];
        for (name, exchange) in self.table.talking() {
            let descriptors = exchange.descriptors().into_iter();
            all.extend(descriptors.map(|fd| (name.clone(), fd, PollFlags::POLLIN)));
        }
        all
    }

    fn readable(&mut self, name: &Name) {
        self.receive(name);
    }
}
