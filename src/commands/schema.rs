//! `cni-multi schema [PLUGIN]`: JSON Schemas of configurations, with which editors complete and
//! check them.
//!
//! The schemas are derived from the plugins: trial documents are decoded by the types of the
//! configurations, which report what they expect at each place, and the plugins' checks report the
//! numbers and words that they accept. So there is no second table of keys. What a key means is
//! beside the types: see [`keys`].

mod keys;

use std::io::Write;
use std::ops::RangeInclusive;

use clap::{Arg, ArgMatches, Command};

use super::validate::{Trial, add_keys, below, put};
use crate::cni::decode::Shape;
use crate::cni::json::Value;
use crate::cni::version;
use crate::error;
use crate::error::{Mistake, Problem};
use crate::plugin::{Entry, Kind};
use crate::terminal::manual::Manual;
use crate::terminal::nearest::nearest;
use crate::terminal::{self, Streams};

/// The maximum number of missing keys to fill in before giving up on a plugin's verdict about
/// another key.
const ROUNDS: usize = 8;

/// The JSON Schema dialect of the output.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Keys of a list that are booleans now, and were strings in 0.4.0.
const FLAGS: [&str; 3] = ["disableCheck", "disableGC", "loadOnlyInlinedPlugins"];

/// The sections of its page.
pub const MANUAL: Manual = Manual {
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
        return refuse(name, plugins, io.stderr);
    }
    let schema = document(plugins, entry).to_indented_text() + "\n";
    u8::from(terminal::write(io.stdout, &schema).is_err())
}

/// The schema of a plugin's configuration, or of a plugin list, with all that it refers to.
pub fn document(plugins: &'static [Entry], entry: Option<&Entry>) -> Value {
    Author { plugins }.document(entry)
}

fn refuse(name: &str, plugins: &[Entry], stderr: &mut dyn Write) -> u8 {
    let advice = match nearest(name, plugins.iter().map(|entry| entry.name)) {
        Some(near) => format!("did you mean {near:?}?"),
        None => "`cni-multi list` lists the plugins".to_owned(),
    };
    let _ = writeln!(stderr, "no plugin is named {name:?}; {advice}"); // see the exit status
    2
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
        properties.extend(keys_of_list());
        properties.push(("plugins", self.plugins_of_list()));
        object_of(texts(["name"]), properties)
    }

    /// The schema of `plugins` in a list.
    fn plugins_of_list(&self) -> Value {
        Value::object(vec![
            ("type", Value::text("array")),
            ("minItems", Value::number(1)),
            ("items", self.plugin_of_list()),
        ])
    }

    /// The schema of one plugin in a list.
    fn plugin_of_list(&self) -> Value {
        let mut schema = typed_object(Some("type"), self.names(is_of_list));
        schema.push(("allOf", self.rules(is_of_list, |kind| kind)));
        Value::object(schema)
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

    /// The plugins of the kinds that are meant.
    fn meant(&self, is_meant: fn(Kind) -> bool) -> impl Iterator<Item = &'static Entry> {
        self.plugins.iter().filter(move |entry| is_meant(entry.kind))
    }

    /// Any name, with the names of our plugins for completion.
    fn names(&self, is_meant: fn(Kind) -> bool) -> Value {
        let known = self.meant(is_meant).map(|entry| entry.name);
        any_of(vec![one_of(texts(known)), of_type("string")])
    }

    /// For each plugin: apply its schema if the object has its `type`; `place` puts that condition
    /// at the right level.
    fn rules(&self, is_meant: fn(Kind) -> bool, place: fn(Value) -> Value) -> Value {
        Value::Array(self.meant(is_meant).map(|entry| rule(entry, place)).collect())
    }

    /// The whole configuration of a plugin.
    fn configuration<'a>(&self, entry: &'a Entry) -> Place<'a> {
        Place { plugins: self.plugins, entry, path: vec![] }
    }

    /// The members of a plugin's schema: the keys that its types read, and those that every plugin
    /// may have. An IPAM plugin's schema describes the object of the plugin that calls it.
    fn plugin(&self, entry: &Entry) -> Members {
        let learnt = self.configuration(entry).learn();
        let calls_ipam = entry.kind == Kind::Main && learnt.keys.contains(&"ipam");
        let mut properties = self.properties(entry, &learnt);
        if calls_ipam {
            properties.push(("ipam", self.ipam(&learnt)));
        }
        let required = texts(["type"].into_iter().chain(learnt.required()));
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
            properties.push((key, self.configuration(entry).below(Step::Key(key)).schema()));
        }
        properties
    }

    /// The capabilities that the plugin reads.
    fn capabilities(&self, entry: &Entry) -> Value {
        let read = self.configuration(entry).below(Step::Key("runtimeConfig")).learn().keys;
        Value::object(vec![
            ("type", Value::text("object")),
            ("additionalProperties", of_type("boolean")),
            ("properties", Value::object(read.into_iter().map(|key| (key, of_type("boolean"))))),
        ])
    }

    /// The object `ipam` of a plugin that calls an IPAM plugin.
    fn ipam(&self, learnt: &Learnt) -> Value {
        let is_required = learnt.required().any(|key| key == "ipam");
        let required = is_required.then_some("type");
        Value::object(typed_object(required, self.names(is_ipam_plugin)))
    }
}

/// For a plugin: apply its schema if the object has its `type`.
fn rule(entry: &Entry, place: fn(Value) -> Value) -> Value {
    let of_plugin = has("type", constant(entry.name));
    Value::object([("if", place(of_plugin)), ("then", reference(entry))])
}

/// The reference to a plugin's schema.
fn reference(entry: &Entry) -> Value {
    let definition = format!("#/$defs/{}", entry.name);
    Value::object(vec![("$ref", Value::text(definition))])
}

/// A value in a plugin's configuration.
struct Place<'a> {
    plugins: &'static [Entry],
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
        self.path.iter().fold(String::new(), path_below)
    }

    /// The schema of the value.
    fn schema(&self) -> Value {
        let learnt = self.learn();
        let mut schema = match learnt.kind {
            None => self.object(&learnt),
            Some(kind) => self.of_kind(kind),
        };
        let path = self.path_text().replace("[0]", "[]");
        if let Some(row) = keys::row(self.plugins, self.entry, &path) {
            row.describe(&mut schema);
        }
        schema
    }

    /// The schema of a value of this kind.
    fn of_kind(&self, kind: error::Kind) -> Value {
        match kind {
            error::Kind::Boolean => of_type("boolean"),
            error::Kind::Text => self.text(),
            error::Kind::Natural(greatest) => self.natural(greatest),
            error::Kind::Integer => self.integer(),
            error::Kind::IntegerOrText => integer_or_text(),
            error::Kind::List => list_of(self.below(Step::Item).schema()),
            error::Kind::Object => map_of(self.below(Step::Key("key")).schema()),
            error::Kind::Other(_) => Value::Object(vec![]),
        }
    }

    /// The schema of an object with certain keys.
    fn object(&self, learnt: &Learnt) -> Value {
        let property = |key| (key, self.below(Step::Key(key)).schema());
        let properties = learnt.keys.iter().copied().map(property).collect();
        Value::object(object_of(texts(learnt.required()), properties))
    }

    /// The schema of a text, with the accepted words if the plugin rejects others and names them.
    fn text(&self) -> Value {
        let refusal = self.mistake(Value::text("?"));
        match refusal.map_or(&[][..], |mistake| mistake.expected.words()) {
            [] => of_type("string"),
            words => self.one_of_words(words),
        }
    }

    /// The schema of one of these words, in capital letters or empty if the plugin accepts that.
    fn one_of_words(&self, words: &[&'static str]) -> Value {
        let capitals = words.iter().map(|word| word.to_ascii_uppercase());
        let others = capitals.chain([String::new()]);
        let taken = others.filter(|word| self.takes(Value::text(word.as_str())));
        let words = words.iter().copied().map(str::to_owned);
        one_of(Value::Array(words.chain(taken).map(Value::text).collect()))
    }

    /// The schema of an integer that is not negative, with the plugin's ranges if they are narrower
    /// than its type's.
    fn natural(&self, greatest: u64) -> Value {
        let narrower = self.ranges(greatest);
        if narrower.is_empty() {
            return in_ranges(&[(0, greatest)]);
        }
        in_ranges(&self.with_zero(narrower))
    }

    /// The schema of an integer of either sign, with the plugin's ranges if it has any.
    fn integer(&self) -> Value {
        let ranges = self.ranges(i64::MAX.unsigned_abs());
        in_ranges(&self.with_zero(ranges))
    }

    /// The ranges that the plugin names when it rejects this number.
    fn ranges(&self, number: u64) -> Ranges {
        let refusal = self.mistake(Value::number(number));
        let ranges = refusal.as_ref().map_or(&[][..], |mistake| mistake.expected.ranges());
        ranges.iter().filter_map(natural_range).collect()
    }

    /// The ranges, and 0 if the plugin accepts it in addition: it usually means the default.
    fn with_zero(&self, mut ranges: Ranges) -> Ranges {
        if ranges.is_empty() || !self.takes(Value::number(0)) {
            return ranges;
        }
        if ranges[0].0 > 1 {
            ranges.insert(0, (0, 0));
        } else {
            ranges[0].0 = 0;
        }
        ranges
    }

    /// Whether the plugin accepts a value.
    fn takes(&self, value: Value) -> bool {
        self.mistake(value).is_none()
    }

    /// Learns from the plugin's responses to a value of a wrong type, and to an object.
    fn learn(&self) -> Learnt {
        let at = self.path_text();
        let mut shapes = self.ask(self.document(Value::Bool(true))).0;
        let required = self.required(&mut shapes);
        let shapes = shapes.into_iter().filter(|(place, _)| *place == at).map(|(_, shape)| shape);
        Learnt::of(shapes, required)
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
        let trial = Trial::new(self.plugins, "network", version::CURRENT);
        document.set("prevResult", trial.result()); // the plugin may be any of a list
        let checked = trial.of(self.entry, document);
        (trial.observed(), checked.err().and_then(|error| error.mistake.clone()))
    }

    /// A document with this value at the path and nothing else.
    fn document(&self, value: Value) -> Value {
        self.path.iter().rev().fold(value, |value, step| match step {
            Step::Key(key) => Value::object(vec![(key, value)]),
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
    fn of(shapes: impl Iterator<Item = Shape>, required: Vec<String>) -> Learnt {
        let mut learnt = Learnt { keys: vec![], kind: None, required };
        shapes.for_each(|shape| learnt.add(shape));
        learnt
    }

    fn add(&mut self, shape: Shape) {
        match shape {
            Shape::Keys(keys) => add_keys(&mut self.keys, keys),
            Shape::Kind(kind) => self.kind = Some(kind),
        }
    }

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

/// The path as text, extended by one step.
fn path_below(path: String, step: &Step) -> String {
    match step {
        Step::Key(key) => below(&path, key),
        Step::Item => path + "[0]",
    }
}

/// The member of the object at `path` on the way to `place`.
fn member_on_the_way(path: &str, place: &str) -> Option<String> {
    let key = place.strip_prefix(path)?.trim_start_matches('.').split('.').next()?;
    (!key.is_empty() && !key.starts_with('[')).then(|| key.to_owned())
}

/// Sets the value that is missing or invalid.
fn fill_in(document: &mut Value, mistake: &Mistake) {
    put(document, &mistake.path, filler(mistake));
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
    let versions = version::ALL.iter().copied().chain([""]);
    vec![("name", network_name()), ("cniVersion", one_of(texts(versions)))]
}

/// The other members of a list's schema, without `plugins`.
fn keys_of_list() -> Members {
    let mut keys = vec![("cniVersions", list_of(of_type("string")))];
    keys.extend(FLAGS.map(|flag| (flag, boolean_or_text())));
    keys
}

fn network_name() -> Value {
    Value::object(vec![
        ("type", Value::text("string")),
        ("pattern", Value::text("^[a-zA-Z0-9][a-zA-Z0-9_.-]*$")),
        ("maxLength", Value::number(200)),
    ])
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

/// The members of the schema of an object with a `type`.
fn typed_object(required: Option<&str>, kind: Value) -> Members {
    object_of(texts(required), vec![("type", kind)])
}

/// Describes a key that has no row.
fn describe(key: &str, schema: &mut Value) {
    let meaning = keys::general(key);
    if schema.get("description").is_none() && !meaning.is_empty() {
        schema.set("description", Value::text(meaning));
    }
}

/// The members of an object's schema.
fn object_of(required: Value, mut properties: Members) -> Members {
    properties.iter_mut().for_each(|(key, schema)| describe(key, schema));
    vec![
        ("type", Value::text("object")),
        ("required", required),
        ("properties", Value::object(properties)),
    ]
}

fn integer_or_text() -> Value {
    let types = ["integer", "string"].map(Value::text).to_vec();
    Value::object([
        ("type", Value::Array(types)),
        ("minimum", Value::Number(0.into())),
        ("pattern", Value::text("^[0-9]+$")),
    ])
}

fn of_type(name: &str) -> Value {
    Value::object(vec![("type", Value::text(name))])
}

fn list_of(items: Value) -> Value {
    Value::object(vec![("type", Value::text("array")), ("items", items)])
}

/// The schema of an object with any keys and with values of this schema.
fn map_of(values: Value) -> Value {
    Value::object(vec![("type", Value::text("object")), ("additionalProperties", values)])
}

/// The range, if it has no negative number.
fn natural_range(range: &RangeInclusive<i64>) -> Option<(u64, u64)> {
    let least = u64::try_from(*range.start()).ok()?;
    Some((least, u64::try_from(*range.end()).ok()?))
}

/// The schema of an integer in one of these ranges; in any if there are none.
fn in_ranges(ranges: &[(u64, u64)]) -> Value {
    let mut members = vec![("type", Value::text("integer"))];
    match ranges {
        [] => (),
        [range] => members.extend(bounds(range)),
        ranges => members.push(("anyOf", choices(ranges))),
    }
    Value::object(members)
}

fn choices(ranges: &[(u64, u64)]) -> Value {
    Value::Array(ranges.iter().map(|range| Value::object(bounds(range))).collect())
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
