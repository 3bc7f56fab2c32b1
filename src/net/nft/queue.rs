//! The queue of transactions: processes of ours that change one ruleset take turns.
//!
//! The kernel refuses a transaction that was planned before another one was committed. Of twenty
//! plugins that plan at once, one commits and the others plan again. So a plugin locks a file
//! before it plans, and unlocks it when it has committed.
//!
//! The lock only saves work. Programs that do not take it (nft, firewalld) may commit at any time,
//! and [`super::Nft::again`] then plans again. So no function here returns an error: a plugin that
//! cannot open the file, or has waited for a second, commits without the lock.

use std::cell::Cell;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use crate::file_lock::{self, Lock, Mode, Range};
use crate::plain_file;

/// The lock file, which has a byte for each namespace.
const LOCK: &str = "/run/cni/nftables/lock";
/// How long to wait for a turn. A turn takes a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// The place of one socket in the queue of its namespace.
#[derive(Debug)]
pub struct Queue {
    /// The byte of the namespace; None if the socket does not queue.
    byte: Cell<Option<Range>>,
    has_turn: Cell<bool>,
}

/// A turn, which ends when this value is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    queue: &'a Queue,
    /// The file that has the lock.
    _locked: Option<File>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.queue.has_turn.set(false);
    }
}

impl Queue {
    /// The queue of the namespace with this cookie. Before Linux 5.14 namespaces have none, and
    /// share one queue.
    pub fn of(netns_cookie: Option<u64>) -> Queue {
        let byte = Cell::new(Some(Range::byte(netns_cookie.unwrap_or_default())));
        Queue { byte, has_turn: Cell::new(false) }
    }

    /// For a socket that does not queue.
    pub fn none() -> Queue {
        Queue { byte: Cell::new(None), has_turn: Cell::new(false) }
    }

    /// Waits for a turn, unless the socket has it already.
    pub fn turn(&self) -> Option<Turn<'_>> {
        let byte = self.byte.get().filter(|_| !self.has_turn.get())?;
        let lock = || {
            let file = plain_file::open_or_create_private(Path::new(LOCK))?;
            file_lock::take_within(file, Lock::Bytes(byte, Mode::Exclusive), PATIENCE)
        };
        let locked = lock().ok().flatten();
        if locked.is_none() {
            self.byte.set(None); // this socket does not wait for a stopped process again
        }
        self.has_turn.set(true);
        Some(Turn { queue: self, _locked: locked })
    }
}
