//! Progress of a long operation, for users at a terminal.

use std::cell::Cell;
use std::io::{self, IsTerminal as _, Write};
use std::time::{Duration, Instant};

use super::print;
use crate::error::Result;

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
    /// Starts the clock; shows nothing yet.
    fn default() -> Progress {
        let is_terminal = io::stderr().is_terminal();
        Progress { begun: Instant::now(), told: Cell::new(None), is_terminal }
    }
}

impl Progress {
    /// Shows the text, unless the last update is too recent.
    pub fn tell(&self, text: &str) {
        let is_time = match self.told.get() {
            Some(told) => told.elapsed() > PAUSE,
            None => self.begun.elapsed() > PATIENCE,
        };
        if self.is_terminal && is_time {
            self.told.set(Some(Instant::now()));
            overwrite(text);
        }
    }

    /// As [`Progress::tell`], with how many of all are done.
    pub fn count(&self, done: usize, all: usize) {
        self.tell(&format!("{done}/{all}"));
    }

    /// Clears the line for other output.
    pub fn clear(&self) {
        if self.told.get().is_some() {
            overwrite("");
        }
    }

    /// Writes the last line, if any line was shown.
    pub fn finish(&self, what: &str) {
        if self.told.get().is_some() {
            overwrite(&format!("{what} in {} s\n", self.begun.elapsed().as_secs()));
        }
    }
}

/// Text on stdout while an operation shows its progress. A closed stdout does not stop the work.
pub struct Output<'a> {
    stdout: &'a mut dyn Write,
    /// The progress of the operation.
    pub progress: Progress,
    written: Result<()>,
}

impl Output<'_> {
    /// Begins the operation.
    pub fn new(stdout: &mut dyn Write) -> Output<'_> {
        Output { stdout, progress: Progress::default(), written: Ok(()) }
    }

    /// Prints the text, unless an earlier one could not be written.
    pub fn print(&mut self, text: &str) {
        self.progress.clear();
        if self.written.is_ok() {
            self.written = print(self.stdout, text);
        }
    }

    /// Ends the operation; fails if a text could not be written.
    pub fn finish(self) -> Result<()> {
        self.progress.finish("done");
        self.written
    }
}

/// Overwrites the line: returns to its start and deletes the rest.
fn overwrite(text: &str) {
    let _ = io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes()); // progress output is best effort
}
