//! A cni-multi in the plugin directory, asked for the names of its plugins.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};

use super::layout::BINARY;
use crate::error::{Code, Error, Result};

/// The names that the binary lists; errors call it `what`. A name that could leave the directory or
/// hide in it is rejected.
pub fn list_names(binary: &str, what: &str) -> Result<Vec<String>> {
    let names = printed_names(binary, what)?;
    match unexpected(&names) {
        Some(printed) => Err(is_another_program(what, &printed)),
        None => Ok(names),
    }
}

/// The first line that a cni-multi would not print.
fn unexpected(names: &[String]) -> Option<String> {
    if names.is_empty() {
        return Some("nothing".to_owned());
    }
    names.iter().find(|name| !is_plugin_name(name)).map(|name| format!("{name:?}"))
}

/// The lines that the binary prints.
fn printed_names(binary: &str, what: &str) -> Result<Vec<String>> {
    let does_not_run = format!("{what} does not run here");
    let listed = start_list(binary).map_err(|error| Error::io(&does_not_run, &error))?;
    if !listed.status.success() {
        let details = format!("`cni-multi list` failed: {}", listed.status);
        return Err(Error::new(Code::IO, does_not_run).with_details(details));
    }
    let printed = String::from_utf8_lossy(&listed.stdout);
    Ok(printed.lines().map(str::to_owned).collect())
}

fn start_list(binary: &str) -> io::Result<Output> {
    let mut list = Command::new(["./", binary].concat());
    list.arg0(BINARY).arg("list").stderr(Stdio::inherit());
    list.stdin(Stdio::inherit()).output() // /dev/null may be missing
}

fn is_another_program(what: &str, printed: &str) -> Error {
    let problem = format!("{what} is not cni-multi: `cni-multi list` printed {printed}");
    Error::new(Code::IO, problem)
}

/// Whether the name could be a plugin's: it neither leaves the directory nor hides in it.
pub fn is_plugin_name(name: &str) -> bool {
    let is_word = !name.is_empty() && !name.starts_with('-');
    is_word && name != BINARY && name.bytes().all(is_letter)
}

fn is_letter(letter: u8) -> bool {
    matches!(letter, b'a'..=b'z' | b'0'..=b'9' | b'-')
}
