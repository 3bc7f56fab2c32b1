//! The terminal: streams, columns, and escaping of untrusted text.

use std::io::{self, Read, Write};

pub mod table;
pub mod visible;

/// The three streams of a process.
pub struct Streams<'a> {
    /// The input: the configuration.
    pub stdin: &'a mut dyn Read,
    /// The output: one JSON document.
    pub stdout: &'a mut dyn Write,
    /// Messages for people.
    pub stderr: &'a mut dyn Write,
}

/// Writes a whole text.
pub fn write(out: &mut dyn Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}
