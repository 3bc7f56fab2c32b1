//! The network that the operator names.

use std::path::Path;

use crate::cni::attachment::NetworkName;
use crate::error::Result;
use crate::runtime::list::{self, NetworkList};

/// The network of this name; who has mistyped it is told which there are.
pub fn find(dir: &Path, name: &str) -> Result<NetworkList> {
    list::find(dir, name).map_err(|error| {
        let all = list::files(dir).unwrap_or_default().iter().map(|file| list::load(file)).collect::<Result<Vec<_>>>();
        match all {
            Ok(all) if !all.is_empty() => {
                let mut names: Vec<String> = all.into_iter().map(|list| list.name).collect();
                names.sort();
                names.dedup();
                error.with_details(format_args!("there is: {}", names.join(", ")))
            }
            // A file that cannot be read is what the error is about, and may be the very network.
            _ => error,
        }
    })
}

/// The names of the networks that can be read.
pub fn names(dir: &Path) -> Vec<NetworkName> {
    let files = list::files(dir).unwrap_or_default();
    files.iter().filter_map(|file| NetworkName::parse(&list::load(file).ok()?.name).ok()).collect()
}
