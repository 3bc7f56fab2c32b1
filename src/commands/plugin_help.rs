//! `PLUGIN --help`: the keys of a plugin's object, from the schema that `cni-multi schema` prints.

use super::man::type_of;
use super::schema;
use super::validate::below;
use crate::cni::json::Value;
use crate::plugin::Entry;
use crate::terminal::table;

/// The words that ask for help.
pub const WORDS: [&str; 3] = ["--help", "-h", "help"];

/// The keys that every plugin has.
const COMMON: [&str; 5] = ["type", "name", "cniVersion", "prevResult", "capabilities"];

const COLUMNS: [(&str, &str); 4] =
    [("KEY", "key"), ("TYPE", "type"), ("DEFAULT", "default"), ("MEANING", "meaning")];

/// The help of a plugin.
pub fn text(entry: &Entry) -> String {
    let mut rows = vec![];
    add_keys("", &schema::document(Some(entry)), &mut rows);
    let keys = match rows.as_slice() {
        [] => "It has no keys of its own.\n".to_owned(),
        _ => table::of_rows(rows, &COLUMNS, false),
    };
    format!(
        "{name}: {about}\n\n{keys}\nA container runtime runs it. `cni-multi example {name}` prints a network with it.\n",
        name = entry.name,
        about = entry.about,
    )
}

/// Adds a row for each key of an object, or of the objects in a list; those that every plugin has
/// are left out.
fn add_keys(path: &str, schema: &Value, rows: &mut Vec<Value>) {
    if let Some(items) = schema.get("items") {
        return add_keys(&[path, "[]"].concat(), items, rows);
    }
    let Some(Value::Object(keys)) = schema.get("properties") else { return };
    let is_own = |key: &str| !path.is_empty() || !COMMON.contains(&key);
    for (key, value) in keys.iter().filter(|(key, _)| is_own(key)) {
        let path = below(path, key);
        let member = |key| value.get(key).cloned().unwrap_or(Value::text(""));
        rows.push(Value::object([
            ("key", Value::text(path.as_str())),
            ("type", Value::text(type_of(value))),
            ("default", member("default")),
            ("meaning", member("description")),
        ]));
        add_keys(&path, value, rows);
    }
}
