//! A client that waits, for commands that ask a few questions and end.

use std::time::Duration;

use nix::poll::{PollFd, PollTimeout, poll};

use super::super::engine::{Operation, OperationId, Outcome};
use super::client::{Client, Event, Inspection, Store};
use crate::error::{Error, Result};
use crate::sys::clock::since_boot;
use crate::sys::random::Random;

/// The longest wait of one turn. The client has timers of its own.
const TURN: Duration = Duration::from_secs(1);

/// A client that waits for each outcome.
pub struct Blocking {
    client: Client,
    last: u64,
}

impl Blocking {
    /// A client of a store.
    pub fn new(store: Store) -> Blocking {
        Blocking { client: Client::new(store, Random::new()), last: 0 }
    }

    /// Executes an operation to its end.
    pub fn run(&mut self, operation: Operation) -> Result<Outcome> {
        self.last += 1;
        let id = OperationId(self.last);
        self.client.submit(id, operation, since_boot());
        loop {
            match self.next()? {
                Event::Outcome(of, outcome) if of == id => return Ok(outcome),
                _ => (), // of an earlier operation
            }
        }
    }

    /// Whether this is the etcd of a Kubernetes control plane.
    pub fn inspect(&mut self) -> Result<Inspection> {
        self.client.inspect(since_boot());
        loop {
            if let Event::Inspected(inspection) = self.next()? {
                return Ok(inspection);
            }
        }
    }

    fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.client.next_event() {
                return Ok(event);
            }
            turn(&mut self.client, TURN)?;
        }
    }
}

/// Waits until a descriptor of the client is ready or something is due, but no longer than this, and
/// handles it.
pub fn turn(client: &mut Client, longest: Duration) -> Result<()> {
    let timer = client.next_timer().map_or(longest, |at| at.saturating_sub(since_boot()));
    let wait = timer.min(longest) + Duration::from_millis(1);
    let watched = client.descriptors();
    let mut fds: Vec<_> = watched.iter().map(|(_, fd, flags)| PollFd::new(*fd, *flags)).collect();
    let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO);
    poll(&mut fds, wait).map_err(|errno| Error::kernel("poll", errno))?;
    let is_ready = fds.iter().map(|fd| fd.any().unwrap_or(true));
    let ready = watched.iter().zip(is_ready).filter(|(_, is_ready)| *is_ready);
    let ready: Vec<_> = ready.map(|((source, ..), _)| *source).collect();
    ready.into_iter().for_each(|source| client.ready(source, since_boot()));
    client.timer(since_boot());
    Ok(())
}
