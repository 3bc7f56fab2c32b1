//! `cni-multi schema [PLUGIN]`: JSON Schemas of configurations, so that editors complete and check
//! them.
//!
//! They are learnt from the plugins: documents are decoded by the types that configurations are
//! decoded into, which tell what they expect where, and the checks tell which numbers and words
//! they take. So there is no second table of keys.

use std::rc::Rc;

use clap::{Arg, ArgMatches, Command};

use super::validate::{a_result, put, try_out};
use crate::cni::decode::{Expected, Observer};
use crate::cni::json::Value;
use crate::cni::version;
use crate::error::Mistake;
use crate::plugin::{Entry, Kind};
use crate::terminal::Streams;

/// So many things a plugin may miss before it comes to the one that it is asked for.
const ROUNDS: usize = 8;

/// What each object has, be it a list's or a plugin's.
const NAME: &str =
    r#""name":{"type":"string","pattern":"^[a-zA-Z0-9][a-zA-Z0-9_.-]*$","maxLength":200}"#;

/// The other keys of a list; booleans were strings in 0.4.0.
const LIST: &str = r#""cniVersions":{"type":"array","items":{"type":"string"}},
    "disableCheck":{"enum":[true,false,"true","false"]},"disableGC":{"enum":[true,false,"true","false"]},
    "loadOnlyInlinedPlugins":{"enum":[true,false,"true","false"]}"#;

/// The command line.
pub fn command() -> Command {
    Command::new("schema")
        .about("Print the JSON Schema of a plugin's configuration, or of a whole list")
        .arg(
            Arg::new("plugin")
                .value_name("PLUGIN")
                .help("A plugin's name; without it, the schema of a .conflist"),
        )
}

/// Runs it.
pub fn run(matches: &ArgMatches, plugins: &'static [Entry], io: &mut Streams<'_>) -> u8 {
    let name = matches.get_one::<String>("plugin").map(String::as_str).unwrap_or_default();
    let entry = plugins.iter().find(|entry| entry.name == name);
    if !name.is_empty() && entry.is_none() {
        let _ = writeln!(io.stderr, "there is no plugin {name:?}; `cni-multi list` names them"); // see the status
        return 2;
    }
    let mut author = Author { plugins, out: String::new() };
    author.write_document(entry);
    // What was written is short; reading it again indents it.
    let schema = Value::parse(author.out.as_bytes()).unwrap_or_default();
    u8::from(
        writeln!(io.stdout, "{}", schema.to_indented_text())
            .and_then(|()| io.stdout.flush())
            .is_err(),
    )
}

/// A step of a path into a document.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Key(&'static str),
    Item,
}

/// Writes a schema.
struct Author {
    plugins: &'static [Entry],
    out: String,
}

impl Author {
    fn write(&mut self, pieces: &[&str]) {
        self.out.push_str(&pieces.concat());
    }

    /// `"a","b"`.
    fn write_words(&mut self, words: &[&str]) {
        self.write(&["\"", &words.join("\",\""), "\""]);
    }

    /// The schema of a plugin, or of a list of plugins; each comes with those that it refers to.
    fn write_document(&mut self, entry: Option<&Entry>) {
        self.write(&["{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"title\":\""]);
        match entry {
            Some(entry) => {
                self.write(&[entry.name, "\","]);
                self.write_plugin(entry);
            }
            None => {
                self.write(&[
                    "CNI network configuration list\",\"type\":\"object\",\"required\":[\"name\"],\"properties\":{",
                ]);
                self.write_common();
                self.write(&[
                    ",",
                    LIST,
                    ",\"plugins\":{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\",",
                ]);
                self.write(&["\"required\":[\"type\"],\"properties\":{\"type\":"]);
                self.write_names(|kind| kind != Kind::Ipam);
                self.write(&["},\"allOf\":["]);
                self.write_rules(
                    "{\"properties\":{\"type\":{\"const\":\"",
                    "\"}},\"required\":[\"type\"]}",
                    |kind| kind != Kind::Ipam,
                );
                self.write(&["]}}}"]);
            }
        }
        self.write(&[",\"$defs\":{"]);
        let is_referred = |other: &&Entry| {
            entry.is_none_or(|entry| entry.kind == Kind::Main && other.kind == Kind::Ipam)
        };
        let mut comma = "";
        for other in self.plugins.iter().filter(is_referred) {
            self.write(&[comma, "\"", other.name, "\":{"]);
            self.write_plugin(other);
            self.write(&["}"]);
            comma = ",";
        }
        self.write(&["}}"]);
    }

    fn write_common(&mut self) {
        self.write(&[NAME, ",\"cniVersion\":{\"enum\":["]);
        self.write_words(version::ALL);
        self.write(&[",\"\"]}"]);
    }

    /// Any name, ours for completion.
    fn write_names(&mut self, is_meant: fn(Kind) -> bool) {
        let names: Vec<&str> = self
            .plugins
            .iter()
            .filter(|entry| is_meant(entry.kind))
            .map(|entry| entry.name)
            .collect();
        self.write(&["{\"anyOf\":[{\"enum\":["]);
        self.write_words(&names);
        self.write(&["]},{\"type\":\"string\"}]}"]);
    }

    /// For each plugin: if its name stands between these, its schema.
    fn write_rules(&mut self, before: &str, behind: &str, is_meant: fn(Kind) -> bool) {
        let mut comma = "";
        for entry in self.plugins.iter().filter(|entry| is_meant(entry.kind)) {
            self.write(&[
                comma,
                "{\"if\":",
                before,
                entry.name,
                behind,
                ",\"then\":{\"$ref\":\"#/$defs/",
                entry.name,
                "\"}}",
            ]);
            comma = ",";
        }
    }

    /// The members of a plugin's schema: what its types read, and what every plugin may have. That
    /// of an IPAM plugin is of the object of the plugin that calls it.
    fn write_plugin(&mut self, entry: &Entry) {
        let learnt = self.learn(entry, &[]);
        self.write(&[
            "\"description\":\"",
            entry.about,
            "\",\"type\":\"object\",\"required\":[\"type\"",
        ]);
        for key in &learnt.required {
            self.write(&[",\"", key, "\""]);
        }
        self.write(&["],\"properties\":{"]);
        match entry.kind {
            Kind::Ipam => self.write(&["\"type\":{\"type\":\"string\"},"]),
            Kind::Main | Kind::Meta => self.write(&["\"type\":{\"const\":\"", entry.name, "\"},"]),
        }
        self.write_common();
        self.write(&[",\"prevResult\":{\"type\":\"object\"},\"capabilities\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"boolean\"},\"properties\":{"]);
        let mut comma = "";
        for capability in self.learn(entry, &[Step::Key("runtimeConfig")]).keys {
            self.write(&[comma, "\"", capability, "\":{\"type\":\"boolean\"}"]);
            comma = ",";
        }
        self.write(&["}}"]);
        let is_own = |key: &&str| entry.kind == Kind::Ipam || *key != "ipam"; // the latter is written below
        for key in learnt.keys.iter().copied().filter(is_own) {
            self.write(&[",\"", key, "\":"]);
            self.write_at(entry, &mut vec![Step::Key(key)]);
        }
        if entry.kind == Kind::Main && learnt.keys.contains(&"ipam") {
            self.write(&[",\"ipam\":{\"type\":\"object\",\"required\":["]);
            if learnt.required.iter().any(|key| key == "ipam") {
                self.write_words(&["type"]);
            }
            self.write(&["],\"properties\":{\"type\":"]);
            self.write_names(|kind| kind == Kind::Ipam);
            self.write(&["}}},\"allOf\":["]);
            self.write_rules(
                "{\"required\":[\"ipam\"],\"properties\":{\"ipam\":{\"required\":[\"type\"],\"properties\":{\"type\":{\"const\":\"",
                "\"}}}}}",
                |kind| kind == Kind::Ipam,
            );
            self.write(&["]"]);
        } else {
            self.write(&["}"]);
        }
    }

    /// The schema of what the plugin expects at a path.
    fn write_at(&mut self, entry: &Entry, path: &mut Vec<Step>) {
        let learnt = self.learn(entry, path);
        let greatest = match learnt.kind.as_str() {
            "u8" => u8::MAX.into(),
            "u16" => u16::MAX.into(),
            "u32" => u32::MAX.into(),
            "u64" => u64::MAX,
            "i64" => i64::MAX as u64,
            "a boolean" => return self.write(&["{\"type\":\"boolean\"}"]),
            "a string" => return self.write_text(entry, path),
            "a sequence" => {
                return self.write_inner(entry, path, "{\"type\":\"array\",\"items\":", Step::Item);
            }
            "a map" | "an object" => {
                return self.write_inner(
                    entry,
                    path,
                    "{\"type\":\"object\",\"additionalProperties\":",
                    Step::Key("key"),
                );
            }
            "" => return self.write_object(entry, path, &learnt),
            _ => return self.write(&["{}"]),
        };
        self.write_integer(entry, path, greatest);
    }

    fn write_inner(&mut self, entry: &Entry, path: &mut Vec<Step>, before: &str, step: Step) {
        self.write(&[before]);
        path.push(step);
        self.write_at(entry, path);
        path.pop();
        self.write(&["}"]);
    }

    fn write_object(&mut self, entry: &Entry, path: &mut Vec<Step>, learnt: &Learnt) {
        self.write(&["{\"type\":\"object\",\"required\":["]);
        if !learnt.required.is_empty() {
            self.write_words(&learnt.required.iter().map(String::as_str).collect::<Vec<_>>());
        }
        self.write(&["],\"properties\":{"]);
        let mut comma = "";
        for &key in &learnt.keys {
            self.write(&[comma, "\"", key, "\":"]);
            path.push(Step::Key(key));
            self.write_at(entry, path);
            path.pop();
            comma = ",";
        }
        self.write(&["}}"]);
    }

    /// A text; the words it may be, where the plugin refuses others and names them.
    fn write_text(&mut self, entry: &Entry, path: &[Step]) {
        let is_taken = |word: &&str| self.problem(entry, path, Value::text(*word)).is_none();
        let refusal = self.problem(entry, path, Value::text("?")).unwrap_or_default();
        let mut words = words(&refusal);
        if words.is_empty() || !words.iter().all(is_taken) {
            return self.write(&["{\"type\":\"string\"}"]);
        }
        let capitals: Vec<String> = words.iter().map(|word| word.to_ascii_uppercase()).collect();
        words.extend(capitals.iter().map(String::as_str).filter(is_taken));
        words.extend(Some("").filter(is_taken));
        self.write(&["{\"enum\":["]);
        self.write_words(&words);
        self.write(&["]}"]);
    }

    /// An integer; the range that the plugin takes, where that is narrower than its type's.
    fn write_integer(&mut self, entry: &Entry, path: &[Step], greatest: u64) {
        let problem = |value: u64| self.problem(entry, path, Value::Number(value.into()));
        let mut ranges = ranges(&problem(greatest).unwrap_or_default());
        if ranges.is_empty() && greatest != i64::MAX as u64 {
            ranges.push((0, greatest));
        }
        // As a rule 0 says that nobody wishes anything.
        match ranges.first_mut() {
            Some((2.., _)) if problem(0).is_none() => ranges.insert(0, (0, 0)),
            Some((least, _)) if problem(0).is_none() => *least = 0,
            _ => (),
        }
        self.write(&["{\"type\":\"integer\""]);
        let mut before = if ranges.len() > 1 { ",\"anyOf\":[{" } else { "," };
        for (least, greatest) in &ranges {
            self.write(&[
                before,
                "\"minimum\":",
                &least.to_string(),
                ",\"maximum\":",
                &greatest.to_string(),
            ]);
            before = "},{";
        }
        self.write(&[if ranges.len() > 1 { "}]}" } else { "}" }]);
    }

    /// What the plugin says to something that is no value for any type, and to an object.
    fn learn(&self, entry: &Entry, path: &[Step]) -> Learnt {
        let at = path_text(path);
        let mut told = self.ask(entry, document(path, Value::Bool(true))).0;
        let mut required = vec![];
        let mut asked = document(path, Value::Object(vec![]));
        for _ in 0..ROUNDS {
            let (more, mistake) = self.ask(entry, asked.clone());
            told.extend(more);
            let Some(Mistake { path: place, problem }) = mistake else { break };
            // What it misses is given, so that it goes on.
            let (place, is_missing) =
                match problem.strip_suffix("\" is missing").and_then(|key| key.strip_prefix('"')) {
                    Some(key) => (format!("{place}.{key}"), true),
                    None => (place.clone(), is_missing(&problem)),
                };
            let Some(key) = place.strip_prefix(&at).map(|key| key.trim_start_matches('.')) else {
                break;
            };
            let key = key.split('.').next().unwrap_or_default().to_owned();
            if key.is_empty() || key.starts_with('[') || required.contains(&key) {
                break;
            }
            put(&mut asked, &place, filler(&problem));
            required.extend(Some(key).filter(|_| is_missing));
        }
        told.retain(|(place, _)| *place == at);
        let mut learnt = Learnt { keys: vec![], kind: String::new(), required };
        for (_, expected) in told {
            match expected {
                Expected::Keys(keys) => {
                    for &key in keys {
                        if !learnt.keys.contains(&key) {
                            learnt.keys.push(key);
                        }
                    }
                }
                Expected::Kind(kind) => learnt.kind = kind,
            }
        }
        learnt
    }

    /// What the plugin has against a value, if it has anything. What it misses besides is added, as
    /// far as it says what.
    fn problem(&self, entry: &Entry, path: &[Step], value: Value) -> Option<String> {
        let at = path_text(path);
        let mut document = document(path, value);
        for _ in 0..ROUNDS {
            let mistake = self.ask(entry, document.clone()).1?;
            if mistake.path == at {
                return Some(mistake.problem);
            }
            put(&mut document, &mistake.path, filler(&mistake.problem));
        }
        None
    }

    /// Decodes and checks a document: what was expected where, and the mistake.
    fn ask(
        &self,
        entry: &Entry,
        mut document: Value,
    ) -> (Vec<(String, Expected)>, Option<Mistake>) {
        document.set("prevResult", a_result(version::CURRENT)); // it may be any of a list
        let observer = Rc::new(Observer::default());
        let checked =
            try_out(entry, self.plugins, document, "network", version::CURRENT, &observer);
        (observer.take(), checked.err().and_then(|error| error.mistake.clone()))
    }
}

/// What a plugin expects at a path.
struct Learnt {
    /// The keys, where it is an object of certain keys.
    keys: Vec<&'static str>,
    /// Else in serde's words.
    kind: String,
    /// The keys that an object has to have.
    required: Vec<String>,
}

/// A document that has a value at this path and nothing else.
fn document(path: &[Step], value: Value) -> Value {
    path.iter().rev().fold(value, |value, step| match step {
        Step::Key(key) => Value::object(vec![(key, value)]),
        Step::Item => Value::Array(vec![value]),
    })
}

fn path_text(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        text.push_str(match step {
            Step::Key(_) if text.is_empty() => "",
            Step::Key(_) => ".",
            Step::Item => "[0]",
        });
        if let Step::Key(key) = step {
            text.push_str(key);
        }
    }
    text
}

/// Whether a problem is that there is no value.
fn is_missing(problem: &str) -> bool {
    problem.starts_with("missing")
}

/// A value for a key that is missing.
fn filler(problem: &str) -> Value {
    ranges(problem).first().map_or(Value::text("x"), |(least, _)| Value::Number((*least).into()))
}

/// The words of `…, expected "a", "b" or "c"`. Whether they are words that can be written there is
/// for the plugin to say.
fn words(problem: &str) -> Vec<&str> {
    let Some((_, list)) = problem.rsplit_once("expected ") else { return vec![] };
    let list = list.strip_prefix("one of ").unwrap_or(list);
    let words: Vec<&str> = list
        .split(", ")
        .flat_map(|part| part.split(" or "))
        .map(|word| word.trim_matches('"'))
        .collect();
    if words.iter().any(|word| word.contains(' ')) { vec![] } else { words }
}

/// The least and the greatest number of each range of `…, expected 1 to 252 or 256 to 4294967295`.
fn ranges(problem: &str) -> Vec<(u64, u64)> {
    let Some((_, expected)) = problem.rsplit_once("expected ") else { return vec![] };
    let range = |text: &str| {
        let (least, greatest) = text.split_once(" to ")?;
        Some((least.parse().ok()?, greatest.parse().ok()?))
    };
    expected.split(" or ").filter_map(range).collect()
}
