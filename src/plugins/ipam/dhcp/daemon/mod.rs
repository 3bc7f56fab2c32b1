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
pub(super) mod release;
mod requests;
mod table;

use std::fmt;
use std::path::PathBuf;

use nix::libc;

use self::flags::Flags;
use self::journal::Journal;
use self::table::Table;
use crate::error::{Error, Result};
use crate::plugins::ipam::dhcp::client::State;
use crate::plugins::ipam::dhcp::wire::DAEMON;
use crate::service::confinement::Confinement;
use crate::service::event_loop::{self, Hub, Place};
use crate::service::metrics::{Family, Registry};
use crate::sys::capabilities::Capability;
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

/// An event that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Messages sent.
    Sent,
    /// Messages that could not be sent.
    Unsent,
    /// Messages received.
    Received,
    /// Packets that were not valid messages.
    Malformed,
    /// ADDs that failed to acquire a lease.
    AcquireFailures,
    /// Leases released.
    Released,
    /// Leases whose namespace or interface was gone.
    Gone,
    /// Records that could not be written.
    JournalFailures,
}

/// Each counter's name and purpose, in the order of [`Count`].
const COUNTERS: [(&str, &str); 8] = [
    ("packets_sent", "Messages sent to servers."),
    ("send_failures", "Messages that could not be sent."),
    ("packets_received", "Messages received."),
    ("packets_malformed", "Packets received that are not DHCP messages."),
    ("acquire_failures", "ADDs that got no lease."),
    ("releases", "Leases released."),
    ("gone", "Leases whose namespace or interface was gone."),
    ("journal_failures", "Records that could not be written."),
];

/// The states of a lease, and their names.
pub const STATES: [(State, &str); 7] = [
    (State::Selecting, "selecting"),
    (State::Requesting, "requesting"),
    (State::Waiting, "waiting"),
    (State::Bound, "bound"),
    (State::Renewing, "renewing"),
    (State::Rebinding, "rebinding"),
    (State::Expired, "expired"),
];

/// The name of the state of a lease in the queue.
pub const QUEUED: &str = "queued";

/// The name of a state; `None` is a lease in the queue.
pub fn state_text(state: Option<State>) -> &'static str {
    let known = STATES.iter().find(|(known, _)| Some(*known) == state);
    known.map_or(if state.is_none() { QUEUED } else { "ended" }, |(_, text)| text)
}

/// The daemon's metrics.
pub(super) struct Metrics {
    registry: Registry,
    leases: Family,
    exchanges: Family,
    transitions: Family,
    counters: [Family; COUNTERS.len()],
}

impl Metrics {
    /// Starts all counters at 0.
    pub fn new() -> Metrics {
        let mut registry = Registry::new("cni_dhcp");
        let told: Vec<&str> = STATES.iter().map(|(_, text)| *text).collect();
        let all = told.iter().copied().chain([QUEUED]).collect();
        Metrics {
            leases: registry.gauge("leases", "Leases by state.", Some(("state", all))),
            exchanges: registry.gauge(
                "exchanges",
                "Conversations with servers that are under way.",
                None,
            ),
            transitions: registry.counter(
                "transitions",
                "Changes of leases by the state that they came to.",
                Some(("to", told)),
            ),
            counters: COUNTERS.map(|(name, about)| registry.counter(name, about, None)),
            registry,
        }
    }

    /// Counts one event.
    pub fn count(&mut self, what: Count) {
        self.registry.count(self.counters[what as usize], 0);
    }

    /// Counts a lease that has entered this state.
    pub fn transition(&mut self, state: State) {
        if let Some(index) = STATES.iter().position(|(known, _)| *known == state) {
            self.registry.count(self.transitions, index);
        }
    }

    /// All metrics, in the Prometheus text format.
    pub fn text(&mut self, table: &Table) -> String {
        let states = STATES.iter().map(|(_, text)| *text).chain([QUEUED]);
        for (index, state) in states.enumerate() {
            let in_state = table.iter().filter(|(_, entry)| state_text(entry.state) == state);
            self.registry.set(self.leases, index, in_state.count() as u64);
        }
        self.registry.set(self.exchanges, 0, table.exchanges() as u64);
        self.registry.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_its_name() {
        let mut metrics = Metrics::new();
        for (count, times) in
            (1..).zip([Count::Sent, Count::Unsent, Count::Received, Count::Malformed])
        {
            (0..count).for_each(|_| metrics.count(times));
        }
        metrics.count(Count::JournalFailures);
        metrics.transition(State::Rebinding);
        let text = metrics.text(&Table::default());
        for line in [
            "cni_dhcp_packets_sent_total 1",
            "cni_dhcp_send_failures_total 2",
            "cni_dhcp_packets_received_total 3",
            "cni_dhcp_packets_malformed_total 4",
            "cni_dhcp_acquire_failures_total 0",
            "cni_dhcp_journal_failures_total 1",
            "cni_dhcp_transitions_total{to=\"rebinding\"} 1",
            "cni_dhcp_leases{state=\"queued\"} 0",
            "# TYPE cni_dhcp_leases gauge",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
