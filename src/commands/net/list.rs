//! `net list`: the networks of a directory and their files, in the order in which a network is
//! searched.

use std::path::Path;

use crate::cni::json::Value;
use crate::error::Result;
use crate::runtime::directory;
use crate::terminal::table::{self, Members, PROBLEM, put, put_text};

/// The columns for people.
const COLUMNS: [(&str, &str); 4] =
    [("NETWORK", "network"), ("VERSION", "cniVersion"), ("PLUGINS", "plugins"), ("FILE", "file")];

/// What is printed.
pub fn show(dir: &Path, as_json: bool) -> Result<String> {
    Ok(table::of_rows(rows(dir)?, &COLUMNS, as_json))
}

/// A search by name takes the first file with that name, and ends at the first that cannot be read.
fn rows(dir: &Path) -> Result<Vec<Value>> {
    let mut rows: Vec<Value> = vec![];
    let mut end = String::new();
    for path in directory::files(dir)? {
        let file = path.to_string_lossy().into_owned();
        let (mut row, mut problem) = (Members::new(), String::new());
        match directory::load(&path) {
            Err(error) => {
                problem.push_str(&error.msg);
                if end.is_empty() {
                    end.push_str(&file);
                }
            }
            Ok(network) => {
                let text = |row: &Value, key| {
                    row.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
                };
                if let Some(first) = rows.iter().find(|row| text(row, "network") == network.name) {
                    problem = format!("shadowed by {}", text(first, "file"));
                } else if !end.is_empty() {
                    problem = format!("not found, since {end} cannot be read");
                }
                put_text(&mut row, "network", &network.name);
                put_text(&mut row, "cniVersion", &network.version);
                put(
                    &mut row,
                    "plugins",
                    table::texts(network.plugins.into_iter().map(|plugin| plugin.kind).collect()),
                );
            }
        }
        put_text(&mut row, "file", &file);
        put_text(&mut row, PROBLEM, &problem);
        rows.push(Value::Object(row));
    }
    Ok(rows)
}
