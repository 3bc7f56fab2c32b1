//! The network that the operator names.

use std::path::Path;

use super::operator::Operator;
use crate::cni::attachment::NetworkName;
use crate::error::Result;
use crate::runtime::directory;
use crate::runtime::list::NetworkList;

/// The network that the first argument names.
pub fn of(operator: &Operator<'_>) -> Result<NetworkList> {
    let name = NetworkName::parse(operator.argument("network"))?;
    find(&operator.conf_dir(), name.as_str())
}

/// The network of this name; who has mistyped it is told which there are. A file that cannot be
/// read is what the error is about, and may be the very network.
pub fn find(dir: &Path, name: &str) -> Result<NetworkList> {
    directory::find(dir, name).map_err(|error| {
        let (names, is_all) = names(dir);
        if names.is_empty() || !is_all {
            return error;
        }
        let names: Vec<&str> = names.iter().map(NetworkName::as_str).collect();
        error.with_details(format_args!("there is: {}", names.join(", ")))
    })
}

/// The names of the networks, each once, and whether every file could be read.
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
