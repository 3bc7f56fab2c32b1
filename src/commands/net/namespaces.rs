//! Advice for an `add` to a namespace that does not exist.

use std::path::Path;

use crate::error::{Code, Error};
use crate::net::private::NETNS_DIR;
use crate::runtime::directory;
use crate::runtime::find;
use crate::runtime::living::is_gone;

/// The error of an ADD. If the reason is a namespace that does not exist, the details list those
/// that do, and say how to make it.
pub fn with_those_there(error: Error, netns: &str) -> Error {
    if error.code != Code::INVALID_ENVIRONMENT || !is_gone(netns) {
        return error;
    }
    let there = format!("namespaces in {NETNS_DIR}: {}", find::listed(&names()));
    let error = error.with_details(there);
    match find::netns_name(netns) {
        Some(name) => error.with_details(way_out(name)),
        None => error,
    }
}

/// The command that makes the namespace, or the path for the number of a process.
fn way_out(name: &str) -> String {
    let of_process = format!("/proc/{name}/ns/net");
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    if is_number && Path::new(&of_process).exists() {
        format!("the namespace of process {name} is {of_process}")
    } else {
        format!("`ip netns add {name}` makes it")
    }
}

/// The names that `ip netns` lists; none if they cannot be read.
fn names() -> Vec<String> {
    let names = directory::file_names(NETNS_DIR.as_ref()).unwrap_or_default();
    names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect()
}
