//! A cni-multi in the plugin directory, asked for the names of its plugins.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use super::layout::BINARY;
use crate::error::{Code, Error, Result};

/// The names that the binary lists; errors call it `what`. A name that could leave the directory or
/// hide in it is rejected.
pub fn list_names(binary: &str, what: &str) -> Result<Vec<String>> {
    let does_not_run = format!("{what} does not run here");
    let mut list = Command::new(["./", binary].concat());
    list.arg0(BINARY).arg("list").stderr(Stdio::inherit());
    let listed = list.stdin(Stdio::inherit()).output(); // /dev/null may be missing
    let listed = listed.map_err(|error| Error::io(&does_not_run, &error))?;
    if !listed.status.success() {
        let details = format!("`cni-multi list` failed: {}", listed.status);
        return Err(Error::new(Code::IO, does_not_run).with_details(details));
    }
    let printed = String::from_utf8_lossy(&listed.stdout);
    let names: Vec<String> = printed.lines().map(str::to_owned).collect();
    let unexpected = match names.iter().find(|name| !is_plugin_name(name)) {
        Some(name) => format!("{name:?}"),
        None if names.is_empty() => "nothing".to_owned(),
        None => return Ok(names),
    };
    let problem = format!("{what} is not cni-multi: `cni-multi list` printed {unexpected}");
    Err(Error::new(Code::IO, problem))
}

/// Whether the name could be a plugin's: it neither leaves the directory nor hides in it.
pub fn is_plugin_name(name: &str) -> bool {
    let is_letter = |letter| matches!(letter, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let is_word = !name.is_empty() && !name.starts_with('-');
    is_word && name != BINARY && name.bytes().all(is_letter)
}
