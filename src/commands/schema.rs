//! `cni-multi schema [PLUGIN]`: JSON Schemas of configurations, with which editors complete and
//! check them.
//!
//! The schemas are derived from the plugins: trial documents are decoded by the types of the
//! configurations, which report what they expect at each place, and the plugins' checks report the
//! numbers and words that they accept. So there is no second table of keys.

use clap::{Arg, ArgMatches, Command};

use super::validate::{Trial, put};
use crate::cni::decode::Shape;
use crate::cni::json::Value;
use crate::cni::version;
use crate::error;
use crate::error::{Mistake, Problem};
use crate::plugin::{Entry, Kind};
use crate::terminal::Streams;

/// The maximum number of missing keys to fill in before giving up on a plugin's verdict about
/// another key.
const ROUNDS: usize = 8;

/// The JSON Schema dialect of the output.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Keys of a list that are booleans now, and were strings in 0.4.0.
const FLAGS: [&str; 3] = ["disableCheck", "disableGC", "loadOnlyInlinedPlugins"];

/// The command line.
pub fn command() -> Command {
    Command::new("schema")
        .about("Print the JSON Schema of a plugin's configuration, or of a plugin list")
        .arg(
            Arg::new("plugin")
                .value_name("PLUGIN")
                .help("Name of a plugin; without it, print the schema of a .conflist"),
        )
}

/// Runs the command.
pub fn run(matches: &ArgMatches, plugins: &'static [Entry], io: &mut Streams<'_>) -> u8 {
    let name = matches.get_one::<String>("plugin").map(String::as_str).unwrap_or_default();
    let entry = plugins.iter().find(|entry| entry.name == name);
    if !name.is_empty() && entry.is_none() {
        let _ =
            writeln!(io.stderr, "no plugin is named {name:?}; `cni-multi list` lists the plugins"); // see the exit status
        return 2;
    }
    let schema = Author { plugins }.document(entry);
    u8::from(
        writeln!(io.stdout, "{}", schema.to_indented_text())
            .and_then(|()| io.stdout.flush())
            .is_err(),
    )
}

/// The members of an object.
type Members = Vec<(&'static str, Value)>;

/// Writes schemas for these plugins.
struct Author {
    plugins: &'static [Entry],
}

impl Author {
    /// The schema of a plugin, or of a plugin list, together with the schemas that it refers to.
    fn document(&self, entry: Option<&Entry>) -> Value {
        let title = entry.map_or("CNI network configuration list", |entry| entry.name);
        let mut schema = vec![("$schema", Value::text(DIALECT)), ("title", Value::text(title))];
        schema.extend(entry.map_or_else(|| self.list(), |entry| self.plugin(entry)));
        schema.push(("$defs", self.definitions(entry)));
        Value::object(schema)
    }

    /// The members of a list's schema.
    fn list(&self) -> Members {
        let mut properties = common();
        properties.push(("cniVersions", list_of(of_type("string"))));
        properties.extend(FLAGS.map(|flag| (flag, boolean_or_text())));
        let plugin = Value::object(vec![
            ("type", Value::text("object")),
            ("required", texts(["type"])),
            ("properties", Value::object(vec![("type", self.names(is_of_list))])),
            ("allOf", self.rules(is_of_list, |kind| kind)),
        ]);
        let plugins = Value::object(vec![
            ("type", Value::text("array")),
            ("minItems", Value::number(1)),
            ("items", plugin),
        ]);
        properties.push(("plugins", plugins));
        object_of(texts(["name"]), properties)
    }

    /// The schemas that the schema of a plugin, or of a list, refers to.
    fn definitions(&self, entry: Option<&Entry>) -> Value {
        let is_referred = |other: &&Entry| match entry {
            None => true,
            Some(entry) => entry.kind == Kind::Main && other.kind == Kind::Ipam,
        };
        let referred = self.plugins.iter().filter(is_referred);
        Value::object(referred.map(|other| (other.name, Value::object(self.plugin(other)))))
    }

    /// Any name, with the names of our plugins for completion.
    fn names(&self, is_meant: fn(Kind) -> bool) -> Value {
        let meant = self.plugins.iter().filter(|entry| is_meant(entry.kind));
        any_of(vec![one_of(texts(meant.map(|entry| entry.name))), of_type("string")])
    }

    /// For each plugin: apply its schema if the object has its `type`; `place` puts that condition
    /// at the right level.
    fn rules(&self, is_meant: fn(Kind) -> bool, place: fn(Value) -> Value) -> Value {
        let rule = |entry: &Entry| {
            let definition = format!("#/$defs/{}", entry.name);
            Value::object(vec![
                ("if", place(has("type", constant(entry.name)))),
                ("then", Value::object(vec![("$ref", Value::text(definition))])),
            ])
        };
        Value::Array(self.plugins.iter().filter(|entry| is_meant(entry.kind)).map(rule).collect())
    }

    /// The members of a plugin's schema: the keys that its types read, and those that every plugin
    /// may have. An IPAM plugin's schema describes the object of the plugin that calls it.
    fn plugin(&self, entry: &Entry) -> Members {
        let learnt = self.learn(entry, &[]);
        let calls_ipam = entry.kind == Kind::Main && learnt.keys.contains(&"ipam");
        let mut properties = self.properties(entry, &learnt);
        if calls_ipam {
            let is_required = learnt.required.iter().any(|key| key == "ipam");
            properties.push(("ipam", self.ipam(is_required)));
        }
        let required =
            texts(["type"].into_iter().chain(learnt.required.iter().map(String::as_str)));
        let mut schema = vec![("description", Value::text(entry.about))];
        schema.extend(object_of(required, properties));
        if calls_ipam {
            schema.push(("allOf", self.rules(is_ipam_plugin, |kind| has("ipam", kind))));
        }
        schema
    }

    /// The schemas of a plugin's keys, except those below `ipam`, which belong to another plugin.
    fn properties(&self, entry: &Entry, learnt: &Learnt) -> Members {
        let is_ipam = entry.kind == Kind::Ipam;
        let kind = if is_ipam { of_type("string") } else { constant(entry.name) };
        let mut properties = vec![("type", kind)];
        properties.extend(common());
        properties.push(("prevResult", of_type("object")));
        properties.push(("capabilities", self.capabilities(entry)));
        for key in learnt.keys.iter().copied().filter(|key| is_ipam || *key != "ipam") {
            properties.push((key, self.value(entry, &[Step::Key(key)])));
        }
        properties
    }

    /// The capabilities that the plugin reads.
    fn capabilities(&self, entry: &Entry) -> Value {
        let read = self.learn(entry, &[Step::Key("runtimeConfig")]).keys;
        Value::object(vec![
            ("type", Value::text("object")),
            ("additionalProperties", of_type("boolean")),
            ("properties", Value::object(read.into_iter().map(|key| (key, of_type("boolean"))))),
        ])
    }

    /// The object `ipam` of a plugin that calls an IPAM plugin.
    fn ipam(&self, is_required: bool) -> Value {
        let required = texts(is_required.then_some("type"));
        Value::object(object_of(required, vec![("type", self.names(is_ipam_plugin))]))
    }

    /// The schema of the value at a path of the plugin's configuration.
    fn value(&self, entry: &Entry, path: &[Step]) -> Value {
        let learnt = self.learn(entry, path);
        match learnt.kind {
            None => self.object(entry, path, &learnt),
            Some(error::Kind::Boolean) => of_type("boolean"),
            Some(error::Kind::Text) => self.text(entry, path),
            Some(error::Kind::Natural(greatest)) => self.natural(entry, path, greatest),
            Some(error::Kind::Integer) => self.integer(entry, path),
            Some(error::Kind::List) => list_of(self.value(entry, &below(path, Step::Item))),
            Some(error::Kind::Object) => Value::object(vec![
                ("type", Value::text("object")),
                ("additionalProperties", self.value(entry, &below(path, Step::Key("key")))),
            ]),
            Some(error::Kind::Other(_)) => Value::Object(vec![]),
        }
    }

    /// The schema of an object with certain keys.
    fn object(&self, entry: &Entry, path: &[Step], learnt: &Learnt) -> Value {
        let property = |key| (key, self.value(entry, &below(path, Step::Key(key))));
        let properties = learnt.keys.iter().copied().map(property).collect();
        Value::object(object_of(texts(learnt.required.iter().map(String::as_str)), properties))
    }

    /// The schema of a text, with the accepted words if the plugin rejects others and names them.
    fn text(&self, entry: &Entry, path: &[Step]) -> Value {
        let refusal = self.mistake(entry, path, Value::text("?"));
        let words = refusal.map_or(&[][..], |mistake| mistake.expected.words());
        if words.is_empty() {
            return of_type("string");
        }
        let capitals = words.iter().map(|word| word.to_ascii_uppercase());
        let others = capitals.chain([String::new()]);
        let taken = others.filter(|word| self.takes(entry, path, Value::text(word.as_str())));
        let words = words.iter().copied().map(str::to_owned);
        one_of(Value::Array(words.chain(taken).map(Value::text).collect()))
    }

    /// The schema of an integer that is not negative, with the plugin's ranges if they are narrower
    /// than its type's.
    fn natural(&self, entry: &Entry, path: &[Step], greatest: u64) -> Value {
        match self.ranges(entry, path, greatest).as_slice() {
            [] => in_ranges(&[(0, greatest)]),
            narrower => in_ranges(&self.with_zero(entry, path, narrower)),
        }
    }

    /// The schema of an integer of either sign, with the plugin's ranges if it has any.
    fn integer(&self, entry: &Entry, path: &[Step]) -> Value {
        let ranges = self.ranges(entry, path, i64::MAX.unsigned_abs());
        in_ranges(&self.with_zero(entry, path, &ranges))
    }

    /// The minimum and maximum of each range that the plugin names when it rejects this number.
    fn ranges(&self, entry: &Entry, path: &[Step], number: u64) -> Vec<(u64, u64)> {
        let refusal = self.mistake(entry, path, Value::number(number));
        let ranges = refusal.as_ref().map_or(&[][..], |mistake| mistake.expected.ranges());
        let natural = |number: &i64| u64::try_from(*number).ok();
        ranges
            .iter()
            .filter_map(|range| Some((natural(range.start())?, natural(range.end())?)))
            .collect()
    }

    /// The ranges, and 0 if the plugin accepts it in addition: it usually means the default.
    fn with_zero(&self, entry: &Entry, path: &[Step], ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut all = ranges.to_vec();
        let Some(first) = all.first_mut().filter(|_| self.takes(entry, path, Value::number(0)))
        else {
            return all;
        };
        if first.0 > 1 {
            all.insert(0, (0, 0));
        } else {
            first.0 = 0;
        }
        all
    }

    /// Whether the plugin accepts a value.
    fn takes(&self, entry: &Entry, path: &[Step], value: Value) -> bool {
        self.mistake(entry, path, value).is_none()
    }

    /// Learns from the plugin's responses to a value of a wrong type, and to an object.
    fn learn(&self, entry: &Entry, path: &[Step]) -> Learnt {
        let at = path_text(path);
        let mut shapes = self.ask(entry, document(path, Value::Bool(true))).0;
        let mut required = vec![];
        let mut asked = document(path, Value::Object(vec![]));
        for _ in 0..ROUNDS {
            let (more, mistake) = self.ask(entry, asked.clone());
            shapes.extend(more);
            let Some(mistake) = mistake else { break };
            let Some(key) = member_on_the_way(&at, &mistake.path) else { break };
            if required.contains(&key) {
                break;
            }
            put(&mut asked, &mistake.path, filler(&mistake)); // so that the plugin continues
            if mistake.problem == Problem::Missing {
                required.push(key);
            }
        }
        let shapes = shapes.into_iter().filter(|(place, _)| *place == at).map(|(_, shape)| shape);
        Learnt::of(shapes, required)
    }

    /// The plugin's mistake in a value, if there is one. Other values that it requires are added,
    /// as far as it names them.
    fn mistake(&self, entry: &Entry, path: &[Step], value: Value) -> Option<Mistake> {
        let at = path_text(path);
        let mut document = document(path, value);
        for _ in 0..ROUNDS {
            let mistake = self.ask(entry, document.clone()).1?;
            if mistake.path == at {
                return Some(mistake);
            }
            put(&mut document, &mistake.path, filler(&mistake));
        }
        None
    }

    /// Decodes and checks a document; returns the expectations at each place, and the mistake.
    fn ask(&self, entry: &Entry, mut document: Value) -> (Vec<(String, Shape)>, Option<Mistake>) {
        let trial = Trial::new(self.plugins, "network", version::CURRENT);
        document.set("prevResult", trial.result()); // the plugin may be any of a list
        let checked = trial.of(entry, document);
        (trial.observed(), checked.err().and_then(|error| error.mistake.clone()))
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
    fn of(shapes: impl Iterator<Item = Shape>, required: Vec<String>) -> Learnt {
        let mut learnt = Learnt { keys: vec![], kind: None, required };
        for shape in shapes {
            match shape {
                Shape::Keys(keys) => learnt.add_keys(keys),
                Shape::Kind(kind) => learnt.kind = Some(kind),
            }
        }
        learnt
    }

    fn add_keys(&mut self, keys: &[&'static str]) {
        for key in keys {
            if !self.keys.contains(key) {
                self.keys.push(key);
            }
        }
    }
}

/// A step of a path into a document.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Key(&'static str),
    Item,
}

/// The path extended by one step.
fn below(path: &[Step], step: Step) -> Vec<Step> {
    [path, &[step]].concat()
}

/// A document with a value at this path and nothing else.
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

/// The member of the object at `path` on the way to `place`.
fn member_on_the_way(path: &str, place: &str) -> Option<String> {
    let key = place.strip_prefix(path)?.trim_start_matches('.').split('.').next()?;
    (!key.is_empty() && !key.starts_with('[')).then(|| key.to_owned())
}

/// A value for a key that is missing or invalid.
fn filler(mistake: &Mistake) -> Value {
    let least = mistake.expected.ranges().first().map(|range| *range.start());
    least.map_or(Value::text("x"), Value::number)
}

fn is_of_list(kind: Kind) -> bool {
    kind != Kind::Ipam
}

fn is_ipam_plugin(kind: Kind) -> bool {
    kind == Kind::Ipam
}

/// The members of every schema, for a list or a plugin.
fn common() -> Members {
    let name = Value::object(vec![
        ("type", Value::text("string")),
        ("pattern", Value::text("^[a-zA-Z0-9][a-zA-Z0-9_.-]*$")),
        ("maxLength", Value::number(200)),
    ]);
    let versions = version::ALL.iter().copied().chain([""]);
    vec![("name", name), ("cniVersion", one_of(texts(versions)))]
}

/// The schema of `true`, `false`, or the text of either.
fn boolean_or_text() -> Value {
    let booleans = [true, false].map(Value::Bool);
    one_of(Value::Array(booleans.into_iter().chain(["true", "false"].map(Value::text)).collect()))
}

/// The schema of an object with a member of this schema.
fn has(key: &'static str, schema: Value) -> Value {
    let properties = Value::object(vec![(key, schema)]);
    Value::object(vec![("required", texts([key])), ("properties", properties)])
}

/// The members of an object's schema.
fn object_of(required: Value, properties: Members) -> Members {
    vec![
        ("type", Value::text("object")),
        ("required", required),
        ("properties", Value::object(properties)),
    ]
}

fn of_type(name: &str) -> Value {
    Value::object(vec![("type", Value::text(name))])
}

fn list_of(items: Value) -> Value {
    Value::object(vec![("type", Value::text("array")), ("items", items)])
}

/// The schema of an integer in one of these ranges; in any if there are none.
fn in_ranges(ranges: &[(u64, u64)]) -> Value {
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

fn bounds((least, greatest): &(u64, u64)) -> [(&'static str, Value); 2] {
    [("minimum", Value::number(*least)), ("maximum", Value::number(*greatest))]
}

fn constant(text: &str) -> Value {
    Value::object(vec![("const", Value::text(text))])
}

fn one_of(values: Value) -> Value {
    Value::object(vec![("enum", values)])
}

fn any_of(schemas: Vec<Value>) -> Value {
    Value::object(vec![("anyOf", Value::Array(schemas))])
}

fn texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> Value {
    Value::Array(texts.into_iter().map(Value::text).collect())
}
