//! What can be said of one network's file.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::document::{Document, below};
use super::finding::Finding;
use super::nearest::nearest;
use super::picks::{self, Pick};
use super::together;
use crate::cni::attachment::NetworkName;
use crate::cni::conf::Config;
use crate::cni::decode::{Expected, Observer};
use crate::cni::delegate;
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::cni::version;
use crate::error::{Code, Error, Result};
use crate::plugin::{Context, Entry, Kind};
use crate::runtime::list::{NetworkList, PluginConfig};

/// The keys of a list, in this case only: libcni reads them by hand.
const LIST_KEYS: [&str; 7] =
    ["cniVersion", "cniVersions", "name", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "plugins"];

/// What every plugin may have. A single plugin's file has `name` and `cniVersion`, too.
const PLUGIN_KEYS: [&str; 8] =
    ["cniVersion", "name", "type", "capabilities", "ipam", "args", "runtimeConfig", "prevResult"];

/// What runtimes write beside it for themselves.
const NOTES_OF_RUNTIMES: [&str; 4] = ["nerdctlID", "nerdctlLabels", "ipRange", "podman_labels"];

/// What the specification leaves to runtimes.
const RESERVED: [&str; 2] = ["runtimeConfig", "prevResult"];

/// The longest name that is portable: the specification's schema has this limit.
const NAME_MAX: usize = 200;

/// Where keys that a plugin does not know are no mistake.
const FREE: [&str; 2] = ["args", "runtimeConfig"];

/// What a list is called where its keys are told.
const A_LIST: &str = "a list of plugins";

/// More mistakes of one plugin are not looked for.
const ROUNDS: usize = 64;

/// A network as far as it could be read.
pub struct Network {
    /// Its `name`.
    pub name: String,
    /// The document that names it.
    pub document: usize,
    /// Its plugins, in their order.
    pub plugins: Vec<Plugin>,
    /// Whether libcni would load it.
    pub loads: bool,
    /// Whether all of its plugins are there and speak its version, which CRI-O asks for.
    pub is_served: bool,
}

/// A plugin of a network.
pub struct Plugin {
    /// The document that it stands in.
    pub document: usize,
    /// Its path there.
    pub path: String,
    /// Its object.
    pub value: Value,
}

impl Plugin {
    /// The string at `key`, empty where there is none.
    pub fn text(&self, key: &str) -> &str {
        self.value.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// `ipam.type`, empty where there is none.
    pub fn ipam_type(&self) -> &str {
        self.value.get("ipam").and_then(|ipam| ipam.get("type")).and_then(Value::as_str).unwrap_or_default()
    }

    /// The path of a key of it.
    pub fn at(&self, key: &str) -> String {
        below(&self.path, key)
    }
}

/// Everything that was looked at so far.
pub struct Checker<'a> {
    plugins: &'static [Entry],
    env: &'a Environment,
    path: Vec<PathBuf>,
    /// Every file.
    pub documents: Vec<Document>,
    /// Every network.
    pub networks: Vec<Network>,
    findings: Vec<Finding>,
    answers: Vec<(PathBuf, Result<Vec<String>>)>,
    missing: Vec<String>,
}

impl<'a> Checker<'a> {
    /// A checker that looks for plugins in these directories.
    pub fn new(plugins: &'static [Entry], env: &'a Environment, path: Vec<PathBuf>) -> Checker<'a> {
        let (documents, networks, findings, answers, missing) = (vec![], vec![], vec![], vec![], vec![]);
        Checker { plugins, env, path, documents, networks, findings, answers, missing }
    }

    /// Looks at what lies between the networks, and returns every finding, sorted by place.
    pub fn finish(mut self) -> Vec<Finding> {
        together::check(&mut self);
        self.findings.sort_by(|a, b| (&a.file, a.place()).cmp(&(&b.file, b.place())));
        self.findings
    }

    /// Looks at every file of a directory.
    pub fn check_dir(&mut self, dir: &Path) -> Vec<Pick> {
        let names = match fs::read_dir(dir) {
            Ok(entries) => entries.flatten(),
            Err(e) => {
                let error = Error::io("read the directory", &e);
                self.tell_of_file("unreadable", dir, &error.msg);
                return vec![];
            }
        };
        let mut files: Vec<PathBuf> = names.map(|entry| entry.path()).filter(|path| !path.is_dir()).collect();
        files.sort();
        let (read, others): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| picks::extension(file).is_some());
        for file in others {
            let name = file.to_string_lossy().to_lowercase();
            if [".conf", ".json"].iter().any(|part| name.contains(part)) {
                self.tell_of_file("not-read", &file, "no runtime reads a file of this name");
            }
        }
        if read.is_empty() {
            self.tell_of_file("no-files", dir, "there is no network configuration");
        }
        let first = self.networks.len();
        let read: Vec<(PathBuf, Option<usize>)> =
            read.into_iter().map(|file| (file.clone(), self.check_file(&file))).collect();
        self.check_names(first);
        picks::of_dir(&read, &self.networks)
    }

    /// Looks at one file; returns the network in it.
    pub fn check_file(&mut self, file: &Path) -> Option<usize> {
        match fs::read(file) {
            Ok(bytes) => self.check(file.to_string_lossy().into_owned(), &bytes),
            Err(e) => {
                let error = Error::io("open", &e);
                self.tell_of_file("unreadable", file, &error.msg);
                None
            }
        }
    }

    /// Looks at a text as the file of this name, or, where that says nothing, as what it seems to be.
    pub fn check(&mut self, file: String, bytes: &[u8]) -> Option<usize> {
        let document = self.read(file, bytes)?;
        let (is_list, text) = (self.documents[document].is_list, self.documents[document].text.clone().into_bytes());
        let loaded = if is_list { NetworkList::parse(text) } else { NetworkList::of_single(text) };
        let before = self.errors();
        let version = loaded.as_ref().map_or("", |list| &list.version);
        let network = if is_list { self.check_list(document, version) } else { self.check_single(document, version) };
        // Whatever it is, libcni's word goes.
        if let (Err(error), true) = (&loaded, self.errors() == before) {
            let key = LIST_KEYS.into_iter().find(|key| error.msg.contains(key)).unwrap_or_default();
            self.tell("not-loaded", document, key, error.msg.clone());
        }
        self.networks[network].loads &= loaded.is_ok();
        Some(network)
    }

    /// The document of a text, if it is an object.
    fn read(&mut self, file: String, bytes: &[u8]) -> Option<usize> {
        let extension = picks::extension(Path::new(&file));
        let (mut document, problem) = Document::parse(file, bytes);
        document.is_list = extension.map_or(document.member("plugins").is_some(), |extension| extension == "conflist");
        let (kind, is_empty) = (document.value.kind(), document.text.trim().is_empty());
        self.documents.push(document);
        let document = self.documents.len() - 1;
        if let Some((offset, problem)) = problem {
            let problem = if is_empty { "the file is empty".to_owned() } else { problem };
            self.tell_at("syntax", document, offset..offset + 1, "", problem);
            return None;
        }
        if kind != "object" {
            self.tell("wrong-type", document, "", format!("found {kind}")).expected = "an object".to_owned();
            return None;
        }
        for (path, second, first) in self.documents[document].duplicates() {
            let (line, _) = self.documents[document].position(first.start);
            let message = format!("{path} stands twice, first in line {line}");
            self.tell_at("duplicate-key", document, second, &path, message).hint = "the last one counts".to_owned();
        }
        Some(document)
    }

    fn check_list(&mut self, document: usize, version: &str) -> usize {
        let is_single = self.has(document, "type") && !self.has(document, "plugins");
        if is_single {
            let message = "a single plugin in a file that is read as a list".to_owned();
            self.tell("plugin-in-list", document, "type", message).hint = "name the file .conf".to_owned();
        } else {
            self.unknown_keys(document, "", &LIST_KEYS, A_LIST, true);
        }
        let name = self.check_name(document);
        let version = self.check_version(document, version);
        let mut plugins = vec![];
        if let Some(Value::Array(items)) = self.documents[document].member("plugins") {
            for (i, item) in items.iter().enumerate() {
                plugins.push(Plugin { document, path: format!("plugins[{i}]"), value: item.clone() });
            }
        }
        let only_inlined = match self.documents[document].member("loadOnlyInlinedPlugins") {
            Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
            other => other == Some(&Value::Bool(true)),
        };
        let loads = only_inlined || self.add_plugins_of_directory(document, &name, &mut plugins);
        let loads = loads && !plugins.is_empty();
        if plugins.is_empty() && !is_single {
            self.tell("no-plugins", document, "plugins", "there are no plugins".to_owned());
        }
        self.check_order(&plugins);
        self.check_plugins(Network { name, document, plugins, loads, is_served: true }, &version)
    }

    fn check_single(&mut self, document: usize, version: &str) -> usize {
        if self.has(document, "plugins") {
            let message = "a list of plugins in a file that is read as one plugin".to_owned();
            self.tell("list-in-plugin", document, "plugins", message).hint = "name the file .conflist".to_owned();
            let nothing = Network { name: String::new(), document, plugins: vec![], loads: false, is_served: false };
            return self.check_plugins(nothing, "");
        }
        let name = self.check_name(document);
        let version = self.check_version(document, version);
        let value = self.documents[document].value.clone();
        let plugins = vec![Plugin { document, path: String::new(), value }];
        self.check_plugins(Network { name, document, plugins, loads: true, is_served: true }, &version)
    }

    /// Packages drop plugins into the directory that is named like the network.
    fn add_plugins_of_directory(&mut self, document: usize, name: &str, plugins: &mut Vec<Plugin>) -> bool {
        let file = PathBuf::from(&self.documents[document].file);
        let (Ok(_), Some(parent)) = (NetworkName::parse(name), file.parent()) else { return true };
        let Ok(entries) = fs::read_dir(parent.join(name)) else { return true };
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| picks::extension(file) == Some("conf") && !file.is_dir());
        files.sort();
        let mut loads = true;
        for file in files {
            let read = fs::read(&file).ok().and_then(|bytes| self.read(file.to_string_lossy().into_owned(), &bytes));
            match read {
                Some(document) => {
                    let value = self.documents[document].value.clone();
                    plugins.push(Plugin { document, path: String::new(), value });
                }
                None => loads = false,
            }
        }
        loads
    }

    fn check_name(&mut self, document: usize) -> String {
        let name = match self.documents[document].member("name") {
            Some(Value::String(name)) => name.clone(),
            Some(other) => {
                let message = format!("name: found {}", other.kind());
                self.tell("wrong-type", document, "name", message).expected = "a string".to_owned();
                return String::new();
            }
            None => String::new(),
        };
        let problem = match NetworkName::parse(&name) {
            Err(error) => error.msg.clone(),
            Ok(_) if name.len() > NAME_MAX => format!("a name of {} bytes", name.len()),
            Ok(_) => return name,
        };
        self.tell("invalid-name", document, "name", problem).expected =
            format!("at most {NAME_MAX} letters, digits, \"_\", \".\" and \"-\"");
        name
    }

    /// The version that its plugins are called with; empty where that is none that could be.
    fn check_version(&mut self, document: usize, chosen: &str) -> String {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let mut given: Vec<(String, String)> = vec![];
        let one = self.documents[document].member("cniVersion").and_then(text).filter(|version| !version.is_empty());
        given.extend(one.map(|version| ("cniVersion".to_owned(), version)));
        if let Some(Value::Array(versions)) = self.documents[document].member("cniVersions") {
            let versions = versions.iter().enumerate();
            given.extend(versions.filter_map(|(i, version)| Some((format!("cniVersions[{i}]"), text(version)?))));
        }
        for (path, version) in &given {
            let is_to_come = match (version::Number::parse(version), version::Number::parse(version::CURRENT)) {
                (Ok(number), Ok(newest)) => number > newest,
                _ => false,
            };
            // A list may name versions to come, as long as one of today is with them.
            if !version::ALL.contains(&version.as_str()) && !(is_to_come && version != chosen) {
                let message = format!("{path}: {version:?} is no version that is spoken here");
                self.tell("unknown-version", document, path, message).expected = version::ALL.join(", ");
            }
        }
        if given.is_empty()
            && self.documents[document].member("cniVersion").is_none_or(|version| version.as_str() == Some(""))
        {
            let message = format!("there is no cniVersion, which means {}", version::ABSENT);
            self.tell("no-version", document, "cniVersion", message).hint =
                format!("the newest is {}", version::CURRENT);
            return version::ABSENT.to_owned();
        }
        if version::ALL.contains(&chosen) { chosen.to_owned() } else { String::new() }
    }

    fn has(&self, document: usize, key: &str) -> bool {
        self.documents[document].member(key).is_some()
    }

    /// What cannot work in any place but another one.
    fn check_order(&mut self, plugins: &[Plugin]) {
        for (i, plugin) in plugins.iter().enumerate() {
            let Some(entry) = self.own(plugin.text("type")) else { continue };
            let (message, hint) = match entry.kind {
                Kind::Meta if i == 0 => (
                    format!("{} changes what another plugin made, and is the first", entry.name),
                    "a plugin that makes an interface goes before it",
                ),
                Kind::Ipam => (
                    format!("{} gives addresses to another plugin, and is one of the list", entry.name),
                    "it belongs into \"ipam\" of a plugin that makes an interface",
                ),
                _ => continue,
            };
            self.tell("order", plugin.document, &plugin.at("type"), message).hint = hint.to_owned();
        }
    }

    fn own(&self, kind: &str) -> Option<&'static Entry> {
        self.plugins.iter().find(|entry| entry.name == kind)
    }

    fn check_plugins(&mut self, mut network: Network, version: &str) -> usize {
        for plugin in &network.plugins {
            network.is_served &= self.check_plugin(plugin, &network.name, version);
        }
        self.networks.push(network);
        self.networks.len() - 1
    }

    /// Whether the plugin is there and speaks the version.
    fn check_plugin(&mut self, plugin: &Plugin, network: &str, version: &str) -> bool {
        if !matches!(plugin.value, Value::Object(_)) {
            let message = format!("{}: found {}", plugin.path, plugin.value.kind());
            self.tell("wrong-type", plugin.document, &plugin.path, message).expected = "an object".to_owned();
            return false;
        }
        let mut rest = Rest { value: plugin.value.clone(), removed: vec![] };
        self.mistakes(plugin, &mut rest, &|value| {
            PluginConfig::parse(value.to_text().as_bytes()).map(drop).map_err(|error| {
                match error.msg.trim_start_matches("error parsing configuration: ") {
                    "missing 'type'" => Error::config("type", "missing, expected the name of a plugin"),
                    problem => Error::new(error.code, problem),
                }
            })
        });
        for (key, span) in self.keys(plugin.document, &plugin.path) {
            if RESERVED.iter().any(|reserved| key.eq_ignore_ascii_case(reserved)) || key.starts_with("cni.dev/") {
                let path = plugin.at(&key);
                let message = format!("{path} is for runtimes to write");
                self.tell_at("reserved-key", plugin.document, span, &path, message).hint = "remove it".to_owned();
            }
        }
        let kind = plugin.text("type");
        if kind.is_empty() {
            return false;
        }
        let is_served = self.check_program(plugin, "type", kind, version);
        if let Some(entry) = self.own(kind) {
            self.check_typed(plugin, entry, rest, network, version);
        }
        is_served
    }

    fn keys(&self, document: usize, path: &str) -> Vec<(String, Range<usize>)> {
        self.documents[document].keys(path)
    }

    /// What the plugin's own types and checks say, and which of its keys nobody reads.
    fn check_typed(&mut self, plugin: &Plugin, entry: &'static Entry, mut rest: Rest, network: &str, version: &str) {
        let mut entries = vec![entry];
        let ipam = plugin.ipam_type();
        if entry.kind == Kind::Main && !ipam.is_empty() {
            self.check_program(plugin, "ipam.type", ipam, version);
            match self.own(ipam) {
                Some(other) if other.kind != Kind::Ipam => {
                    let path = plugin.at("ipam.type");
                    let message = format!("{path}: {ipam:?} is a {} plugin", other.kind.as_str());
                    self.tell("wrong-ipam", plugin.document, &path, message).expected = "an ipam plugin".to_owned();
                }
                own => entries.extend(own),
            }
        }
        let is_all_known = entry.kind != Kind::Main || ipam.is_empty() || entries.len() > 1;
        let Ok(name) = NetworkName::parse(network).or_else(|_| NetworkName::parse("network")) else { return };
        let version = if version.is_empty() { version::CURRENT } else { version };
        rest.value.set("name", Value::String(name.to_string()));
        rest.value.set("cniVersion", Value::String(version.to_owned()));
        if rest.value.get("runtimeConfig").is_none() {
            rest.value.set("runtimeConfig", Value::Object(vec![])); // so that it is told what is read of it
        }
        let observer = Rc::new(Observer::default());
        let (plugins, path, env) = (self.plugins, self.path.clone(), self.env.with("CNI_IFNAME", "eth0"));
        for entry in entries {
            self.mistakes(plugin, &mut rest, &|value| {
                let config = Config {
                    text: vec![],
                    value: value.clone(),
                    name: name.clone(),
                    version: version.to_owned(),
                    observer: Some(observer.clone()),
                };
                entry.validate(&Context::new(plugins, &config, &env, "", path.clone()))
            });
        }
        let read = keys_that_are_read(observer.take());
        for (path, keys) in &read {
            let mut known = keys.clone();
            let is_free = FREE.iter().any(|free| path.starts_with(free));
            if path == "ipam" {
                known.push("type");
            }
            if path.is_empty() {
                known.extend(PLUGIN_KEYS.iter().filter(|key| **key != "ipam" || entry.kind == Kind::Main));
            }
            let at = if path.is_empty() { plugin.path.clone() } else { plugin.at(path) };
            let of = if path.starts_with("ipam") { ipam } else { entry.name };
            self.unknown_keys(plugin.document, &at, &known, of, !is_free);
        }
        if is_all_known {
            let capabilities = read.iter().find(|(path, _)| path == "runtimeConfig");
            self.check_capabilities(
                plugin,
                entry.name,
                capabilities.map(|(_, keys)| keys.as_slice()).unwrap_or_default(),
            );
        }
    }

    /// Declared capabilities that are not read, and what works by a capability only.
    fn check_capabilities(&mut self, plugin: &Plugin, name: &str, read: &[&str]) {
        let mut declared = vec![];
        for (key, span) in self.keys(plugin.document, &plugin.at("capabilities")) {
            let path = plugin.at(&format!("capabilities.{key}"));
            if plugin.value.get("capabilities").and_then(|all| all.get(&key)) != Some(&Value::Bool(true)) {
                continue;
            }
            if !read.contains(&key.as_str()) {
                let hint = match did_you_mean(nearest(&key, read.iter().copied())) {
                    near if near.is_empty() && !read.is_empty() => format!("it reads {}", read.join(", ")),
                    near => near,
                };
                let message = format!("{path}: {name} does not read this capability");
                self.tell_at("unused-capability", plugin.document, span, &path, message).hint = hint;
            }
            declared.push(key);
        }
        let is_given = |key: &str| plugin.value.get(key).is_some();
        let (capability, effect) = match name {
            "portmap" => ("portMappings", "no port is ever published"),
            "bandwidth" if !is_given("ingressRate") && !is_given("egressRate") => {
                ("bandwidth", "nothing is ever limited")
            }
            _ => return,
        };
        if !declared.iter().any(|key| key == capability) && !is_given("runtimeConfig") {
            let message = format!("{name} has not the capability {capability}: {effect}");
            self.tell("missing-capability", plugin.document, &plugin.at("type"), message).hint =
                format!("add \"capabilities\": {{\"{capability}\": true}}");
        }
    }

    /// Every mistake that `check` finds: where one is, its value is taken out and it is asked again. What it then says of
    /// the same place, such as that it is missing, follows from that.
    fn mistakes(&mut self, plugin: &Plugin, rest: &mut Rest, check: &dyn Fn(&Value) -> Result<()>) {
        for _ in 0..ROUNDS {
            let Err(error) = check(&rest.value) else { return };
            let is_path = |head: &str| !head.contains(' ') && head.starts_with(|c: char| c.is_ascii_lowercase());
            let (path, problem) = match error.msg.split_once(": ") {
                Some((path, problem)) if is_path(path) => (path, problem),
                _ => ("", error.msg.as_str()),
            };
            let follows = rest.removed.iter().filter(|gone| touches(gone, path)).min_by_key(|gone| gone.len());
            let mut gone = match follows {
                // It has not helped, so what stands above goes as well.
                Some(gone) => parent(gone),
                None => {
                    self.tell_mistake(plugin, path, problem, &error);
                    path
                }
            }
            .to_owned();
            while !gone.is_empty() && !take_out(&mut rest.value, &gone) && follows.is_some() {
                gone = parent(&gone).to_owned();
            }
            if gone.is_empty() {
                return;
            }
            rest.removed.push(gone);
        }
    }

    fn tell_mistake(&mut self, plugin: &Plugin, path: &str, problem: &str, error: &Error) {
        let at = if path.is_empty() { plugin.path.clone() } else { plugin.at(path) };
        let (problem, expected) = match problem.strip_prefix("expected ").and_then(|rest| rest.split_once(", found ")) {
            Some((expected, found)) => (format!("found {found}"), expected),
            None => {
                let (problem, expected) = problem.rsplit_once(", expected ").unwrap_or((problem, ""));
                (problem.to_owned(), expected)
            }
        };
        let message = if at.is_empty() { problem } else { format!("{at}: {problem}") };
        let code = if error.code == Code::DECODE { "wrong-type" } else { "invalid-value" };
        let finding = self.tell(code, plugin.document, &at, message);
        (finding.expected, finding.hint) = (expected.to_owned(), error.details.clone());
    }

    /// Whether the program `kind` that `key` names is where a runtime looks, and speaks the version.
    fn check_program(&mut self, plugin: &Plugin, key: &str, kind: &str, version: &str) -> bool {
        let path = plugin.at(key);
        let own = self.own(kind);
        let of_own = |entry: &Entry| entry.versions.iter().map(|version| (*version).to_owned()).collect();
        let spoken: Vec<String> = match (delegate::find(kind, &self.path), own) {
            (Ok(program), Some(entry)) if delegate::is_this_binary(&program) => of_own(entry),
            (Ok(program), _) => match self.ask(&program) {
                Ok(versions) => versions,
                Err(error) => {
                    let message = format!("{path}: {} does not tell its versions: {}", program.display(), error.msg);
                    self.tell("no-answer", plugin.document, &path, message);
                    return false;
                }
            },
            (Err(error), own) => {
                if !self.missing.iter().any(|other| other == kind) {
                    self.missing.push(kind.to_owned());
                    let (code, hint) = match own {
                        Some(_) => ("not-on-path", "`cni-multi net` has it, other runtimes do not find it".to_owned()),
                        None => ("no-plugin", did_you_mean(nearest(kind, self.plugins.iter().map(|entry| entry.name)))),
                    };
                    self.tell(code, plugin.document, &path, format!("{path}: {}", error.msg)).hint = hint;
                }
                match own {
                    Some(entry) => of_own(entry),
                    None => return false,
                }
            }
        };
        let speaks = version.is_empty() || spoken.iter().any(|spoken| spoken == version);
        if !speaks {
            let message = format!("{path}: {kind} does not speak version {version}");
            self.tell("version-of-plugin", plugin.document, &path, message).expected = spoken.join(", ");
        }
        speaks && !version.is_empty()
    }

    /// The versions of another program, which is asked once.
    fn ask(&mut self, program: &Path) -> Result<Vec<String>> {
        if let Some((_, answer)) = self.answers.iter().find(|(asked, _)| asked == program) {
            return answer.clone();
        }
        let answer = delegate::versions(program, self.env);
        self.answers.push((program.to_owned(), answer.clone()));
        answer
    }

    /// Keys of the object at `path` that are none of `known`. Where others are free, only those that are nearly one.
    fn unknown_keys(&mut self, document: usize, path: &str, known: &[&str], of: &str, is_complete: bool) {
        for (key, span) in self.keys(document, path) {
            let is = |known: &&str| if of == A_LIST { **known == key } else { known.eq_ignore_ascii_case(&key) };
            if known.iter().any(is) || NOTES_OF_RUNTIMES.contains(&key.as_str()) || key.starts_with("cni.dev/") {
                continue;
            }
            let near = nearest(&key, known.iter().copied());
            if near.is_some() || is_complete {
                let at = below(path, &key);
                let message = format!("{at} is no key of {of}");
                self.tell_at("unknown-key", document, span, &at, message).hint = did_you_mean(near);
            }
        }
    }

    /// Networks of one name in one directory, from `first` on.
    fn check_names(&mut self, first: usize) {
        for i in first..self.networks.len() {
            let Network { name, document, .. } = &self.networks[i];
            let other = self.networks[first..i].iter().find(|other| other.name == *name && !name.is_empty());
            if let Some(other) = other {
                let (document, message) =
                    (*document, format!("network {name:?} is in {} as well", self.documents[other.document].file));
                self.tell("duplicate-name", document, "name", message).hint = "a runtime takes one of them".to_owned();
            }
        }
    }

    /// Where a value of a plugin is, as `file:line`.
    pub fn place(&self, plugin: &Plugin, path: &str) -> String {
        let document = &self.documents[plugin.document];
        format!("{}:{}", document.file, document.position(document.find(path).value.start).0)
    }

    fn errors(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_error()).count()
    }

    /// A finding about the value at `path`.
    pub fn tell(&mut self, code: &'static str, document: usize, path: &str, message: String) -> &mut Finding {
        let span = self.documents[document].find(path).whole(&self.documents[document].text);
        self.tell_at(code, document, span, path, message)
    }

    /// A finding about a piece of the text.
    fn tell_at(
        &mut self,
        code: &'static str,
        document: usize,
        span: Range<usize>,
        path: &str,
        message: String,
    ) -> &mut Finding {
        self.findings.push(Finding::new(code, &self.documents[document], span, path, message));
        let last = self.findings.len() - 1;
        &mut self.findings[last]
    }

    fn tell_of_file(&mut self, code: &'static str, file: &Path, message: &str) {
        self.findings.push(Finding::of_file(code, file.to_string_lossy().into_owned(), message.to_owned()));
    }
}

/// A plugin's object without the values that were found wrong, and their paths.
struct Rest {
    value: Value,
    removed: Vec<String>,
}

/// The structs that were decoded, each with every key that some type reads there.
fn keys_that_are_read(told: Vec<(String, Expected)>) -> Vec<(String, Vec<&'static str>)> {
    let mut read: Vec<(String, Vec<&'static str>)> = vec![];
    for (path, expected) in told {
        let Expected::Keys(keys) = expected else { continue };
        match read.iter_mut().find(|(other, _)| *other == path) {
            Some((_, known)) => {
                known.extend(keys.iter().filter(|key| !known.contains(key)).copied().collect::<Vec<_>>())
            }
            None => read.push((path, keys.to_vec())),
        }
    }
    read
}

fn did_you_mean(near: Option<&str>) -> String {
    near.map(|near| format!("did you mean {near:?}?")).unwrap_or_default()
}

/// Whether one path is the other or leads to it.
fn touches(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The path without its last step.
fn parent(path: &str) -> &str {
    path.rfind(['.', '[']).map_or("", |end| &path[..end])
}

/// Makes the value at this path null; false where there is none.
fn take_out(value: &mut Value, path: &str) -> bool {
    if path.is_empty() {
        return !matches!(std::mem::take(value), Value::Null);
    }
    let step = path.strip_prefix('.').unwrap_or(path);
    match value {
        Value::Array(items) => {
            let Some((index, rest)) = step.strip_prefix('[').and_then(|step| step.split_once(']')) else {
                return false;
            };
            let item = index.parse().ok().and_then(|index: usize| items.get_mut(index));
            item.is_some_and(|item| take_out(item, rest))
        }
        Value::Object(pairs) => {
            let mut taken = false;
            for (key, value) in pairs {
                let (Some(head), Some(rest)) = (step.get(..key.len()), step.get(key.len()..)) else { continue };
                if head.eq_ignore_ascii_case(key) && (rest.is_empty() || rest.starts_with(['.', '['])) {
                    taken |= take_out(value, rest);
                }
            }
            taken
        }
        _ => false,
    }
}
