//! The networks of a directory: the one named on the command line, and `net list`.

use std::path::Path;

use serde::Serialize;

use super::operator::Operator;
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::error::Result;
use crate::runtime::directory;
use crate::runtime::list::NetworkList;
use crate::terminal::table;

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

/// The columns of `net list`.
const COLUMNS: [(&str, &str); 4] =
    [("NETWORK", "network"), ("VERSION", "cniVersion"), ("PLUGINS", "plugins"), ("FILE", "file")];

/// One file.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    #[serde(skip_serializing_if = "String::is_empty")]
    network: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    cni_version: String,
    /// None if the file cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    plugins: Option<Vec<String>>,
    file: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    problem: String,
}

/// `net list`: the networks and their files, in the search order for a network.
pub fn list(dir: &Path, as_json: bool) -> Result<String> {
    let mut rows: Vec<Row> = vec![];
    for path in directory::files(dir)? {
        let mut row = Row { file: path.to_string_lossy().into_owned(), ..Row::default() };
        match directory::load(&path) {
            Err(error) => row.problem = error.msg.clone(),
            Ok(network) => {
                row.problem = problem(&network.name, &rows);
                row.network = network.name;
                row.cni_version = network.version;
                row.plugins = Some(network.plugins.into_iter().map(|plugin| plugin.kind).collect());
            }
        }
        rows.push(row);
    }
    Ok(table::of_rows(rows.iter().map(Value::of).collect(), &COLUMNS, as_json))
}

/// Why a search does not find the network behind these files; empty if it does. A search by name
/// takes the first file with that name, and stops at the first file that cannot be read.
fn problem(network: &str, before: &[Row]) -> String {
    if let Some(first) = before.iter().find(|row| row.network == network) {
        return format!("shadowed by {}", first.file);
    }
    match before.iter().find(|row| row.plugins.is_none()) {
        Some(unreadable) => format!("not found, since {} cannot be read", unreadable.file),
        None => String::new(),
    }
}
