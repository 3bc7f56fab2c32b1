//! `net list`: the networks of a directory and their files, in the search order for a network.

use std::path::Path;

use serde::Serialize;

use crate::cni::json::Value;
use crate::error::Result;
use crate::runtime::directory;
use crate::runtime::list::NetworkList;
use crate::terminal::table;

/// The columns of the table.
const COLUMNS: [(&str, &str); 4] =
    [("NETWORK", "network"), ("VERSION", "cniVersion"), ("PLUGINS", "plugins"), ("FILE", "file")];

/// One file.
#[derive(Serialize)]
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

/// The output of the command.
pub fn show(dir: &Path, as_json: bool) -> Result<String> {
    let rows = rows(dir)?.iter().map(Value::of).collect();
    Ok(table::of_rows(rows, &COLUMNS, as_json))
}

/// One row per file. A search by name takes the first file with that name, and stops at the first
/// file that cannot be read.
fn rows(dir: &Path) -> Result<Vec<Row>> {
    let mut rows = vec![];
    for path in directory::files(dir)? {
        let row = Row::of(&path, &rows);
        rows.push(row);
    }
    Ok(rows)
}

impl Row {
    /// The row of a file after the files of `before`.
    fn of(path: &Path, before: &[Row]) -> Row {
        let file = path.to_string_lossy().into_owned();
        match directory::load(path) {
            Err(error) => Row::unreadable(file, error.msg.clone()),
            Ok(network) => {
                Row { problem: problem(&network.name, before), ..Row::read(file, network) }
            }
        }
    }

    fn read(file: String, network: NetworkList) -> Row {
        Row {
            network: network.name,
            cni_version: network.version,
            plugins: Some(network.plugins.into_iter().map(|plugin| plugin.kind).collect()),
            file,
            problem: String::new(),
        }
    }

    fn unreadable(file: String, problem: String) -> Row {
        Row { network: String::new(), cni_version: String::new(), plugins: None, file, problem }
    }
}

/// Why a search does not find the network behind these files; empty if it does.
fn problem(network: &str, before: &[Row]) -> String {
    if let Some(first) = before.iter().find(|row| row.network == network) {
        return format!("shadowed by {}", first.file);
    }
    match before.iter().find(|row| row.plugins.is_none()) {
        Some(unreadable) => format!("not found, since {} cannot be read", unreadable.file),
        None => String::new(),
    }
}
