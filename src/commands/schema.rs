//! `cni-multi schema [PLUGIN]`: JSON Schemas of configurations, with which editors complete and
//! check them.
//!
//! The schemas are derived from the plugins: trial documents are decoded by the types of the
//! configurations, which report what they expect at each place, and the plugins' checks report the
//! numbers and words that they accept. So there is no second table of keys. What a key means is
//! beside the types: see [`keys`].

mod keys;

use clap::{ArgMatches, Command};

use super::advice_about_plugin;
use super::validate::{Trial, add_keys, below, put};
use crate::cni::decode::Shape;
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::cni::version;
use crate::error;
use crate::error::{Mistake, Problem};
use crate::plugin::{Entry, Kind, OperatorCommand};
use crate::registry::PLUGINS;
use crate::terminal::Streams;
use crate::terminal::arguments::{positional, text};
use crate::terminal::manual::Manual;

/// The maximum number of missing keys to fill in before giving up on a plugin's verdict about
/// another key.
const ROUNDS: usize = 8;

/// The JSON Schema dialect of the output.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Keys of a list that are booleans now, and were strings in 0.4.0.
const FLAGS: [&str; 3] = ["disableCheck", "disableGC", "loadOnlyInlinedPlugins"];

/// The sections of its page.
const MANUAL: Manual = Manual {
    examples: &[
        ("cni-multi schema >cni.schema.json", "Write the schema of a list, for an editor."),
        ("cni-multi schema bridge", "Print the keys of one plugin."),
    ],
    exit_status: &[
        ("0", "Success."),
        ("1", "The output could not be written."),
        ("2", "There is no plugin of this name."),
    ],
    see_also: &["cni.conflist(5)", "cni-multi-validate(1)"],
    ..Manual::EMPTY
};

/// `cni-multi schema`.
pub const COMMAND: OperatorCommand =
    OperatorCommand { name: "schema", command_line: command, run, manual: |_| MANUAL };

fn command() -> Command {
    let plugin = "Name of a plugin; without it, print the schema of a .conflist";
    Command::new("schema")
        .about("Print the JSON Schema of a plugin's configuration, or of a plugin list")
        .arg(positional("plugin", "PLUGIN", plugin).required(false))
}

fn run(matches: &ArgMatches, _: &Environment, io: &mut Streams<'_>) -> u8 {
    let name = text(matches, "plugin");
    let entry = PLUGINS.iter().find(|entry| entry.name == name);
    if !name.is_empty() && entry.is_none() {
        let advice = advice_about_plugin(name);
        let _ = writeln!(io.stderr, "no plugin is named {name:?}; {advice}"); // see the exit status
        return 2;
    }
    io.print(&(document(entry).to_indented_text() + "\n"))
}

/// The members of an object.
type Members = Vec<(&'static str, Value)>;

/// The schema of a plugin's configuration, or of a plugin list, with all that it refers to.
pub fn document(entry: Option<&Entry>) -> Value {
    let title = entry.map_or("CNI network configuration list", |entry| entry.name);
    let mut schema = vec![("$schema", Value::text(DIALECT)), ("title", Value::text(title))];
    schema.extend(entry.map_or_else(list, plugin));
    let is_referred = |other: &&Entry| match entry {
        None => true,
        Some(entry) => entry.kind == Kind::Main && other.kind == Kind::Ipam,
    };
    let referred = PLUGINS.iter().filter(is_referred);
    let definitions = referred.map(|other| (other.name, Value::object(plugin(other))));
    schema.push(("$defs", Value::object(definitions)));
    Value::object(schema)
}

/// The members of a list's schema.
fn list() -> Members {
    let of_list = |kind| kind != Kind::Ipam;
    let mut plugin = object_of(texts(["type"]), vec![("type", names(of_list))]);
    plugin.push(("allOf", rules(of_list, |kind| kind)));
    let plugins = Value::object([
        ("type", Value::text("array")),
        ("minItems", Value::number(1)),
        ("items", Value::object(plugin)),
    ]);
    // True, false, or the text of either.
    let flags = [true, false].map(Value::Bool).into_iter();
    let flags = Value::Array(flags.chain(["true", "false"].map(Value::text)).collect());
    let mut properties = common();
    properties.push(("cniVersions", list_of(of_type("string"))));
    properties.extend(FLAGS.map(|flag| (flag, one_of(flags.clone()))));
    properties.push(("plugins", plugins));
    object_of(texts(["name"]), properties)
}

/// Any name, with the names of our plugins of the kinds that are meant, for completion.
fn names(is_meant: fn(Kind) -> bool) -> Value {
    let meant = PLUGINS.iter().filter(|entry| is_meant(entry.kind));
    let known = one_of(texts(meant.map(|entry| entry.name)));
    Value::object([("anyOf", Value::Array(vec![known, of_type("string")]))])
}

/// For each plugin of the kinds that are meant: apply its schema if the object has its `type`;
/// `place` puts that condition at the right level.
fn rules(is_meant: fn(Kind) -> bool, place: fn(Value) -> Value) -> Value {
    let meant = PLUGINS.iter().filter(|entry| is_meant(entry.kind));
    let rule = |entry: &Entry| {
        let is_of_plugin = place(has("type", constant(entry.name)));
        let schema = Value::text(format!("#/$defs/{}", entry.name));
        Value::object([("if", is_of_plugin), ("then", Value::object([("$ref", schema)]))])
    };
    Value::Array(meant.map(rule).collect())
}

/// The whole configuration of a plugin.
fn configuration(entry: &Entry) -> Place<'_> {
    Place { entry, path: vec![] }
}

/// The members of a plugin's schema: the keys that its types read, and those that every plugin
/// may have. An IPAM plugin's schema describes the object of the plugin that calls it.
fn plugin(entry: &Entry) -> Members {
    let of_ipam = |kind| kind == Kind::Ipam;
    let learnt = configuration(entry).learn();
    let calls_ipam = entry.kind == Kind::Main && learnt.keys.contains(&"ipam");
    let mut properties = properties(entry, &learnt);
    if calls_ipam {
        let is_required = learnt.required.iter().any(|key| key == "ipam");
        let required = texts(is_required.then_some("type"));
        let ipam = object_of(required, vec![("type", names(of_ipam))]);
        properties.push(("ipam", Value::object(ipam)));
    }
    let required = texts(["type"].into_iter().chain(learnt.required()));
    let mut schema = vec![("description", Value::text(entry.about))];
    schema.extend(object_of(required, properties));
    if calls_ipam {
        schema.push(("allOf", rules(of_ipam, |kind| has("ipam", kind))));
    }
    schema
}

/// The schemas of a plugin's keys, except those below `ipam`, which belong to another plugin.
fn properties(entry: &Entry, learnt: &Learnt) -> Members {
    let is_ipam = entry.kind == Kind::Ipam;
    let kind = if is_ipam { of_type("string") } else { constant(entry.name) };
    let mut properties = vec![("type", kind)];
    properties.extend(common());
    properties.push(("prevResult", of_type("object")));
    // The capabilities that the plugin reads.
    let read = configuration(entry).below(Step::Key("runtimeConfig")).learn().keys;
    let capabilities = Value::object([
        ("type", Value::text("object")),
        ("additionalProperties", of_type("boolean")),
        ("properties", Value::object(read.into_iter().map(|key| (key, of_type("boolean"))))),
    ]);
    properties.push(("capabilities", capabilities));
    for key in learnt.keys.iter().copied().filter(|key| is_ipam || *key != "ipam") {
        properties.push((key, configuration(entry).below(Step::Key(key)).schema()));
    }
    properties
}

/// A value in a plugin's configuration.
struct Place<'a> {
    entry: &'a Entry,
    path: Vec<Step>,
}

/// The minimum and maximum of each range of integers.
type Ranges = Vec<(u64, u64)>;

impl<'a> Place<'a> {
    /// A part of the value.
    fn below(&self, step: Step) -> Place<'a> {
        Place { path: [self.path.as_slice(), &[step]].concat(), ..*self }
    }

    fn path_text(&self) -> String {
        self.path.iter().fold(String::new(), |path, step| match step {
            Step::Key(key) => below(&path, key),
            Step::Item => path + "[0]",
        })
    }

    /// The schema of the value.
    fn schema(&self) -> Value {
        let learnt = self.learn();
        let mut schema = match learnt.kind {
            None => {
                let property = |key| (key, self.below(Step::Key(key)).schema());
                let properties = learnt.keys.iter().copied().map(property).collect();
                Value::object(object_of(texts(learnt.required()), properties))
            }
            Some(kind) => self.of_kind(kind),
        };
        let path = self.path_text().replace("[0]", "[]");
        if let Some(row) = keys::row(self.entry, &path) {
            row.describe(&mut schema);
        }
        schema
    }

    /// The schema of a value of this kind.
    fn of_kind(&self, kind: error::Kind) -> Value {
        match kind {
            error::Kind::Boolean => of_type("boolean"),
            error::Kind::Text => self.text(),
            // The plugin's ranges, if they are narrower than its type's.
            error::Kind::Natural(greatest) => match self.ranges(greatest).as_slice() {
                [] => in_ranges(&[(0, greatest)]),
                narrower => in_ranges(narrower),
            },
            error::Kind::Integer => in_ranges(&self.ranges(i64::MAX.unsigned_abs())),
            error::Kind::IntegerOrText => Value::object([
                ("type", texts(["integer", "string"])),
                ("minimum", Value::Number(0.into())),
                ("pattern", Value::text("^[0-9]+$")),
            ]),
            error::Kind::List => list_of(self.below(Step::Item).schema()),
            // Any keys, with values of this schema.
            error::Kind::Object => Value::object([
                ("type", Value::text("object")),
                ("additionalProperties", self.below(Step::Key("key")).schema()),
            ]),
            error::Kind::Other(_) => Value::Object(vec![]),
        }
    }

    /// The schema of a text. If the plugin rejects other words than some that it names, the schema
    /// has those, in capital letters or empty as well if the plugin accepts that.
    fn text(&self) -> Value {
        let refusal = self.mistake(Value::text("?"));
        let words = refusal.as_ref().map_or(&[][..], |mistake| mistake.expected.words());
        if words.is_empty() {
            return of_type("string");
        }
        let capitals = words.iter().map(|word| word.to_ascii_uppercase());
        let others = capitals.chain([String::new()]);
        let taken = others.filter(|word| self.mistake(Value::text(word.as_str())).is_none());
        let words = words.iter().map(|word| (*word).to_owned());
        one_of(Value::Array(words.chain(taken).map(Value::text).collect()))
    }

    /// The ranges that the plugin names when it rejects this number, and 0 if the plugin accepts it
    /// in addition: it usually means the default. A range with negative numbers is left out.
    fn ranges(&self, number: u64) -> Ranges {
        let refusal = self.mistake(Value::number(number));
        let ranges = refusal.as_ref().map_or(&[][..], |mistake| mistake.expected.ranges());
        let natural = ranges.iter().filter_map(|range| {
            let least = u64::try_from(*range.start()).ok()?;
            Some((least, u64::try_from(*range.end()).ok()?))
        });
        let mut ranges: Ranges = natural.collect();
        if ranges.is_empty() || self.mistake(Value::number(0)).is_some() {
            return ranges;
        }
        if ranges[0].0 > 1 {
            ranges.insert(0, (0, 0));
        } else {
            ranges[0].0 = 0;
        }
        ranges
    }

    /// Learns from the plugin's responses to a value of a wrong type, and to an object.
    fn learn(&self) -> Learnt {
        let at = self.path_text();
        let mut shapes = self.ask(self.document(Value::Bool(true))).0;
        let required = self.required(&mut shapes);
        let mut learnt = Learnt { keys: vec![], kind: None, required };
        for (_, shape) in shapes.into_iter().filter(|(place, _)| *place == at) {
            match shape {
                Shape::Keys(keys) => add_keys(&mut learnt.keys, keys),
                Shape::Kind(kind) => learnt.kind = Some(kind),
            }
        }
        learnt
    }

    /// The keys that an object must have. Adds the expectations of the plugin to `shapes`.
    fn required(&self, shapes: &mut Vec<(String, Shape)>) -> Vec<String> {
        let mut required = vec![];
        let mut asked = self.document(Value::Object(vec![]));
        for _ in 0..ROUNDS {
            let (more, mistake) = self.ask(asked.clone());
            shapes.extend(more);
            let Some(mistake) = mistake else { break };
            let Some(key) = member_on_the_way(&self.path_text(), &mistake.path) else { break };
            if required.contains(&key) {
                break;
            }
            fill_in(&mut asked, &mistake); // so that the plugin continues
            if mistake.problem == Problem::Missing {
                required.push(key);
            }
        }
        required
    }

    /// The plugin's mistake in a value, if there is one. Other values that it requires are added,
    /// as far as it names them.
    fn mistake(&self, value: Value) -> Option<Mistake> {
        let at = self.path_text();
        let mut document = self.document(value);
        for _ in 0..ROUNDS {
            let mistake = self.ask(document.clone()).1?;
            if mistake.path == at {
                return Some(mistake);
            }
            fill_in(&mut document, &mistake);
        }
        None
    }

    /// Decodes and checks a document; returns the expectations at each place, and the mistake.
    fn ask(&self, mut document: Value) -> (Vec<(String, Shape)>, Option<Mistake>) {
        let trial = Trial::new("network", version::CURRENT);
        document.set("prevResult", trial.result()); // the plugin may be any of a list
        let checked = trial.run(self.entry, document);
        (trial.observed(), checked.err().and_then(|error| error.mistake.clone()))
    }

    /// A document with this value at the path and nothing else.
    fn document(&self, value: Value) -> Value {
        self.path.iter().rev().fold(value, |value, step| match step {
            Step::Key(key) => Value::object([(key, value)]),
            Step::Item => Value::Array(vec![value]),
        })
    }
}

/// What a plugin expects at a path.
struct Learnt {
    /// The keys, for an object with certain keys.
    keys: Vec<&'static str>,
    /// The kind of value otherwise.
    kind: Option<error::Kind>,
    /// The keys that an object must have.
    required: Vec<String>,
}

impl Learnt {
    /// The keys that an object must have.
    fn required(&self) -> impl Iterator<Item = &str> {
        self.required.iter().map(String::as_str)
    }
}

/// A step of a path into a document.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Key(&'static str),
    Item,
}

/// The member of the object at `path` on the way to `place`.
fn member_on_the_way(path: &str, place: &str) -> Option<String> {
    let key = place.strip_prefix(path)?.trim_start_matches('.').split('.').next()?;
    (!key.is_empty() && !key.starts_with('[')).then(|| key.to_owned())
}

/// Sets the value that is missing or invalid.
fn fill_in(document: &mut Value, mistake: &Mistake) {
    let least = mistake.expected.ranges().first().map(|range| *range.start());
    put(document, &mistake.path, least.map_or(Value::text("x"), Value::number));
}

/// The type of a value in words, from its schema.
pub fn type_of(schema: &Value) -> String {
    let kind = schema.get("type").and_then(Value::as_str);
    match (kind, schema.get("items"), schema.get("additionalProperties")) {
        (Some("array"), Some(items), _) => format!("list of {}", type_of(items)),
        (Some("object"), _, Some(values)) => format!("object of {}", type_of(values)),
        (Some(kind), ..) => kind.to_owned(),
        (None, ..) if schema.get("enum").is_some() => "one of these".to_owned(),
        (None, ..) if schema.get("anyOf").is_some() => "string".to_owned(),
        (None, ..) => "any value".to_owned(),
    }
}

/// The members of every schema, for a list or a plugin.
fn common() -> Members {
    let name = Value::object([
        ("type", Value::text("string")),
        ("pattern", Value::text("^[a-zA-Z0-9][a-zA-Z0-9_.-]*$")),
        ("maxLength", Value::number(200)),
    ]);
    let versions = version::ALL.iter().copied().chain([""]);
    vec![("name", name), ("cniVersion", one_of(texts(versions)))]
}

/// The schema of an object with a member of this schema.
fn has(key: &'static str, schema: Value) -> Value {
    Value::object([("required", texts([key])), ("properties", Value::object([(key, schema)]))])
}

/// The members of an object's schema. A key that has no row gets its general description.
fn object_of(required: Value, mut properties: Members) -> Members {
    for (key, schema) in &mut properties {
        let meaning = keys::general(key);
        if schema.get("description").is_none() && !meaning.is_empty() {
            schema.set("description", Value::text(meaning));
        }
    }
    vec![
        ("type", Value::text("object")),
        ("required", required),
        ("properties", Value::object(properties)),
    ]
}

fn of_type(name: &str) -> Value {
    Value::object([("type", Value::text(name))])
}

fn list_of(items: Value) -> Value {
    Value::object([("type", Value::text("array")), ("items", items)])
}

/// The schema of an integer in one of these ranges; in any if there are none.
fn in_ranges(ranges: &[(u64, u64)]) -> Value {
    let bounds = |(least, greatest): &(u64, u64)| {
        [("minimum", Value::number(*least)), ("maximum", Value::number(*greatest))]
    };
    let mut members = vec![("type", Value::text("integer"))];
    match ranges {
        [] => (),
        [range] => members.extend(bounds(range)),
        ranges => {
            let choices = ranges.iter().map(|range| Value::object(bounds(range)));
            members.push(("anyOf", Value::Array(choices.collect())));
        }
    }
    Value::object(members)
}

fn constant(text: &str) -> Value {
    Value::object([("const", Value::text(text))])
}

fn one_of(values: Value) -> Value {
    Value::object([("enum", values)])
}

fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Value {
    Value::Array(texts.into_iter().map(Value::text).collect())
}
