//! The terminal: streams, columns, and texts of others that must not steer it.

use std::io::{Read, Write};

pub mod table;
pub mod visible;

/// The three streams of a process.
pub struct Streams<'a> {
    /// The configuration comes here.
    pub stdin: &'a mut dyn Read,
    /// One JSON document goes here.
    pub stdout: &'a mut dyn Write,
    /// Words for people go here.
    pub stderr: &'a mut dyn Write,
}
