//! `net list`: the networks of a directory and their files, in the order in which a network is searched.

use std::path::{Path, PathBuf};

use super::table::{self, Table};
use crate::cni::json::Value;
use crate::error::Result;
use crate::runtime::list::{self, NetworkList};

/// A file, what it has, and what keeps a runtime from using it.
struct Row {
    file: PathBuf,
    network: Option<NetworkList>,
    /// Empty for a network that its name leads to.
    problem: String,
}

/// What is printed.
pub fn show(dir: &Path, as_json: bool) -> Result<String> {
    let rows = rows(list::files(dir)?);
    Ok(if as_json { table::json(&Value::Array(rows.iter().map(Row::to_value).collect())) } else { to_table(&rows) })
}

/// A search by name takes the first file with that name, and ends at the first that cannot be read.
fn rows(files: Vec<PathBuf>) -> Vec<Row> {
    let mut rows: Vec<Row> = vec![];
    let mut end: Option<PathBuf> = None;
    for file in files {
        let row = match list::load(&file) {
            Err(error) => {
                end.get_or_insert_with(|| file.clone());
                Row { file, network: None, problem: error.msg.clone() }
            }
            Ok(network) => {
                let is_same = |row: &&Row| row.network.as_ref().is_some_and(|other| other.name == network.name);
                let first = rows.iter().find(is_same).map(|row| row.file.display());
                let problem = match (first, &end) {
                    (Some(first), _) => format!("shadowed by {first}"),
                    (None, Some(end)) => format!("not found, since {} cannot be read", end.display()),
                    (None, None) => String::new(),
                };
                Row { file, network: Some(network), problem }
            }
        };
        rows.push(row);
    }
    rows
}

fn to_table(rows: &[Row]) -> String {
    let mut table = Table::new(&["NETWORK", "VERSION", "PLUGINS", "FILE"]);
    for row in rows {
        let (name, version) = row.network.as_ref().map_or(("", ""), |list| (&list.name, &list.version));
        table.row(&[name, version, &row.plugins().join(","), &row.file.to_string_lossy()], &row.problem);
    }
    table.to_text()
}

impl Row {
    fn plugins(&self) -> Vec<String> {
        self.network.iter().flat_map(|list| &list.plugins).map(|plugin| plugin.kind.clone()).collect()
    }

    fn to_value(&self) -> Value {
        let (name, version) = self.network.as_ref().map_or(("", ""), |list| (&list.name, &list.version));
        table::object([
            ("network", table::text(name)),
            ("cniVersion", table::text(version)),
            ("plugins", self.network.as_ref().map_or(Value::Null, |_| table::texts(&self.plugins()))),
            ("file", table::text(&self.file.to_string_lossy())),
            ("problem", table::text(&self.problem)),
        ])
    }
}
