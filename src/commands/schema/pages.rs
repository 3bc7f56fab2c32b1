//! The meaning and the default of each key, from the table of keys on the plugin's page.
//!
//! The tables are cut out of the pages when the binary is compiled, so pages, schemas and the manual
//! have one description of each key.

use crate::cni::json::Value;
use crate::terminal::manual::Terms;

/// The tables of the pages of these plugins.
macro_rules! tables {
    ($($name:literal)*) => {
        &[$(($name, {
            const PAGE: &[u8] =
                include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/", $name, ".md"));
            const START: usize = start_of_table(PAGE);
            const TABLE: [u8; end_of_table(PAGE) - START] = part(PAGE, START);
            &TABLE
        })),*]
    };
}

/// The table of each page, by the name of the plugin.
static TABLES: &[(&str, &[u8])] = tables! {
    "bridge" "ptp" "macvlan" "ipvlan" "vlan" "host-device" "dummy" "tap" "loopback" "flannel" "bond" "ovs" "host-local"
    "static" "dhcp" "cluster-local" "whereabouts" "bandwidth" "firewall" "portmap" "route-override" "sbr" "tuning" "vrf"
};

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

/// The start of the first row of the chapter about keys; the end of the page if it has no table.
const fn start_of_table(page: &[u8]) -> usize {
    let chapter = find(page, b"\n## Configuration\n", 0);
    let row = find(page, b"\n| `", chapter);
    if row < find(page, b"\n## ", chapter + 1) { row + 1 } else { page.len() }
}

const fn end_of_table(page: &[u8]) -> usize {
    find(page, b"\n\n", start_of_table(page))
}

/// The position of a word from `start` on; the end of the text if it is missing.
const fn find(text: &[u8], word: &[u8], start: usize) -> usize {
    let mut at = start;
    while at + word.len() <= text.len() {
        if is_at(text, word, at) {
            return at;
        }
        at += 1;
    }
    text.len()
}

const fn is_at(text: &[u8], word: &[u8], at: usize) -> bool {
    let mut index = 0;
    while index < word.len() && text[at + index] == word[index] {
        index += 1;
    }
    index == word.len()
}

/// A copy of a part of the text, so that the binary does not contain the rest.
const fn part<const N: usize>(text: &[u8], start: usize) -> [u8; N] {
    let mut part = [0; N];
    let mut index = 0;
    while index < N {
        part[index] = text[start + index];
        index += 1;
    }
    part
}

/// Objects with the keys of another one, which a page describes.
const SAME_KEYS: (&str, &str) = ("runtimeConfig.ipRanges[][]", "ipam.ranges[][]");

/// What a page says about a key.
pub struct Row {
    /// What the key means, with a default that is no value of JSON.
    pub meaning: String,
    /// The default in Markdown.
    default: &'static str,
}

/// The row of the key at this path, such as `ipam.routes[].dst`: of the plugin's page, else of
/// another page, where the same types have their rows, or of an object with the same keys.
pub fn row(plugin: &str, path: &str) -> Option<Row> {
    let path = &path.replace(SAME_KEYS.0, SAME_KEYS.1);
    let own = || TABLES.iter().filter(move |table| table.0 == plugin);
    let key = path.rsplit('.').next()?;
    let found = own().find_map(|table| in_table(table.1, path));
    found
        .or_else(|| TABLES.iter().find_map(|table| in_table(table.1, path)))
        .or_else(|| own().find_map(|table| in_table(table.1, key)))
}

/// The description of a key that no page has a row for; empty if there is none.
pub fn general(key: &str) -> &'static str {
    GENERAL.iter().find(|known| known.0 == key).map_or("", |known| known.1)
}

fn in_table(table: &'static [u8], path: &str) -> Option<Row> {
    let table = str::from_utf8(table).unwrap_or_default();
    let start = ["| `", path, "` | "].concat();
    let row = table.lines().find_map(|line| line.strip_prefix(start.as_str()))?;
    let (before, meaning) = row.strip_suffix(" |")?.rsplit_once(" | ")?;
    let default = before.rsplit(" | ").next().unwrap_or_default();
    Some(Row { meaning: plain(meaning), default })
}

impl Row {
    /// Adds description and default to the schema of a key.
    pub fn describe(&self, schema: &mut Value) {
        let kind = schema.get("type").and_then(Value::as_str).unwrap_or("string");
        let default = self.default_of(kind);
        let meaning = match &default {
            None if is_reason(self.default) => {
                [&self.meaning, " Default: ", &plain(self.default), "."].concat()
            }
            _ => self.meaning.clone(),
        };
        schema.set("description", Value::text(meaning));
        if let Some(default) = default {
            schema.set("default", default);
        }
    }

    /// The default, if it is a value of this type.
    fn default_of(&self, kind: &str) -> Option<Value> {
        let text = plain(self.default);
        let value = Value::parse(text.as_bytes()).ok();
        match kind {
            "string" if self.default.starts_with('`') => Some(Value::text(text)),
            _ => value.filter(|value| value.kind() == kind || is_number(value, kind)),
        }
    }
}

fn is_number(value: &Value, kind: &str) -> bool {
    kind == "integer" && matches!(value, Value::Number(_))
}

/// Whether a default says where the value comes from.
fn is_reason(default: &str) -> bool {
    default != "none"
        && default != "as above"
        && default != "see there"
        && !default.starts_with("required")
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
    without_brackets(&text).replace('`', "")
}

/// The text without the opening brackets of links; those of `a[]` stay.
fn without_brackets(text: &str) -> String {
    let is_of_link =
        |(at, letter): &(usize, char)| *letter == '[' && !text[*at..].starts_with("[]");
    let letters = text.char_indices().filter(|letter| !is_of_link(letter));
    letters.map(|(_, letter)| letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::PLUGINS;

    #[test]
    fn every_plugin_has_a_table_of_text() {
        for entry in PLUGINS {
            let table = TABLES.iter().find(|table| table.0 == entry.name);
            assert!(str::from_utf8(table.unwrap().1).is_ok(), "{}", entry.name);
        }
        assert_eq!(TABLES.len(), PLUGINS.len());
    }

    #[test]
    fn a_row_has_meaning_and_default() {
        let described = |path: &str, kind: &str| {
            let mut schema = Value::object([("type", Value::text(kind))]);
            row("macvlan", path).unwrap().describe(&mut schema);
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
