//! Progress of a long operation, for users at a terminal.

use std::cell::Cell;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// The delay before the first output: shorter operations need none.
const PATIENCE: Duration = Duration::from_millis(500);
/// The interval between updates, no faster than a user can read.
const PAUSE: Duration = Duration::from_millis(100);

/// A line on stderr that is overwritten repeatedly. It writes to the process's own stderr, because
/// the running operation holds the other handle.
pub struct Progress {
    begun: Instant,
    /// The time of the last write.
    told: Cell<Option<Instant>>,
    is_terminal: bool,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress::new()
    }
}

impl Progress {
    /// Starts the clock; shows nothing yet.
    pub fn new() -> Progress {
        let is_terminal = io::stderr().is_terminal();
        Progress { begun: Instant::now(), told: Cell::new(None), is_terminal }
    }

    /// Shows the text, unless the last update is too recent.
    pub fn tell(&self, text: &str) {
        if self.is_terminal && self.is_time() {
            self.told.set(Some(Instant::now()));
            write(text);
        }
    }

    fn is_time(&self) -> bool {
        match self.told.get() {
            Some(told) => told.elapsed() > PAUSE,
            None => self.begun.elapsed() > PATIENCE,
        }
    }

    /// As [`Progress::tell`], with how many of all are done.
    pub fn count(&self, done: usize, all: usize) {
        self.tell(&format!("{done}/{all}"));
    }

    /// Clears the line for other output.
    pub fn clear(&self) {
        if self.told.get().is_some() {
            write("");
        }
    }

    /// Writes the last line, if any line was shown.
    pub fn finish(&self, what: &str) {
        if self.told.get().is_some() {
            write(&format!("{what} in {} s\n", self.begun.elapsed().as_secs()));
        }
    }
}

/// Overwrites the line: returns to its start and deletes the rest.
fn write(text: &str) {
    let _ = io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes()); // progress output is best effort
}
