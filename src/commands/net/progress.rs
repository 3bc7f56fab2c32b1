//! How far a long work is, for who waits at a terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// What takes less is over before anybody wonders.
const PATIENCE: Duration = Duration::from_millis(500);
/// As often as anybody can read.
const PAUSE: Duration = Duration::from_millis(100);

/// One line on stderr that is written again and again. It goes to the process's own stderr, whose
/// other writer a work in progress has.
pub struct Progress {
    begun: Instant,
    /// When the line was written last.
    told: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    /// Begins now, with nothing to be seen.
    pub fn new() -> Progress {
        Progress { begun: Instant::now(), told: None, is_terminal: io::stderr().is_terminal() }
    }

    /// Shows the text, if it is time.
    pub fn tell(&mut self, text: &str) {
        let is_time =
            self.told.map_or(self.begun.elapsed() > PATIENCE, |told| told.elapsed() > PAUSE);
        if self.is_terminal && is_time {
            self.told = Some(Instant::now());
            write(text);
        }
    }

    /// Makes room for a line of somebody else.
    pub fn clear(&self) {
        if self.told.is_some() {
            write("");
        }
    }

    /// The last line, where there was one.
    pub fn finish(&self, what: &str) {
        if self.told.is_some() {
            write(&format!("{what} in {} s\n", self.begun.elapsed().as_secs()));
        }
    }
}

/// Over what is on the line: to its begin, and the rest deleted.
fn write(text: &str) {
    let _ = io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes()); // who does not read it misses nothing
}
