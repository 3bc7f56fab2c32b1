//! The values that may be typed for an argument: words that the command line knows, and what there
//! is on this host. What cannot be read is left out.

use std::path::PathBuf;

use clap::{Arg, Command};

use super::line::Line;
use crate::commands::net::network_names;
use crate::commands::{CNITOOL, CONF_DIR};
use crate::net::private::NETNS_DIR;
use crate::plugin::Entry;
use crate::runtime::cache::{self, Cache};
use crate::runtime::directory;
use crate::runtime::parameters::Parameters;

/// What may be typed.
pub enum Value {
    /// A word, with its purpose.
    Word {
        /// The word.
        word: String,
        /// Its purpose; may be empty.
        about: String,
    },
    /// The files that the shell finds.
    Files,
    /// The directories that the shell finds.
    Directories,
}

impl Value {
    fn of(word: impl Into<String>) -> Value {
        Value::Word { word: word.into(), about: String::new() }
    }

    /// The line for the script, if the word begins with `begun`. A shell gets no word that it would
    /// have to quote, and none that it would take for another kind of line.
    pub fn line(self, prefix: &str, begun: &str) -> Option<String> {
        match self {
            Value::Files => Some(":files\n".to_owned()),
            Value::Directories => Some(":directories\n".to_owned()),
            Value::Word { word, about } => {
                let tab = if about.is_empty() { "" } else { "\t" };
                let is_plain =
                    |byte: u8| byte.is_ascii_alphanumeric() || b"_./@%+,:=-".contains(&byte);
                let is_offered =
                    word.starts_with(begun) && !word.starts_with(':') && word.bytes().all(is_plain);
                is_offered.then(|| [prefix, &word, tab, &about, "\n"].concat())
            }
        }
    }
}

/// Where values are typed.
pub struct Place<'a> {
    /// The command.
    pub command: &'a Command,
    /// The beginning of the value.
    pub begun: &'a str,
    /// The plugins of this binary.
    pub plugins: &'static [Entry],
    /// The line, with the options that say where networks and records are.
    pub line: &'a Line<'a>,
}

impl Place<'_> {
    /// The values of an argument; `index` counts those of one that takes several.
    pub fn values(&self, arg: &Arg, index: usize) -> Vec<Value> {
        let words = arg.get_possible_values();
        if !words.is_empty() {
            return words.iter().map(|word| Value::of(word.get_name())).collect();
        }
        let names = arg.get_value_names().unwrap_or_default();
        let name = names.get(index).map_or("", |name| name.as_str());
        let kinds = name.split('|').filter(|kind| *kind != "DIR" || name == "DIR"); // among files
        kinds.flat_map(|kind| self.of_kind(kind)).collect()
    }

    /// The values that the name of an argument's value stands for.
    fn of_kind(&self, kind: &str) -> Vec<Value> {
        match kind {
            "NETWORK" => {
                let typed = self.line.setting("conf-dir", "NETCONFPATH");
                let dir = PathBuf::from(if typed.is_empty() { CONF_DIR } else { &typed });
                network_names(&dir).iter().map(|name| Value::of(name.as_str())).collect()
            }
            "NETNS" => self.namespaces(),
            "ID" | "CONTAINER" => {
                let attached = self.attached().into_iter();
                distinct(attached.map(|at| at.key.container_id.as_str().to_owned()))
            }
            "PLUGIN" => {
                let value = |entry: &Entry| Value::Word {
                    word: entry.name.into(),
                    about: entry.about.into(),
                };
                self.plugins.iter().map(value).collect()
            }
            "FORMAT" => {
                let is_text = ["validate", "doctor"].contains(&self.line.verb());
                vec![Value::of("json"), Value::of(if is_text { "text" } else { "table" })]
            }
            "FILE" => vec![Value::Files],
            "DIR" | "DIRS" => vec![Value::Directories],
            _ => vec![],
        }
    }

    /// The namespaces of `ip netns` by name, or by path where a path is begun or only a path is
    /// accepted; and those of attachments elsewhere, to detach and examine them.
    fn namespaces(&self) -> Vec<Value> {
        let program = self.command.get_bin_name();
        let is_of_cnitool = program.is_some_and(|name| name.contains(CNITOOL));
        let is_path = self.begun.contains('/') || is_of_cnitool;
        let names = directory::file_names(NETNS_DIR.as_ref()).unwrap_or_default();
        let names = names.iter().filter_map(|name| name.to_str());
        let prefix = if is_path { [NETNS_DIR, "/"].concat() } else { String::new() };
        let mut values: Vec<Value> =
            names.map(|name| Value::of([prefix.as_str(), name].concat())).collect();
        if ["check", "del", "doctor", "inspect"].contains(&self.line.verb()) {
            let attached = self.attached().into_iter().map(|at| at.netns);
            values.extend(distinct(attached.filter(|netns| !netns.starts_with(NETNS_DIR))));
        }
        let is_begun = |value: &Value| matches!(value, Value::Word { word, .. } if word.starts_with(self.begun));
        if is_path && !values.iter().any(is_begun) {
            values.push(Value::Files);
        }
        values
    }

    /// The recorded attachments, as far as they can be read.
    fn attached(&self) -> Vec<Parameters> {
        let typed = self.line.setting("cache-dir", "");
        let cache = Cache::new(if typed.is_empty() { cache::DEFAULT_DIR } else { &typed });
        let found = cache.all().unwrap_or_default().into_iter();
        found.filter_map(|found| found.record.ok()?.at).collect()
    }
}

/// The words, each once.
fn distinct(words: impl Iterator<Item = String>) -> Vec<Value> {
    let mut words: Vec<String> = words.collect();
    words.sort_unstable();
    words.dedup();
    words.into_iter().map(Value::of).collect()
}
