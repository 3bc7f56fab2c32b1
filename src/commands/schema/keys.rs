//! The meaning and the default of each key, from the rows of the plugins:
//! [`PluginConf::KEYS`](crate::plugin::PluginConf::KEYS).

use crate::cni::json::Value;
use crate::plugin::Entry;
use crate::registry::PLUGINS;
use crate::terminal::manual::Terms;

/// The keys that have no row of their own, because every plugin or list has them.
const GENERAL: Terms = &[
    ("type", "The name of the plugin: a file of the plugin directory."),
    ("name", "The name of the network, unique on the host."),
    ("cniVersion", "The version of the specification; the oldest one if it is missing."),
    ("cniVersions", "All versions that the list supports; the runtime takes one of them."),
    ("disableCheck", "The runtime does not call CHECK."),
    ("disableGC", "The runtime does not call GC."),
    ("loadOnlyInlinedPlugins", "The directory that is named after the network is not read."),
    ("plugins", "The plugins, in the order of ADD."),
    ("prevResult", "The result of the plugins before this one; runtimes write it."),
    ("capabilities", "What the runtime passes in runtimeConfig."),
    ("runtimeConfig", "What the runtime passes by capabilities; runtimes write it."),
    ("args", "Arguments of the network's user."),
    ("cni", "The arguments that the plugin reads."),
    ("ipam", "The IPAM plugin, by its type, and its keys."),
    ("dns", "Resolver settings of the result."),
];

/// An object with the keys of another one, which has the rows.
const SAME_KEYS: (&str, &str) = ("runtimeConfig.ipRanges[][]", "ipam.ranges[][]");

/// What is known about a key.
pub struct Row {
    /// What the key means, with a default that is no value of JSON.
    pub meaning: String,
    /// The default in Markdown.
    default: &'static str,
}

/// The row of the key at this path, such as `ipam.routes[].dst`: the plugin's own, else another
/// plugin's, where the same types have their rows, or that of an object with the same keys.
pub fn row(entry: &Entry, path: &str) -> Option<Row> {
    let path = &path.replace(SAME_KEYS.0, SAME_KEYS.1);
    let key = path.rsplit('.').next()?;
    let row_of = |entry: &Entry, path: &str| {
        let mut rows = entry.rows().map(|row| row.splitn(4, " | "));
        let mut cells = rows.find_map(|mut cells| (cells.next() == Some(path)).then_some(cells))?;
        Some(Row { default: cells.nth(1)?, meaning: plain(cells.next()?) })
    };
    row_of(entry, path)
        .or_else(|| PLUGINS.iter().find_map(|other| row_of(other, path)))
        .or_else(|| row_of(entry, key))
}

/// The description of a key that has no row; empty if there is none.
pub fn general(key: &str) -> &'static str {
    GENERAL.iter().find(|known| known.0 == key).map_or("", |known| known.1)
}

impl Row {
    /// Adds description and default to the schema of a key.
    pub fn describe(&self, schema: &mut Value) {
        let kind = schema.get("type").and_then(Value::as_str).unwrap_or("string");
        // The default, if it is a value of this type.
        let text = plain(self.default);
        let default = match Value::parse(text.as_bytes()) {
            _ if kind == "string" && self.default.starts_with('`') => Some(Value::text(&text)),
            Ok(Value::Number(number)) if kind == "integer" => Some(Value::Number(number)),
            Ok(value) if value.kind() == kind => Some(value),
            _ => None,
        };
        // Others may say where the value comes from.
        let is_reason = !["none", "as above", "see there"].contains(&self.default)
            && !self.default.starts_with("required");
        let meaning = match &default {
            None if is_reason => [&self.meaning, " Default: ", &text, "."].concat(),
            _ => self.meaning.clone(),
        };
        schema.set("description", Value::text(meaning));
        if let Some(default) = default {
            schema.set("default", default);
        }
    }
}

/// Markdown without its marks: `` `key` `` and `[text](link)`.
fn plain(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, link)) = rest.split_once("](") {
        text.push_str(before);
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    // The opening brackets of links go; those of `a[]` stay.
    let letters = text.char_indices().filter(|(at, letter)| match letter {
        '[' => text[*at..].starts_with("[]"),
        letter => *letter != '`',
    });
    letters.map(|(_, letter)| letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::find;

    #[test]
    fn a_row_has_meaning_and_default() {
        let macvlan = find("macvlan").unwrap();
        let described = |path: &str, kind: &str| {
            let mut schema = Value::object([("type", Value::text(kind))]);
            row(macvlan, path).unwrap().describe(&mut schema);
            let text = |key| schema.get(key).map(Value::to_text).unwrap_or_default();
            (text("description"), text("default"))
        };
        let (meaning, default) = described("bcqueuelen", "integer");
        assert!(meaning.starts_with("\"Queue length") && default == "0", "{meaning} {default}");
        let (meaning, default) = described("mac", "string");
        assert!(meaning.ends_with(" Default: random.\"") && default.is_empty(), "{meaning}");
        assert_eq!(described("mode", "string").1, "\"bridge\"");
        assert_eq!(plain("see [`a`](b.md), `c[]`"), "see a, c[]");
    }
}
