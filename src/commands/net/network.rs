//! The network named on the command line.

use std::path::Path;

use super::operator::Operator;
use crate::cni::attachment::NetworkName;
use crate::error::Result;
use crate::runtime::directory;
use crate::runtime::list::NetworkList;

/// The network named by the first argument.
pub fn of(operator: &Operator<'_>) -> Result<NetworkList> {
    let name = NetworkName::parse(operator.argument("network"))?;
    find(&operator.conf_dir(), name.as_str())
}

/// The network of this name; the error for an unknown name lists the networks that exist. If a file
/// cannot be read, the error reports that instead, because the file may hold the network.
pub fn find(dir: &Path, name: &str) -> Result<NetworkList> {
    directory::find(dir, name).map_err(|error| match names(dir) {
        (names, true) if !names.is_empty() => {
            let names: Vec<&str> = names.iter().map(NetworkName::as_str).collect();
            error.with_details(format_args!("available networks: {}", names.join(", ")))
        }
        _ => error,
    })
}

/// The name of every network, without duplicates, and whether every file could be read.
pub fn names(dir: &Path) -> (Vec<NetworkName>, bool) {
    let mut names = vec![];
    let mut is_all = true;
    for file in directory::files(dir).unwrap_or_default() {
        match directory::load(&file).and_then(|list| NetworkName::parse(&list.name)) {
            Ok(name) if names.contains(&name) => (),
            Ok(name) => names.push(name),
            Err(_) => is_all = false,
        }
    }
    (names, is_all)
}
