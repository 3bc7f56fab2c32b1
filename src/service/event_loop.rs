//! The event loop: one thread, one poll(2).

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::Identity;
use super::confinement::{self, Confinement};
use super::connection::{Connections, Heard, is_for_later};
use super::journal::{Journal, Record};
use super::listener::Listener;
use super::log::Log;
use crate::error::{Code, Error, Result};
use crate::sys::clock::{Alarm, Moment, since_boot};

/// The back-off after accept(2) failed for lack of descriptors or memory.
const BREATHER: Duration = Duration::from_secs(1);

/// The state shared by the event loop and the service.
pub struct Hub {
    /// The log.
    pub log: Log,
    /// The client connections: a request is answered here, at once or later.
    pub connections: Connections,
}

/// A daemon, as the event loop sees it.
pub trait Service {
    /// The owner of one of the service's own descriptors.
    type Source: Clone;

    /// The state shared with the event loop.
    fn hub(&self) -> &Hub;
    /// The state shared with the event loop.
    fn hub_mut(&mut self) -> &mut Hub;

    /// Resumes from the journal, before anything else.
    fn resume(&mut self) -> Result<()>;

    /// Handles a request: a line without its newline, from the connection with this id. Every
    /// request must eventually be answered with [`Connections::answer`].
    fn request(&mut self, id: u64, line: &[u8]);

    /// Handles the hangup of a connection whose request is not answered yet.
    fn hung_up(&mut self, id: u64);

    /// The time of the next [`Service::timer`] call.
    fn next_timer(&self) -> Option<Moment>;

    /// Handles everything due by now. Called after every event too, so it may also do what the
    /// event has made possible.
    fn timer(&mut self, now: Moment);

    /// The service's own descriptors, and the events that each waits for.
    fn descriptors(&self) -> Vec<(Self::Source, BorrowedFd<'_>, PollFlags)>;

    /// Handles a ready descriptor of the service.
    fn readable(&mut self, source: &Self::Source);
}

/// The paths of a daemon.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The absolute path of its socket.
    pub socket: &'a Path,
    /// The directory of its journal; None if it is beside the socket.
    pub journal: Option<&'a Path>,
    /// The path of its PID file; empty for none.
    pub pidfile: &'a Path,
}

/// The event loop's own descriptors.
pub struct EventLoop {
    listener: Listener,
    signals: SignalFd,
    alarm: Alarm,
    /// Until when no connection is accepted after a failure.
    breathing: Option<Moment>,
}

/// A ready descriptor.
#[derive(Clone)]
enum Ready<S> {
    Signal,
    Connection(u64, PollFlags),
    Listener,
    Source(S),
    Alarm,
}

/// Starts a daemon: opens its journal and its socket, and drops the privileges that it does not
/// need. Requests from here on wait for [`EventLoop::serve`].
pub fn start<R: Record>(
    identity: &'static Identity,
    confinement: &Confinement,
    place: Place<'_>,
    variable: impl Fn(&str) -> String,
) -> Result<(EventLoop, Hub, Journal<R>)> {
    // SIGTERM and SIGINT are blocked in every thread from here on: the current work completes before
    // the shutdown.
    let shutdown = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let blocked = shutdown.thread_block();
    let signals = blocked
        .and_then(|()| SignalFd::with_flags(&shutdown, flags))
        .map_err(|e| Error::kernel(format_args!("start the {}", identity.name), e))?;
    let log = Log::new(&variable);
    confinement.require_capabilities(identity, &log)?;
    confinement::set_limits();
    if !place.socket.is_absolute() {
        let msg = format!("listen at {:?}: path not absolute", place.socket);
        return Err(Error::new(Code::INVALID_ENVIRONMENT, msg));
    }
    let beside = identity.journal_beside(place.socket);
    let mut journal = Journal::open(identity, place.journal.unwrap_or(&beside))?;
    let mut listener = Listener::open(identity, place.socket, &variable)?;
    journal.started();
    listener.write_pid(place.pidfile)?;
    let alarm = Alarm::new()?;
    confinement.give_up_the_rest(&log)?;
    let hub = Hub { log, connections: Connections::default() };
    Ok((EventLoop { listener, signals, alarm, breathing: None }, hub, journal))
}

impl EventLoop {
    /// Serves until SIGTERM or SIGINT. The socket is removed before the service and its journal,
    /// whose lock is released last: the next holder finds no socket and no file of this daemon.
    pub fn serve<S: Service>(mut self, service: &mut S) -> Result<()> {
        service.resume()?;
        loop {
            let next = [service.next_timer(), service.hub().connections.next(), self.breathing];
            self.alarm.set(next.into_iter().flatten().min())?;
            for ready in self.wait(service)? {
                match ready {
                    Ready::Signal => return Ok(()),
                    Ready::Connection(id, flags) => {
                        match service.hub_mut().connections.serve(id, flags) {
                            Heard::Line(line) => service.request(id, &line),
                            Heard::End => service.hung_up(id),
                            Heard::Nothing => (),
                        }
                    }
                    Ready::Listener => self.accept(service.hub_mut()),
                    Ready::Source(source) => service.readable(&source),
                    Ready::Alarm => (), // only wakes the loop
                }
            }
            let now = since_boot();
            self.breathing = self.breathing.filter(|until| now < *until);
            service.hub_mut().connections.expire(now);
            service.timer(now);
        }
    }

    /// Waits until a descriptor is ready or a timer is due. Hangups are handled before sources:
    /// something granted at the same moment would have no recipient.
    fn wait<S: Service>(&self, service: &S) -> Result<Vec<Ready<S::Source>>> {
        let connections = &service.hub().connections;
        let mut watched = vec![(Ready::Signal, self.signals.as_fd(), PollFlags::POLLIN)];
        for (id, fd, flags) in connections.descriptors() {
            watched.push((Ready::Connection(id, flags), fd, flags));
        }
        if self.breathing.is_none() && connections.has_room() {
            watched.push((Ready::Listener, self.listener.socket.as_fd(), PollFlags::POLLIN));
        }
        for (source, fd, flags) in service.descriptors() {
            watched.push((Ready::Source(source), fd, flags));
        }
        watched.push((Ready::Alarm, self.alarm.as_fd(), PollFlags::POLLIN));
        let mut fds: Vec<PollFd<'_>> =
            watched.iter().map(|(_, fd, flags)| PollFd::new(*fd, *flags)).collect();
        while let Err(errno) = poll(&mut fds, PollTimeout::NONE) {
            if errno != Errno::EINTR {
                return Err(Error::kernel("wait for something to do", errno));
            }
        }
        let mut all = vec![];
        for ((ready, ..), fd) in watched.iter().zip(&fds) {
            let found = fd.revents().unwrap_or(PollFlags::empty());
            if !found.is_empty() {
                all.push(match ready {
                    Ready::Connection(id, _) => Ready::Connection(*id, found),
                    ready => ready.clone(),
                });
            }
        }
        Ok(all)
    }

    fn accept(&mut self, hub: &mut Hub) {
        match self.listener.socket.accept() {
            Ok((stream, _)) => {
                let _ = hub.connections.add(stream, since_boot()); // closed if it cannot be served
            }
            Err(e) if is_for_later(&e) => (),
            Err(e) => {
                // The socket stays ready after an error, so accept would be retried in a busy loop.
                let pause = BREATHER.as_secs();
                hub.log.line(format_args!("accept a connection: {e}; again in {pause} s"));
                self.breathing = Some(since_boot() + BREATHER);
            }
        }
    }
}
