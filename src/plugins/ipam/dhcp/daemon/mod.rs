//! The daemon: keeps the leases of containers for as long as these live.
//!
//! One thread, one poll(2): whoever asks, the conversations with servers, signals, and one timer
//! for what is due next. While a lease is held there is nothing of it but data ([`table`]) and a
//! file ([`journal`]).

mod confinement;
mod connection;
mod exchange;
mod exchange_v4;
mod exchange_v6;
pub mod flags;
mod interface;
pub mod journal;
mod leases;
mod listener;
mod log;
mod metrics;
pub mod orphans;
mod release;
mod requests;
mod table;

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use self::connection::{Connections, Heard};
use self::flags::Flags;
use self::journal::Journal;
use self::listener::Listener;
use self::log::Log;
use self::metrics::Metrics;
use self::table::{Name, Table};
use crate::error::{Code, Error, Result};
use crate::net::clock::{Alarm, since_boot};
use crate::net::random::Random;
use crate::plugins::ipam::dhcp::client::Moment;

/// How long nobody is taken in after that failed, for want of descriptors or of memory.
const BREATHER: Duration = Duration::from_secs(1);

/// All that the daemon has.
pub struct Daemon {
    flags: Flags,
    log: Log,
    /// Before the journal, whose lock goes last: whoever gets it finds no socket and no file of
    /// ours.
    listener: Listener,
    journal: Journal,
    signals: SignalFd,
    alarm: Alarm,
    connections: Connections,
    table: Table,
    metrics: Metrics,
    random: Random,
    /// Until when nobody is taken in.
    breathing: Option<Moment>,
}

/// Who is ready.
enum Ready {
    Signal,
    Listener,
    Connection(u64, PollFlags),
    Lease(Name),
}

/// Runs the daemon until a signal ends it. The leases stay, for the next one.
pub fn run(flags: Flags, variable: impl Fn(&str) -> String) -> Result<()> {
    let mut daemon = Daemon::start(flags, variable)?;
    daemon.resume_all()?;
    daemon.serve()
}

/// Where the socket and the journal of a daemon with this prefix are.
fn places(flags: &Flags) -> (PathBuf, PathBuf) {
    let mut socket = std::ffi::OsString::from(&flags.hostprefix);
    socket.push(&flags.socketpath);
    let socket = PathBuf::from(socket);
    let journal = Journal::beside(&socket);
    (socket, journal)
}

impl Daemon {
    fn start(flags: Flags, variable: impl Fn(&str) -> String) -> Result<Daemon> {
        let starting = |e| Error::kernel("start the DHCP daemon", e);
        // Blocked in every thread from here on: what is on its way when the signal comes is
        // finished first.
        let ends = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
        ends.thread_block().map_err(starting)?;
        let signals = SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(starting)?;
        let log = Log::new(&variable);
        confinement::require_capabilities(&log)?;
        confinement::set_limits();
        let (socket, journal) = places(&flags);
        if !socket.is_absolute() {
            return Err(Error::new(
                Code::INVALID_ENVIRONMENT,
                format!("listen at {socket:?}: path not absolute"),
            ));
        }
        let mut journal = Journal::open(&journal)?;
        let mut listener = Listener::open(&socket, &variable)?;
        journal.started();
        listener.write_pid(&flags)?;
        let alarm = Alarm::new()?;
        confinement::give_up_the_rest(&log)?;
        Ok(Daemon {
            flags,
            log,
            listener,
            journal,
            signals,
            alarm,
            connections: Connections::default(),
            table: Table::default(),
            metrics: Metrics::default(),
            random: Random::new(),
            breathing: None,
        })
    }

    fn serve(&mut self) -> Result<()> {
        loop {
            let next = [self.table.next(), self.connections.next(), self.breathing];
            self.alarm.set(next.into_iter().flatten().min())?;
            // Who hangs up comes first: what is granted at the same moment is for nobody then.
            for ready in self.wait()? {
                match ready {
                    Ready::Signal => return Ok(()),
                    Ready::Connection(id, flags) => self.hear(id, flags),
                    Ready::Listener => self.accept(),
                    Ready::Lease(name) => self.receive(&name),
                }
            }
            let now = since_boot();
            self.breathing = self.breathing.filter(|until| now < *until);
            self.connections.expire(now);
            while let Some(name) = self.table.due(now) {
                self.on_time(&name, now);
            }
            self.next_turns();
        }
    }

    /// Waits until anything is ready or due.
    fn wait(&self) -> Result<Vec<Ready>> {
        let (mut fds, mut who): (Vec<PollFd<'_>>, VecDeque<Ready>) = (vec![], VecDeque::new());
        let mut watch = |fd, flags, ready| {
            fds.push(PollFd::new(fd, flags));
            who.push_back(ready);
        };
        watch(self.signals.as_fd(), PollFlags::POLLIN, Ready::Signal);
        for (id, fd, flags) in self.connections.descriptors() {
            watch(fd, flags, Ready::Connection(id, flags));
        }
        if self.breathing.is_none() && self.connections.has_room() {
            watch(self.listener.socket.as_fd(), PollFlags::POLLIN, Ready::Listener);
        }
        for (name, exchange) in self.table.talking() {
            for fd in exchange.descriptors() {
                watch(fd, PollFlags::POLLIN, Ready::Lease(name.clone()));
            }
        }
        fds.push(PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN)); // it only has to wake us
        loop {
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => (),
                Err(e) => return Err(Error::kernel("wait for something to do", e)),
                Ok(_) => break,
            }
        }
        let mut ready = vec![];
        for (fd, who) in fds.iter().zip(who) {
            let flags = fd.revents().unwrap_or(PollFlags::empty());
            match who {
                _ if flags.is_empty() => (),
                Ready::Connection(id, _) => ready.push(Ready::Connection(id, flags)),
                who => ready.push(who),
            }
        }
        Ok(ready)
    }

    fn accept(&mut self) {
        match self.listener.socket.accept() {
            Ok((stream, _)) => {
                let _ = self.connections.add(stream, since_boot()); // it hangs up where it cannot be served
            }
            Err(e)
                if matches!(
                    e.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
                ) => {}
            Err(e) => {
                // The socket stays ready, so that it would be tried again at once, and for ever.
                self.log.line(format_args!(
                    "take a connection: {e}; again in {} s",
                    BREATHER.as_secs()
                ));
                self.breathing = Some(since_boot() + BREATHER);
            }
        }
    }

    fn hear(&mut self, id: u64, flags: PollFlags) {
        match self.connections.serve(id, flags) {
            Heard::Line(line) => self.request(id, &line),
            Heard::End => self.hung_up(id),
            Heard::Nothing => (),
        }
    }
}
