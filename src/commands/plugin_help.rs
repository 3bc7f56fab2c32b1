//! `PLUGIN --help`: the keys of a plugin's object, from the schema that `cni-multi schema` prints; and
//! the word that was probably meant in a wrong command line.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::schema::{self, type_of};
use super::validate::below;
use crate::cni::json::Value;
use crate::plugin::Entry;
use crate::terminal::nearest::nearest;
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

/// Adds the nearest command, option or value to a mistake in `words`, which begin with the program. The
/// mistake then ends with a question for it.
pub fn suggest(mistake: &mut clap::Error, root: &Command, words: &[OsString]) {
    // The command that the words lead to.
    let command = words
        .iter()
        .skip(1)
        .fold(root, |command, word| command.find_subcommand(word).unwrap_or(command));
    let (wrong, suggested, candidates): (_, _, Vec<String>) = match mistake.kind() {
        ErrorKind::InvalidSubcommand => {
            let names = command.get_subcommands().map(|sub| sub.get_name().to_owned());
            (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand, names.collect())
        }
        ErrorKind::UnknownArgument => {
            let longs = command.get_arguments().filter_map(|arg| arg.get_long());
            // clap adds these two itself, and later.
            let version = command.get_version().map(|_| "version");
            let longs = longs.chain(["help"]).chain(version).map(|long| ["--", long].concat());
            (ContextKind::InvalidArg, ContextKind::SuggestedArg, longs.collect())
        }
        ErrorKind::InvalidValue => {
            let values = match mistake.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(values)) => values.clone(),
                _ => vec![],
            };
            (ContextKind::InvalidValue, ContextKind::SuggestedValue, values)
        }
        _ => return,
    };
    let Some(ContextValue::String(word)) = mistake.get(wrong) else { return };
    let of_others = ELSEWHERE.iter().find(|(theirs, known, _)| {
        theirs == word && candidates.iter().any(|candidate| candidate == known)
    });
    let near = of_others.map(|(.., said)| *said);
    let near = near.or_else(|| nearest(word, candidates.iter().map(String::as_str)));
    if let Some(near) = near {
        let near = near.to_owned();
        mistake.insert(suggested, ContextValue::Strings(vec![near]));
    }
}

/// Words of other programs' command lines; each with the command or option that is theirs here, and how
/// it is typed.
const ELSEWHERE: [(&str, &str, &str); 10] = [
    ("attach", "add", "add"),
    ("connect", "add", "add"),
    ("delete", "del", "del"),
    ("describe", "inspect", "inspect"),
    ("detach", "del", "del"),
    ("disconnect", "del", "del"),
    ("prune", "gc", "gc"),
    ("remove", "del", "del"),
    ("show", "inspect", "inspect"),
    ("--json", "--output", "--output json"),
];
