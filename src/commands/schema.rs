//! `cni-multi schema [PLUGIN]`: JSON Schemas of configurations, so that editors complete and check them.
//!
//! They are learnt from the plugins: documents are decoded by the types that configurations are decoded into, which tell
//! what they expect where, and the checks tell which numbers and words they take. So there is no second table of keys.

use std::rc::Rc;

use clap::{Arg, ArgMatches, Command};

use crate::cni::attachment::NetworkName;
use crate::cni::conf::Config;
use crate::cni::decode::{Expected, Observer};
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::cni::version;
use crate::plugin::{Context, Entry, Kind};
use crate::runner::Streams;

/// So many things a plugin may miss before it comes to the one that it is asked for.
const ROUNDS: usize = 8;

/// The command line.
pub fn command() -> Command {
    Command::new("schema")
        .about("Print the JSON Schema of a plugin's configuration, or of a whole list")
        .arg(Arg::new("plugin").value_name("PLUGIN").help("A plugin's name; without it, the schema of a .conflist"))
}

/// Runs it.
pub fn run(matches: &ArgMatches, plugins: &'static [Entry], env: &Environment, io: &mut Streams<'_>) -> u8 {
    let author = Author { plugins, env };
    let schema = match matches.get_one::<String>("plugin") {
        None => author.of_list(),
        Some(name) => match plugins.iter().find(|entry| entry.name == name) {
            Some(entry) => author.of_plugin_alone(entry),
            None => {
                let _ = writeln!(io.stderr, "there is no plugin {name:?}; `cni-multi list` names them"); // see the status
                return 2;
            }
        },
    };
    u8::from(writeln!(io.stdout, "{}", schema.to_indented_text()).and_then(|()| io.stdout.flush()).is_err())
}

/// A step of a path into a document.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Key(&'static str),
    Item,
}

/// Writes schemas.
struct Author<'a> {
    plugins: &'static [Entry],
    env: &'a Environment,
}

impl Author<'_> {
    /// A list of plugins. A plugin that is not ours may have any keys.
    fn of_list(&self) -> Value {
        let plugin = Value::object(vec![
            ("type", text("object")),
            ("required", texts(&["type"])),
            ("properties", Value::object(vec![("type", self.names(|kind| kind != Kind::Ipam))])),
            ("allOf", self.by_type(|kind| kind != Kind::Ipam)),
        ]);
        let plugins = Value::object(vec![("type", text("array")), ("minItems", number(1)), ("items", plugin)]);
        let versions = Value::object(vec![("type", text("array")), ("items", of_type("string"))]);
        let flag = Value::object(vec![(
            "enum",
            Value::Array(vec![Value::Bool(true), Value::Bool(false), text("true"), text("false")]),
        )]);
        let properties = Value::object(vec![
            ("cniVersion", cni_version()),
            ("cniVersions", versions),
            ("name", network_name()),
            ("disableCheck", flag.clone()),
            ("disableGC", flag.clone()),
            ("loadOnlyInlinedPlugins", flag),
            ("plugins", plugins),
        ]);
        let defs = self.plugins.iter().map(|entry| (entry.name.to_owned(), self.of_plugin(entry))).collect();
        headed(
            "CNI network configuration list",
            "the networks of a .conflist",
            vec![
                ("type", text("object")),
                ("required", texts(&["name"])),
                ("properties", properties),
                ("$defs", Value::Object(defs)),
            ],
        )
    }

    /// A plugin's object, with the IPAM plugins that it may call.
    fn of_plugin_alone(&self, entry: &Entry) -> Value {
        let mut schema = self.of_plugin(entry);
        if entry.kind == Kind::Main {
            let ipam = self.plugins.iter().filter(|entry| entry.kind == Kind::Ipam);
            let defs = ipam.map(|entry| (entry.name.to_owned(), self.of_plugin(entry))).collect();
            schema.set("$defs", Value::Object(defs));
        }
        let Value::Object(members) = schema else { return schema }; // it always is one
        headed(entry.name, entry.about, members.iter().map(|(key, value)| (key.as_str(), value.clone())).collect())
    }

    /// A plugin's object: what its types read, and what every plugin may have.
    fn of_plugin(&self, entry: &Entry) -> Value {
        let mut schema = self.describe(entry, &mut vec![]);
        let mut properties = schema.get("properties").cloned().unwrap_or(Value::Object(vec![]));
        let mut common = vec![
            ("cniVersion", cni_version()),
            ("name", network_name()),
            ("type", Value::object(vec![("const", text(entry.name))])),
            ("prevResult", of_type("object")),
        ];
        match entry.kind {
            // Its object is the one of the plugin that calls it.
            Kind::Ipam => common[2] = ("type", of_type("string")),
            Kind::Main => {
                // What the IPAM plugin reads outside of `ipam` is in the caller's object.
                for ipam in self.plugins.iter().filter(|other| other.kind == Kind::Ipam) {
                    let of_ipam = self.describe(ipam, &mut vec![]);
                    for key in ["runtimeConfig", "args"] {
                        merge(&mut properties, key, of_ipam.get("properties").and_then(|all| all.get(key)));
                    }
                }
                common.push(("ipam", self.ipam()));
            }
            Kind::Meta => (),
        }
        let capabilities = properties.get("runtimeConfig").and_then(|of| of.get("properties")).cloned();
        common.push(("capabilities", of_capabilities(capabilities)));
        for (key, value) in common {
            properties.set(key, value);
        }
        schema.set("properties", properties);
        schema.set("required", texts(&["type"]));
        schema.set("description", text(entry.about));
        schema
    }

    /// `ipam` of a plugin that makes an interface: what the plugin of that type reads there.
    fn ipam(&self) -> Value {
        Value::object(vec![
            ("type", text("object")),
            ("properties", Value::object(vec![("type", self.names(|kind| kind == Kind::Ipam))])),
            ("allOf", self.by_type(|kind| kind == Kind::Ipam)),
        ])
    }

    /// Any name, ours for completion.
    fn names(&self, is_meant: fn(Kind) -> bool) -> Value {
        let names = self.plugins.iter().filter(|entry| is_meant(entry.kind)).map(|entry| text(entry.name)).collect();
        Value::object(vec![(
            "anyOf",
            Value::Array(vec![Value::object(vec![("enum", Value::Array(names))]), of_type("string")]),
        )])
    }

    /// For each plugin: if `type` is its name, its keys.
    fn by_type(&self, is_meant: fn(Kind) -> bool) -> Value {
        let rule = |entry: &Entry| {
            let of = if entry.kind == Kind::Ipam { "/properties/ipam" } else { "" };
            let is_it = Value::object(vec![("type", Value::object(vec![("const", text(entry.name))]))]);
            Value::object(vec![
                ("if", Value::object(vec![("properties", is_it), ("required", texts(&["type"]))])),
                ("then", Value::object(vec![("$ref", text(format!("#/$defs/{}{of}", entry.name)))])),
            ])
        };
        Value::Array(self.plugins.iter().filter(|entry| is_meant(entry.kind)).map(rule).collect())
    }

    /// What the plugin expects at a path.
    fn describe(&self, entry: &Entry, path: &mut Vec<Step>) -> Value {
        let at = path_text(path);
        let mut told = if path.is_empty() { vec![] } else { self.ask(entry, path, Value::Bool(true)).0 };
        let (of_object, mistake) = self.ask(entry, path, Value::Object(vec![]));
        told.extend(of_object);
        told.retain(|(place, _)| *place == at);
        let mut keys: Vec<&'static str> = vec![];
        let mut kind = String::new();
        for (_, expected) in told {
            match expected {
                Expected::Keys(more) => {
                    keys.extend(more.iter().filter(|key| !keys.contains(key)).copied().collect::<Vec<_>>())
                }
                Expected::Kind(word) => kind = word,
            }
        }
        match kind.as_str() {
            "" => {
                let mut below = |key: &&'static str| {
                    path.push(Step::Key(key));
                    let schema = self.describe(entry, path);
                    path.pop();
                    ((*key).to_owned(), schema)
                };
                let properties = keys.iter().map(&mut below).collect();
                let mut schema =
                    Value::object(vec![("type", text("object")), ("properties", Value::Object(properties))]);
                if let Some(missing) = required(&mistake, &at) {
                    schema.set("required", texts(&[missing]));
                }
                schema
            }
            "a boolean" => of_type("boolean"),
            "a string" => self.describe_text(entry, path),
            "u8" => self.describe_integer(entry, path, u8::MAX.into()),
            "u16" => self.describe_integer(entry, path, u16::MAX.into()),
            "u32" => self.describe_integer(entry, path, u32::MAX.into()),
            "u64" => self.describe_integer(entry, path, u64::MAX),
            "i64" => self.describe_integer(entry, path, i64::MAX as u64),
            "a sequence" => {
                path.push(Step::Item);
                let items = self.describe(entry, path);
                path.pop();
                Value::object(vec![("type", text("array")), ("items", items)])
            }
            "a map" | "an object" => {
                path.push(Step::Key("key"));
                let values = self.describe(entry, path);
                path.pop();
                Value::object(vec![("type", text("object")), ("additionalProperties", values)])
            }
            _ => Value::Object(vec![]),
        }
    }

    /// A text; the words it may be, where the plugin refuses others and names them.
    fn describe_text(&self, entry: &Entry, path: &[Step]) -> Value {
        let problem = |word: &str| self.problem(entry, path, text(word));
        let refusal = problem("?").unwrap_or_default();
        let Some(words) = words(&refusal) else { return of_type("string") };
        if words.iter().any(|word| problem(word).is_some()) {
            return of_type("string");
        }
        let words: Vec<&str> = words.into_iter().chain(Some("").filter(|word| problem(word).is_none())).collect();
        Value::object(vec![("enum", texts(&words))])
    }

    /// An integer; the range that the plugin takes, where that is narrower than its type's.
    fn describe_integer(&self, entry: &Entry, path: &[Step], greatest: u64) -> Value {
        let problem = |value: u64| self.problem(entry, path, number(value));
        let mut schema = of_type("integer");
        let (least, greatest) = match problem(greatest).as_deref().and_then(range) {
            Some((_, greatest)) if problem(0).is_none() => (0, greatest), // as a rule 0 says that nobody wishes anything
            Some(range) => range,
            None if greatest == i64::MAX as u64 => return schema,
            None => (0, greatest),
        };
        schema.set("minimum", number(least));
        schema.set("maximum", number(greatest));
        schema
    }

    /// What the plugin has against a value, if it has anything. What it misses besides is added, as far as it says what.
    fn problem(&self, entry: &Entry, path: &[Step], value: Value) -> Option<String> {
        let at = path_text(path);
        let mut document = document(path, value);
        for _ in 0..ROUNDS {
            let mistake = self.ask_document(entry, &document).1;
            let (place, problem) = mistake.split_once(": ")?;
            if place == at {
                return Some(problem.to_owned());
            }
            let other = match range(problem) {
                Some((least, _)) => number(least),
                None => text("x"),
            };
            put(&mut document, place, other);
        }
        None
    }

    /// Decodes and checks a document with this value at this path: what was expected where, and the mistake.
    fn ask(&self, entry: &Entry, path: &[Step], value: Value) -> (Vec<(String, Expected)>, String) {
        self.ask_document(entry, &document(path, value))
    }

    fn ask_document(&self, entry: &Entry, document: &Value) -> (Vec<(String, Expected)>, String) {
        let Ok(name) = NetworkName::parse("network") else { return (vec![], String::new()) }; // it is a name
        let observer = Rc::new(Observer::default());
        let version = version::CURRENT.to_owned();
        let value = document.clone();
        let config = Config { text: vec![], value, name, version, observer: Some(observer.clone()) };
        let checked = entry.validate(&Context::new(self.plugins, &config, self.env, "", vec![]));
        (observer.take(), checked.err().map(|error| error.msg.clone()).unwrap_or_default())
    }
}

/// A document that has a value at this path and nothing else.
fn document(path: &[Step], value: Value) -> Value {
    path.iter().rev().fold(value, |value, step| match step {
        Step::Key(key) => Value::object(vec![(key, value)]),
        Step::Item => Value::Array(vec![value]),
    })
}

/// Adds a member to the object that the path leads to, through lists of one.
fn put(document: &mut Value, path: &str, value: Value) {
    let path = path.strip_prefix('.').unwrap_or(path);
    let (key, rest) = path.split_at(path.find(['.', '[']).unwrap_or(path.len()));
    match document {
        Value::Array(items) => {
            if let (Some(item), Some((_, rest))) = (items.first_mut(), path.split_once(']')) {
                put(item, rest, value);
            }
        }
        Value::Object(pairs) if !rest.is_empty() => {
            if let Some((_, inner)) = pairs.iter_mut().find(|(name, _)| name == key) {
                put(inner, rest, value);
            }
        }
        other => other.set(key, value),
    }
}

fn path_text(path: &[Step]) -> String {
    path.iter().fold(String::new(), |text, step| match step {
        Step::Key(key) if text.is_empty() => (*key).to_owned(),
        Step::Key(key) => format!("{text}.{key}"),
        Step::Item => format!("{text}[0]"),
    })
}

/// The key that an object at this path has to have.
fn required<'a>(mistake: &'a str, at: &str) -> Option<&'a str> {
    mistake.strip_prefix(at)?.strip_prefix(": \"")?.strip_suffix("\" is missing")
}

/// The words of `…, expected "a", "b" or "c"`. Whether they are words that can be written there is for the plugin to say.
fn words(problem: &str) -> Option<Vec<&str>> {
    let list = problem.rsplit_once("expected ")?.1;
    let list = list.strip_prefix("one of ").unwrap_or(list);
    let words: Vec<&str> =
        list.split(", ").flat_map(|part| part.split(" or ")).map(|word| word.trim_matches('"')).collect();
    (!words.iter().any(|word| word.contains(' '))).then_some(words)
}

/// The numbers of `…, expected 68 to 65535`.
fn range(problem: &str) -> Option<(u64, u64)> {
    let (least, greatest) = problem.rsplit_once("expected ")?.1.split_once(" to ")?;
    Some((least.parse().ok()?, greatest.parse().ok()?))
}

/// Adds to the properties what another schema has below `key`.
fn merge(properties: &mut Value, key: &str, more: Option<&Value>) {
    let Some(more) = more else { return };
    let Some(mut both) = properties.get(key).cloned() else { return properties.set(key, more.clone()) };
    if let Some(Value::Object(members)) = more.get("properties") {
        let mut inner = both.get("properties").cloned().unwrap_or(Value::Object(vec![]));
        for (name, schema) in members {
            merge(&mut inner, name, Some(schema));
        }
        both.set("properties", inner);
    }
    properties.set(key, both);
}

fn of_capabilities(read: Option<Value>) -> Value {
    let Some(Value::Object(read)) = read else { return of_capabilities(Some(Value::Object(vec![]))) };
    let flags = read.into_iter().map(|(key, _)| (key, of_type("boolean"))).collect();
    Value::object(vec![
        ("type", text("object")),
        ("properties", Value::Object(flags)),
        ("additionalProperties", of_type("boolean")),
    ])
}

fn headed(title: &str, about: &str, members: Vec<(&str, Value)>) -> Value {
    let mut schema = vec![
        ("$schema", text("https://json-schema.org/draft/2020-12/schema")),
        ("title", text(title)),
        ("description", text(about)),
    ];
    schema.extend(members.into_iter().filter(|(key, _)| *key != "description"));
    Value::object(schema)
}

fn cni_version() -> Value {
    Value::object(vec![("enum", texts(version::ALL))])
}

fn network_name() -> Value {
    Value::object(vec![
        ("type", text("string")),
        ("pattern", text("^[a-zA-Z0-9][a-zA-Z0-9_.-]*$")),
        ("maxLength", number(200)),
    ])
}

fn of_type(name: &str) -> Value {
    Value::object(vec![("type", text(name))])
}

fn text(text: impl Into<String>) -> Value {
    Value::text(text)
}

fn texts(items: &[&str]) -> Value {
    Value::Array(items.iter().map(|item| text(*item)).collect())
}

fn number(number: u64) -> Value {
    Value::Number(number.into())
}
