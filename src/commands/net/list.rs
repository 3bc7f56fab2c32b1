//! `net list`: the networks of a directory and their files, in the search order for a network.

use std::path::Path;

use serde::Serialize;

use crate::cni::json::Value;
use crate::error::Result;
use crate::runtime::directory;
use crate::terminal::table;

/// The columns of the table.
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

/// The output of the command.
pub fn show(dir: &Path, as_json: bool) -> Result<String> {
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
