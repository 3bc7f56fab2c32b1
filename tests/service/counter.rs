//! A daemon that counts: it uses the whole service layer and nothing of DHCP.

use std::ffi::OsString;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cni_multi::error::{Code, Error, Result};
use cni_multi::service::Identity;
use cni_multi::service::confinement::Confinement;
use cni_multi::service::event_loop::{self, Hub, Place, Service};
use cni_multi::service::journal::{self, Journal, Read};
use cni_multi::service::metrics::{Family, Registry};
use cni_multi::sys::clock::{Moment, since_boot};
use nix::libc;
use nix::poll::PollFlags;
use serde::{Deserialize, Serialize};

/// The daemon's names.
pub static COUNTER: Identity = Identity {
    name: "counter",
    rival: None,
    socket_option: "COUNTER_SOCKET",
    units: "counter.service",
    protocol: 3,
    journal: "counts",
};

/// No capabilities, and no sockets except Unix sockets.
const CONFINEMENT: Confinement =
    Confinement { needed: &[], useful: &[], families: &[libc::AF_UNIX], always: &[], some: &[] };

/// The requests of the daemon.
#[derive(Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Request {
    /// Adds to a count, and answers with its value.
    Add {
        /// The name of the count.
        name: String,
        /// The amount.
        by: u64,
    },
    /// Adds after a delay, and answers then.
    Later {
        /// The name of the count.
        name: String,
        /// The amount.
        by: u64,
        /// The delay.
        millis: u64,
    },
    /// Answers with the value of a count.
    Get {
        /// The name of the count.
        name: String,
    },
    /// Answers with the forbidden actions that succeed.
    Probe,
    /// Answers with the metrics.
    Metrics,
}

/// A count in the journal. It survives a reboot.
#[derive(Serialize, Deserialize)]
struct Count {
    name: String,
    value: u64,
}

impl journal::Record for Count {
    const VERSION: u64 = 1;
    const LIMIT: usize = 1024;
    const ENDS_WITH_BOOT: bool = false;

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// An addition that is not due yet.
struct Waiting {
    due: Moment,
    client: u64,
    name: String,
    by: u64,
}

struct Counter {
    hub: Hub,
    journal: Journal<Count>,
    counts: Vec<Count>,
    waiting: Vec<Waiting>,
    /// Each datagram is the name of a count, which is incremented.
    feed: UnixDatagram,
    registry: Registry,
    additions: Family,
    open: Family,
}

/// The path of the feed of the daemon with this socket.
pub fn feed_of(socket: &Path) -> PathBuf {
    socket.with_extension("feed")
}

/// Runs the daemon in this process.
pub fn run(socket: OsString) -> Result<()> {
    let socket = PathBuf::from(socket);
    let pidfile = socket.with_extension("pid");
    let place = Place { socket: &socket, journal: None, pidfile: &pidfile };
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let (events, hub, journal) = event_loop::start(&COUNTER, &CONFINEMENT, place, variable)?;
    let mut registry = Registry::new("counter");
    let mut counter = Counter {
        hub,
        journal,
        counts: vec![],
        waiting: vec![],
        feed: bind_feed(&feed_of(&socket)).map_err(|e| Error::io("bind the feed", &e))?,
        additions: registry.counter("additions", "Additions.", Some(("by", vec!["feed", "op"]))),
        open: registry.gauge("waiting", "Additions whose time has not come.", None),
        registry,
    };
    events.serve(&mut counter)
}

fn bind_feed(path: &Path) -> std::io::Result<UnixDatagram> {
    let _ = std::fs::remove_file(path); // a killed daemon may have left it
    let feed = UnixDatagram::bind(path)?;
    feed.set_nonblocking(true)?;
    Ok(feed)
}

impl Counter {
    fn add(&mut self, name: &str, by: u64) -> Result<u64> {
        let at = self.counts.iter().position(|count| count.name == name).unwrap_or_else(|| {
            self.counts.push(Count { name: name.to_owned(), value: 0 });
            self.counts.len() - 1
        });
        self.counts[at].value += by;
        self.journal.write(&self.counts[at])?;
        self.hub.log.about("count", name, format_args!("value={}", self.counts[at].value));
        Ok(self.counts[at].value)
    }

    fn answer<A: Serialize>(&mut self, client: u64, answer: &Result<A>) {
        let line = COUNTER.answer_line(answer);
        self.hub.connections.answer(client, &line, since_boot());
    }

    fn take(&mut self, client: u64, request: Request) {
        match request {
            Request::Add { name, by } => {
                self.registry.count(self.additions, 1);
                let sum = self.add(&name, by);
                self.answer(client, &sum);
            }
            Request::Later { name, by, millis } => {
                self.hub.connections.tell(client, &COUNTER.patience_line(Duration::from_secs(5)));
                let due = since_boot() + Duration::from_millis(millis);
                self.waiting.push(Waiting { due, client, name, by });
            }
            Request::Get { name } => {
                let found = self.counts.iter().find(|count| count.name == name);
                let unknown = || Error::new(Code::UNKNOWN_CONTAINER, format!("no count {name:?}"));
                let value = found.map(|count| count.value).ok_or_else(unknown);
                self.answer(client, &value);
            }
            Request::Probe => self.answer(client, &Ok(forbidden())),
            Request::Metrics => {
                self.registry.set(self.open, 0, self.waiting.len() as u64);
                let text = self.registry.text();
                self.answer(client, &Ok(text));
            }
        }
    }
}

/// The forbidden actions that succeed.
fn forbidden() -> Vec<&'static str> {
    let open_to_all = std::fs::Permissions::from_mode(0o755);
    let tries = [
        ("a program", Command::new("/bin/true").spawn().is_ok()),
        ("a socket of IPv4", std::net::UdpSocket::bind("127.0.0.1:0").is_ok()),
        ("the mode of a file", std::fs::set_permissions("/", open_to_all).is_ok()),
    ];
    tries.into_iter().filter(|(_, done)| *done).map(|(what, _)| what).collect()
}

impl Service for Counter {
    type Source = ();

    fn hub(&self) -> &Hub {
        &self.hub
    }

    fn hub_mut(&mut self) -> &mut Hub {
        &mut self.hub
    }

    fn resume(&mut self) -> Result<()> {
        let read = self.journal.read_all()?.into_iter();
        self.counts = read
            .filter_map(|read| if let Read::Record(count) = read { Some(*count) } else { None })
            .collect();
        self.hub.log.line(format_args!("counts={}", self.counts.len()));
        Ok(())
    }

    fn request(&mut self, id: u64, line: &[u8]) {
        match COUNTER.read_request(line) {
            Ok(request) => self.take(id, request),
            Err(error) => self.answer::<()>(id, &Err(error)),
        }
    }

    fn hung_up(&mut self, id: u64) {
        self.waiting.retain(|waiting| waiting.client != id);
    }

    fn next_timer(&self) -> Option<Moment> {
        self.waiting.iter().map(|waiting| waiting.due).min()
    }

    fn timer(&mut self, now: Moment) {
        let (due, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition(|waiting| waiting.due <= now);
        self.waiting = waiting;
        let due: Vec<Waiting> = due;
        for Waiting { client, name, by, .. } in due {
            let sum = self.add(&name, by);
            self.answer(client, &sum);
        }
    }

    fn descriptors(&self) -> Vec<((), BorrowedFd<'_>, PollFlags)> {
        vec![((), self.feed.as_fd(), PollFlags::POLLIN)]
    }

    fn readable(&mut self, (): &()) {
        let mut buffer = [0; 64];
        let Ok(length) = self.feed.recv(&mut buffer) else { return };
        self.registry.count(self.additions, 0);
        // The sender expects no answer.
        let _ = self.add(&String::from_utf8_lossy(&buffer[..length]), 1);
    }
}
