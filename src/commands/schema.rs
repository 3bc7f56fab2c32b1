//! `cni-multi schema [PLUGIN]`: JSON Schemas of configurations, so that editors complete and check
//! them.
//!
//! They are learnt from the plugins: documents are decoded by the types that configurations are
//! decoded into, which tell what they expect where, and the checks tell which numbers and words
//! they take. So there is no second table of keys.

use std::rc::Rc;

use clap::{Arg, ArgMatches, Command};

use super::validate::{a_result, put, try_out};
use crate::cni::decode::{Observer, Shape};
use crate::cni::json::Value;
use crate::cni::version;
use crate::error;
use crate::error::{Mistake, Problem};
use crate::plugin::{Entry, Kind};
use crate::terminal::Streams;

/// So many things a plugin may miss before it comes to the one that it is asked for.
const ROUNDS: usize = 8;

/// The dialect of what is printed.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Keys of a list that are booleans, and were strings in 0.4.0.
const FLAGS: [&str; 3] = ["disableCheck", "disableGC", "loadOnlyInlinedPlugins"];

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
    let schema = Author { plugins }.document(entry);
    u8::from(
        writeln!(io.stdout, "{}", schema.to_indented_text())
            .and_then(|()| io.stdout.flush())
            .is_err(),
    )
}

/// The members of an object.
type Members = Vec<(&'static str, Value)>;

/// Writes schemas.
struct Author {
    plugins: &'static [Entry],
}

impl Author {
    /// The schema of a plugin, or of a list of plugins; each comes with those that it refers to.
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

    /// The schemas that the one of a plugin, or of a list, refers to.
    fn definitions(&self, entry: Option<&Entry>) -> Value {
        let is_referred = |other: &&Entry| match entry {
            None => true,
            Some(entry) => entry.kind == Kind::Main && other.kind == Kind::Ipam,
        };
        let referred = self.plugins.iter().filter(is_referred);
        Value::object(referred.map(|other| (other.name, Value::object(self.plugin(other)))))
    }

    /// Any name, ours for completion.
    fn names(&self, is_meant: fn(Kind) -> bool) -> Value {
        let meant = self.plugins.iter().filter(|entry| is_meant(entry.kind));
        any_of(vec![one_of(texts(meant.map(|entry| entry.name))), of_type("string")])
    }

    /// For each plugin: its schema, if the object has its `type` where `place` puts that.
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

    /// The members of a plugin's schema: what its types read, and what every plugin may have. That
    /// of an IPAM plugin is of the object of the plugin that calls it.
    fn plugin(&self, entry: &Entry) -> Members {
        let learnt = self.learn(entry, &[]);
        let is_ipam = entry.kind == Kind::Ipam;
        let kind = if is_ipam { of_type("string") } else { constant(entry.name) };
        let mut properties = vec![("type", kind)];
        properties.extend(common());
        properties.push(("prevResult", of_type("object")));
        properties.push(("capabilities", self.capabilities(entry)));
        // The keys below `ipam` are of another plugin.
        for key in learnt.keys.iter().copied().filter(|key| is_ipam || *key != "ipam") {
            properties.push((key, self.value(entry, &[Step::Key(key)])));
        }
        let calls_ipam = entry.kind == Kind::Main && learnt.keys.contains(&"ipam");
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

    /// The schema of the value that the plugin expects at a path.
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

    /// An object of certain keys.
    fn object(&self, entry: &Entry, path: &[Step], learnt: &Learnt) -> Value {
        let property = |key| (key, self.value(entry, &below(path, Step::Key(key))));
        let properties = learnt.keys.iter().copied().map(property).collect();
        Value::object(object_of(texts(learnt.required.iter().map(String::as_str)), properties))
    }

    /// A text; the words it may be, where the plugin refuses others and names them.
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

    /// An integer that is not negative; the ranges that the plugin takes, where those are narrower
    /// than its type's.
    fn natural(&self, entry: &Entry, path: &[Step], greatest: u64) -> Value {
        match self.ranges(entry, path, greatest).as_slice() {
            [] => in_ranges(&[(0, greatest)]),
            narrower => in_ranges(&self.with_zero(entry, path, narrower)),
        }
    }

    /// An integer of either sign; the ranges that the plugin takes, where it has such.
    fn integer(&self, entry: &Entry, path: &[Step]) -> Value {
        let ranges = self.ranges(entry, path, i64::MAX.unsigned_abs());
        in_ranges(&self.with_zero(entry, path, &ranges))
    }

    /// The least and the greatest number of each range that the plugin names when it refuses this
    /// number.
    fn ranges(&self, entry: &Entry, path: &[Step], number: u64) -> Vec<(u64, u64)> {
        let refusal = self.mistake(entry, path, Value::number(number));
        let ranges = refusal.as_ref().map_or(&[][..], |mistake| mistake.expected.ranges());
        let natural = |number: &i64| u64::try_from(*number).ok();
        ranges
            .iter()
            .filter_map(|range| Some((natural(range.start())?, natural(range.end())?)))
            .collect()
    }

    /// The ranges and 0, where the plugin takes that besides: as a rule it means the default.
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

    /// Whether the plugin has nothing against a value.
    fn takes(&self, entry: &Entry, path: &[Step], value: Value) -> bool {
        self.mistake(entry, path, value).is_none()
    }

    /// What the plugin says to something that is no value for any type, and to an object.
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
            put(&mut asked, &mistake.path, filler(&mistake)); // so that it goes on
            if mistake.problem == Problem::Missing {
                required.push(key);
            }
        }
        let shapes = shapes.into_iter().filter(|(place, _)| *place == at).map(|(_, shape)| shape);
        Learnt::of(shapes, required)
    }

    /// What the plugin has against a value, if it has anything. What it misses besides is added, as
    /// far as it says what.
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

    /// Decodes and checks a document: what was expected where, and the mistake.
    fn ask(&self, entry: &Entry, mut document: Value) -> (Vec<(String, Shape)>, Option<Mistake>) {
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
    /// Else the kind of value.
    kind: Option<error::Kind>,
    /// The keys that an object has to have.
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

/// The path with one step more.
fn below(path: &[Step], step: Step) -> Vec<Step> {
    [path, &[step]].concat()
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

/// The member of the object at `path` on the way to `place`.
fn member_on_the_way(path: &str, place: &str) -> Option<String> {
    let key = place.strip_prefix(path)?.trim_start_matches('.').split('.').next()?;
    (!key.is_empty() && !key.starts_with('[')).then(|| key.to_owned())
}

/// A value for a key that has none, or one that cannot be.
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

/// What each object has, be it a list's or a plugin's.
fn common() -> Members {
    let name = Value::object(vec![
        ("type", Value::text("string")),
        ("pattern", Value::text("^[a-zA-Z0-9][a-zA-Z0-9_.-]*$")),
        ("maxLength", Value::number(200)),
    ]);
    let versions = version::ALL.iter().copied().chain([""]);
    vec![("name", name), ("cniVersion", one_of(texts(versions)))]
}

/// `true`, `false`, or the text of either.
fn boolean_or_text() -> Value {
    let booleans = [true, false].map(Value::Bool);
    one_of(Value::Array(booleans.into_iter().chain(["true", "false"].map(Value::text)).collect()))
}

/// An object with a member of this schema.
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

/// An integer in one of these ranges; any where there are none.
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
