//! The terminal: streams, columns, and escaping of untrusted text.

use std::fmt::Display;
use std::io::{self, Read, Write};

use self::visible::visible;
use crate::error::{Error, Result};

pub mod arguments;
pub mod manual;
pub mod nearest;
pub mod progress;
pub mod style;
pub mod table;
pub mod visible;

/// The three streams of a process.
pub struct Streams<'a> {
    /// The input; a plugin's configuration.
    pub stdin: &'a mut dyn Read,
    /// The output; of a plugin one JSON document.
    pub stdout: &'a mut dyn Write,
    /// Messages for people.
    pub stderr: &'a mut dyn Write,
}

impl Streams<'_> {
    /// Prints advice on the command line: requested help to stdout, a mistake to stderr.
    pub fn print_advice(&mut self, advice: &dyn Display, is_mistake: bool) {
        let to: &mut dyn Write = if is_mistake { self.stderr } else { self.stdout };
        let _ = write!(to, "{advice}"); // unread help is not an error
    }

    /// Prints the output of a command that can fail in no other way; returns the exit status.
    pub fn print(&mut self, text: &str) -> u8 {
        u8::from(write(self.stdout, text).is_err())
    }

    /// Reports an error on a line of stderr.
    pub fn complain(&mut self, error: &Error) {
        let _ = writeln!(self.stderr, "{}", visible(&error.to_string())); // the exit status says it too
    }

    /// Reports an error on stderr, with its details on a second line.
    pub fn complain_in_two_lines(&mut self, error: &Error) {
        let _ = self.stderr.write_all(in_two_lines(error).as_bytes()); // the exit status says it too
    }
}

/// The message of an error, and its details on a second line.
pub fn in_two_lines(error: &Error) -> String {
    let details = error.details();
    let end = if details.is_empty() { "" } else { "\n" };
    format!("{}\n{}{end}", visible(&error.msg), visible(&details))
}

/// Writes a whole text.
pub fn write(out: &mut dyn Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// As [`write`], to stdout.
pub fn print(stdout: &mut dyn Write, text: &str) -> Result<()> {
    write(stdout, text).map_err(|e| Error::io("write to stdout", &e))
}
