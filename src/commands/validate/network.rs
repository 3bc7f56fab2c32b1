//! What can be said of one network's file.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::document::{Document, below};
use super::finding::{Finding, Note};
use super::nearest::nearest;
use super::picks::{self, Pick};
use super::together;
use crate::cni::attachment::NetworkName;
use crate::cni::conf::Config;
use crate::cni::decode::{Expected, Observer};
use crate::cni::delegate;
use crate::cni::json::Value;
use crate::cni::version;
use crate::error::{Code, Error, Result};
use crate::plugin::{Context, Entry, Kind};
use crate::runtime::chain::Runtime;
use crate::runtime::list::{NetworkList, PluginConfig, file_names};
use crate::sort::sort;

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
        if key.is_empty() { self.path.clone() } else { below(&self.path, key) }
    }
}

/// Everything that was looked at so far.
pub struct Checker<'a> {
    runtime: Runtime<'a>,
    /// Every file.
    pub documents: Vec<Document>,
    /// Every network.
    pub networks: Vec<Network>,
    findings: Vec<Finding>,
    /// The plugins that were looked for, and the versions of those that told them.
    asked: Vec<(String, Option<String>)>,
}

impl<'a> Checker<'a> {
    /// A checker that looks for plugins where this runtime does.
    pub fn new(runtime: Runtime<'a>) -> Checker<'a> {
        Checker { runtime, documents: vec![], networks: vec![], findings: vec![], asked: vec![] }
    }

    /// Looks at what lies between the networks, and returns every finding, sorted by place.
    pub fn finish(mut self) -> Vec<Finding> {
        together::check(&mut self);
        sort(&mut self.findings, |a, b| (&a.file, a.place) < (&b.file, b.place));
        self.findings
    }

    /// Looks at every file of a directory.
    pub fn check_dir(&mut self, dir: &Path) -> Vec<Pick> {
        let files = match files_of(dir) {
            Ok(files) => files,
            Err(error) => {
                self.tell_of_file("unreadable", dir, &error.msg);
                return vec![];
            }
        };
        let (first, mut read) = (self.networks.len(), vec![]);
        for file in files {
            let name = file.to_string_lossy().to_ascii_lowercase();
            if picks::extension(&file).is_some() {
                let network = self.check_file(&file);
                read.push((file, network));
            } else if name.contains(".conf") || name.contains(".json") {
                self.tell_of_file("not-read", &file, "no runtime reads a file of this name");
            }
        }
        if read.is_empty() {
            self.tell_of_file("no-files", dir, "there is no network configuration");
        }
        self.check_names(first);
        picks::of_dir(&read, &self.networks)
    }

    /// Looks at one file; returns the network in it.
    pub fn check_file(&mut self, file: &Path) -> Option<usize> {
        let bytes = self.bytes_of(file)?;
        self.check(file.to_string_lossy().into_owned(), &bytes)
    }

    fn bytes_of(&mut self, file: &Path) -> Option<Vec<u8>> {
        let told = |error| self.tell_of_file("unreadable", file, &Error::io("open", &error).msg);
        fs::read(file).map_err(told).ok()
    }

    /// Looks at a text as the file of this name, or, where that says nothing, as what it seems to be.
    pub fn check(&mut self, file: String, bytes: &[u8]) -> Option<usize> {
        let document = self.read(file, bytes)?;
        let (is_list, text) = (self.documents[document].is_list, self.documents[document].text.clone().into_bytes());
        let loaded = if is_list { NetworkList::parse(text) } else { NetworkList::of_single(text) };
        let before = self.errors();
        let network = self.check_network(document, loaded.as_ref().map_or("", |list| &list.version));
        // Whatever it is, libcni's word goes.
        if let (Err(error), true) = (&loaded, self.errors() == before) {
            let path = LIST_KEYS.into_iter().find(|key| error.msg.contains(key)).unwrap_or_default();
            self.tell(Note { code: "not-loaded", document, path, message: &[&error.msg], ..NOTHING });
        }
        self.networks[network].loads &= loaded.is_ok();
        Some(network)
    }

    /// The document of a text, if it is an object.
    fn read(&mut self, file: String, bytes: &[u8]) -> Option<usize> {
        let extension = picks::extension(Path::new(&file));
        let (mut read, problem) = Document::parse(file, bytes);
        read.is_list = extension.map_or(read.member("plugins").is_some(), |extension| extension == "conflist");
        let (kind, is_empty) = (read.value.kind(), read.text.trim_ascii().is_empty());
        self.documents.push(read);
        let document = self.documents.len() - 1;
        if let Some((offset, problem)) = problem {
            let problem = if is_empty { "the file is empty" } else { &problem };
            let note = Note { code: "syntax", document, message: &[problem], ..NOTHING };
            self.findings.push(Finding::at(&note, &self.documents[document], offset));
            return None;
        }
        if kind != "object" {
            self.tell_wrong_type(document, "", kind, "an object");
            return None;
        }
        for path in self.documents[document].duplicates() {
            let (path, hint): (&str, &[&str]) = (&path, &["the last one counts"]);
            let message = &["the key stands twice"];
            self.tell(Note { code: "duplicate-key", document, path, is_key: true, message, hint, ..NOTHING });
        }
        Some(document)
    }

    fn check_network(&mut self, document: usize, version: &str) -> usize {
        let of = &self.documents[document];
        let (is_list, has_type, has_plugins) =
            (of.is_list, of.member("type").is_some(), of.member("plugins").is_some());
        let network = |name, plugins| Network { name, document, plugins, loads: true, is_served: true };
        if !is_list && has_plugins {
            let message = &["a list of plugins in a file that is read as one plugin"];
            let hint = &["name the file .conflist"];
            self.tell(Note {
                code: "list-in-plugin",
                document,
                path: "plugins",
                is_key: true,
                message,
                hint,
                ..NOTHING
            });
            self.networks.push(Network { loads: false, ..network(String::new(), vec![]) });
            return self.networks.len() - 1;
        }
        let name = self.check_name(document);
        let version = self.check_version(document, version);
        let mut network = network(name, vec![]);
        if !is_list {
            let value = self.documents[document].value.clone();
            network.plugins.push(Plugin { document, path: String::new(), value });
        } else if has_type && !has_plugins {
            let (message, hint) = (&["a single plugin in a file that is read as a list"], &["name the file .conf"]);
            self.tell(Note { code: "plugin-in-list", document, path: "type", message, hint, ..NOTHING });
            network.loads = false;
        } else {
            self.unknown_keys(document, "", &LIST_KEYS, A_LIST, true);
            self.add_plugins(&mut network);
            self.check_order(&network.plugins);
        }
        for plugin in &network.plugins {
            network.is_served &= self.check_plugin(plugin, &network.name, &version);
        }
        self.networks.push(network);
        self.networks.len() - 1
    }

    /// The plugins in the list, and those that packages drop into the directory that is named like the network.
    fn add_plugins(&mut self, network: &mut Network) {
        let document = network.document;
        if let Some(Value::Array(items)) = self.documents[document].member("plugins") {
            let plugin = |(i, item): (usize, &Value)| Plugin {
                document,
                path: ["plugins[", &i.to_string(), "]"].concat(),
                value: item.clone(),
            };
            network.plugins.extend(items.iter().enumerate().map(plugin));
        }
        let only_inlined = match self.documents[document].member("loadOnlyInlinedPlugins") {
            Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
            other => is_true(other),
        };
        let dir = Path::new(&self.documents[document].file).parent().map(|parent| parent.join(&network.name));
        let files =
            dir.filter(|_| !only_inlined && NetworkName::parse(&network.name).is_ok()).map(|dir| files_of(&dir));
        for file in files.and_then(Result::ok).unwrap_or_default() {
            if picks::extension(&file) != Some("conf") {
                continue;
            }
            let bytes = self.bytes_of(&file);
            match bytes.and_then(|bytes| self.read(file.to_string_lossy().into_owned(), &bytes)) {
                Some(document) => {
                    let value = self.documents[document].value.clone();
                    network.plugins.push(Plugin { document, path: String::new(), value });
                }
                None => network.loads = false,
            }
        }
        if network.plugins.is_empty() {
            self.tell(Note { code: "no-plugins", document, path: "plugins", message: &["there are none"], ..NOTHING });
            network.loads = false;
        }
    }

    fn check_name(&mut self, document: usize) -> String {
        let name = match self.documents[document].member("name") {
            Some(Value::String(name)) => name.clone(),
            Some(other) => {
                let kind = other.kind();
                self.tell_wrong_type(document, "name", kind, "a string");
                return String::new();
            }
            None => String::new(),
        };
        let problem = match NetworkName::parse(&name) {
            Err(error) => error.msg.clone(),
            Ok(_) if name.len() > NAME_MAX => "the name is too long".to_owned(),
            Ok(_) => return name,
        };
        let expected = "at most 200 letters, digits, \"_\", \".\" and \"-\"";
        self.tell(Note { code: "invalid-name", document, path: "name", message: &[&problem], expected, ..NOTHING });
        name
    }

    /// The version that its plugins are called with; empty where that is none that could be.
    fn check_version(&mut self, document: usize, chosen: &str) -> String {
        let mut given = vec!["cniVersion".to_owned()];
        if let Some(Value::Array(versions)) = self.documents[document].member("cniVersions") {
            given.extend((0..versions.len()).map(|i| ["cniVersions[", &i.to_string(), "]"].concat()));
        }
        let mut is_given = false;
        for path in &given {
            let place = self.documents[document].find(path);
            let text = self.documents[document].text.get(place.value).unwrap_or_default();
            let version = text.trim_matches('"').to_owned();
            if !place.is_exact || version.is_empty() {
                continue;
            }
            is_given = true;
            let is_to_come = match (version::Number::parse(&version), version::Number::parse(version::CURRENT)) {
                (Ok(number), Ok(newest)) => number > newest,
                _ => false,
            };
            // A list may name versions to come, as long as one of today is with them.
            let is_passed_over = is_to_come && version != chosen && !chosen.is_empty();
            if text.starts_with('"') && !version::ALL.contains(&version.as_str()) && !is_passed_over {
                let (message, expected): (&[&str], _) = (&["no version that is spoken here"], &version::ALL.join(", "));
                self.tell(Note { code: "unknown-version", document, path, message, expected, ..NOTHING });
            }
        }
        if !is_given {
            let (message, hint): (&[&str], &[&str]) =
                (&["missing, which means ", version::ABSENT], &["the newest is ", version::CURRENT]);
            self.tell(Note { code: "no-version", document, path: "cniVersion", message, hint, ..NOTHING });
            return version::ABSENT.to_owned();
        }
        if version::ALL.contains(&chosen) { chosen.to_owned() } else { String::new() }
    }

    /// What cannot work in any place but another one.
    fn check_order(&mut self, plugins: &[Plugin]) {
        for (i, plugin) in plugins.iter().enumerate() {
            let Some(entry) = self.own(plugin.text("type")) else { continue };
            let (message, hint) = match entry.kind {
                Kind::Meta if i == 0 => (
                    " changes what another plugin made, and is the first",
                    "a plugin that makes an interface goes before it",
                ),
                Kind::Ipam => (
                    " gives addresses to another plugin, and is one of the list",
                    "it belongs into \"ipam\" of a plugin that makes an interface",
                ),
                _ => continue,
            };
            let (document, path) = (plugin.document, &plugin.at("type"));
            let (message, hint): (&[&str], &[&str]) = (&[entry.name, message], &[hint]);
            self.tell(Note { code: "order", document, path, message, hint, ..NOTHING });
        }
    }

    fn own(&self, kind: &str) -> Option<&'static Entry> {
        self.runtime.plugins.iter().find(|entry| entry.name == kind)
    }

    /// Whether the plugin is there and speaks the version.
    fn check_plugin(&mut self, plugin: &Plugin, network: &str, version: &str) -> bool {
        let document = plugin.document;
        if plugin.value.kind() != "object" {
            self.tell_wrong_type(document, &plugin.path, plugin.value.kind(), "an object");
            return false;
        }
        let mut rest = Rest { value: plugin.value.clone(), removed: vec![] };
        self.mistakes(plugin, &mut rest, &|value| {
            PluginConfig::parse(value.to_text().as_bytes()).map(drop).map_err(|error| {
                match error.msg.trim_start_matches("error parsing configuration: ") {
                    "missing 'type'" => Error::new(error.code, "type: missing, expected the name of a plugin"),
                    problem => Error::new(error.code, problem),
                }
            })
        });
        for key in self.keys(document, &plugin.path) {
            if RESERVED.iter().any(|reserved| key.eq_ignore_ascii_case(reserved)) || key.starts_with("cni.dev/") {
                let (path, message) = (&plugin.at(&key), &["runtimes write this key"]);
                let hint = &["remove it"];
                self.tell(Note { code: "reserved-key", document, path, is_key: true, message, hint, ..NOTHING });
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

    fn keys(&self, document: usize, path: &str) -> Vec<String> {
        self.documents[document].keys(path).into_iter().map(str::to_owned).collect()
    }

    /// What the plugin's own types and checks say, and which of its keys nobody reads.
    fn check_typed(&mut self, plugin: &Plugin, entry: &'static Entry, mut rest: Rest, network: &str, version: &str) {
        let ipam = if entry.kind == Kind::Main { plugin.ipam_type() } else { "" };
        let mut of_ipam = None;
        if !ipam.is_empty() {
            self.check_program(plugin, "ipam.type", ipam, version);
            of_ipam = self.own(ipam);
            if let Some(other) = of_ipam.filter(|other| other.kind != Kind::Ipam) {
                let (document, path) = (plugin.document, &plugin.at("ipam.type"));
                let (message, expected) = (&[ipam, " is a ", other.kind.as_str(), " plugin"], "an ipam plugin");
                self.tell(Note { code: "wrong-ipam", document, path, message, expected, ..NOTHING });
                of_ipam = None;
            }
        }
        let version = if version.is_empty() { version::CURRENT } else { version };
        let observer = Rc::new(Observer::default());
        let plugins = self.runtime.plugins;
        if rest.value.get("runtimeConfig").is_none() {
            rest.value.set("runtimeConfig", Value::Object(vec![])); // so that it is told what is read of it
        }
        for entry in [Some(entry), of_ipam].into_iter().flatten() {
            self.mistakes(plugin, &mut rest, &|value| {
                try_out(entry, plugins, value.clone(), network, version, &observer)
            });
        }
        let read = keys_that_are_read(observer.take());
        for (path, keys) in &read {
            let mut known = keys.clone();
            match path.as_str() {
                "" => known.extend(PLUGIN_KEYS.iter().filter(|key| **key != "ipam" || entry.kind == Kind::Main)),
                "ipam" => known.push("type"),
                _ => (),
            }
            let of = if path.starts_with("ipam") { ipam } else { entry.name };
            let is_complete = !FREE.iter().any(|free| path.starts_with(free));
            self.unknown_keys(plugin.document, &plugin.at(path), &known, of, is_complete);
        }
        if ipam.is_empty() || of_ipam.is_some() {
            let read = read.iter().find(|(path, _)| path == "runtimeConfig");
            self.check_capabilities(plugin, entry.name, read.map_or(&[], |(_, keys)| keys));
        }
    }

    /// Declared capabilities that are not read, and what works by a capability only.
    fn check_capabilities(&mut self, plugin: &Plugin, name: &str, read: &[&str]) {
        let document = plugin.document;
        let declared = plugin.value.get("capabilities");
        let is_declared = |key: &str| is_true(declared.and_then(|all| all.get(key)));
        for key in self.keys(document, &plugin.at("capabilities")) {
            if !is_declared(&key) || read.contains(&key.as_str()) {
                continue;
            }
            let (known, near) = (read.join(", "), nearest(&key, read.iter().copied()));
            let hint: [&str; 3] = match near {
                None if read.is_empty() => Default::default(),
                None => ["it reads ", &known, ""],
                Some(near) => did_you_mean(near),
            };
            let path = &plugin.at(&below("capabilities", &key));
            let (message, hint): (&[&str], &[&str]) = (&[name, " does not read this capability"], &hint);
            self.tell(Note { code: "unused-capability", document, path, is_key: true, message, hint, ..NOTHING });
        }
        let is_given = |key: &str| plugin.value.get(key).is_some();
        let (capability, effect) = match name {
            "portmap" => ("portMappings", ", so no port is ever published"),
            "bandwidth" if !is_given("ingressRate") && !is_given("egressRate") => {
                ("bandwidth", ", so nothing is ever limited")
            }
            _ => return,
        };
        if !is_declared(capability) && !is_given("runtimeConfig") {
            let (path, message) = (&plugin.at("type"), &[name, " has not the capability ", capability, effect]);
            let hint = &["add \"capabilities\": {\"", capability, "\": true}"];
            self.tell(Note { code: "missing-capability", document, path, message, hint, ..NOTHING });
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
            let is_new = follows.is_none();
            // Where taking it out has not helped, what stands above goes as well.
            let mut gone = follows.map_or(path, |gone| parent(gone)).to_owned();
            if is_new {
                self.tell_mistake(plugin, path, problem, &error);
            }
            while !gone.is_empty() && !take_out(&mut rest.value, &gone) && !is_new {
                gone.truncate(parent(&gone).len());
            }
            if gone.is_empty() {
                return;
            }
            rest.removed.push(gone);
        }
    }

    fn tell_mistake(&mut self, plugin: &Plugin, path: &str, problem: &str, error: &Error) {
        let (message, expected) = match problem.strip_prefix("expected ").and_then(|rest| rest.split_once(", found ")) {
            Some((expected, found)) => (["found ", found], expected),
            None => {
                let (problem, expected) = problem.rsplit_once(", expected ").unwrap_or((problem, ""));
                ([problem, ""], expected)
            }
        };
        let code = if error.code == Code::DECODE { "wrong-type" } else { "invalid-value" };
        let (document, path, hint) = (plugin.document, &plugin.at(path), &[error.details.as_str()]);
        self.tell(Note { code, document, path, message: &message, expected, hint, ..NOTHING });
    }

    /// Whether the program `kind` that `key` names is where a runtime looks, and speaks the version.
    fn check_program(&mut self, plugin: &Plugin, key: &str, kind: &str, version: &str) -> bool {
        let (document, path) = (plugin.document, &plugin.at(key));
        let spoken = match self.asked.iter().find(|(asked, _)| asked == kind) {
            Some((_, spoken)) => spoken.clone(),
            None => {
                let spoken = self.ask(document, path, kind);
                self.asked.push((kind.to_owned(), spoken.clone()));
                spoken
            }
        };
        let Some(spoken) = spoken else { return false };
        let speaks = version.is_empty() || spoken.split(", ").any(|spoken| spoken == version);
        if !speaks {
            let message = &[kind, " does not speak version ", version];
            self.tell(Note { code: "version-of-plugin", document, path, message, expected: &spoken, ..NOTHING });
        }
        speaks && !version.is_empty()
    }

    /// The versions of a plugin, where it is there and tells them.
    fn ask(&mut self, document: usize, path: &str, kind: &str) -> Option<String> {
        if let Err(error) = delegate::find(kind, &self.runtime.directories()) {
            let near = nearest(kind, self.runtime.plugins.iter().map(|entry| entry.name));
            let (code, hint) = match (self.own(kind), near) {
                (Some(_), _) => ("not-on-path", ["`cni-multi net` has it, other runtimes do not find it", "", ""]),
                (None, Some(near)) => ("no-plugin", did_you_mean(near)),
                (None, None) => ("no-plugin", Default::default()),
            };
            self.tell(Note { code, document, path, message: &[&error.msg], hint: &hint, ..NOTHING });
            return self.own(kind).map(|entry| entry.versions.join(", "));
        }
        match self.runtime.versions(kind) {
            Ok(versions) => Some(versions.join(", ")),
            Err(error) => {
                let message = &["it does not tell its versions: ", &error.msg];
                self.tell(Note { code: "no-answer", document, path, message, hint: &[&error.details], ..NOTHING });
                None
            }
        }
    }

    /// Keys of the object at `path` that are none of `known`. Where others are free, only those that are nearly one.
    fn unknown_keys(&mut self, document: usize, path: &str, known: &[&str], of: &str, is_complete: bool) {
        for key in self.keys(document, path) {
            let is = |known: &&str| if of == A_LIST { **known == key } else { known.eq_ignore_ascii_case(&key) };
            if known.iter().any(is) || NOTES_OF_RUNTIMES.contains(&key.as_str()) || key.starts_with("cni.dev/") {
                continue;
            }
            let near = nearest(&key, known.iter().copied());
            if near.is_some() || is_complete {
                let (path, message) = (&below(path, &key), &["no key of ", of]);
                let hint = &near.map(did_you_mean).unwrap_or_default();
                self.tell(Note { code: "unknown-key", document, path, is_key: true, message, hint, ..NOTHING });
            }
        }
    }

    /// Networks of one name in one directory, from `first` on.
    fn check_names(&mut self, first: usize) {
        for i in first..self.networks.len() {
            let Network { name, document, .. } = &self.networks[i];
            let other = self.networks[first..i].iter().find(|other| other.name == *name && !name.is_empty());
            if let Some(other) = other {
                let (document, file) = (*document, self.documents[other.document].file.clone());
                let (message, hint) =
                    (&[&file, " has a network of this name as well"], &["a runtime takes one of them"]);
                self.tell(Note { code: "duplicate-name", document, path: "name", message, hint, ..NOTHING });
            }
        }
    }

    /// Where a value of a plugin is, as `file:line`.
    pub fn place(&self, plugin: &Plugin, path: &str) -> String {
        let document = &self.documents[plugin.document];
        [&document.file, ":", &document.position(document.find(path).value.start).0.to_string()].concat()
    }

    fn errors(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_error()).count()
    }

    /// Takes note of a finding.
    #[inline(never)]
    pub fn tell(&mut self, note: Note<'_>) {
        self.findings.push(Finding::new(&note, &self.documents[note.document]));
    }

    fn tell_wrong_type(&mut self, document: usize, path: &str, found: &str, expected: &str) {
        self.tell(Note { code: "wrong-type", document, path, message: &["found ", found], expected, ..NOTHING });
    }

    fn tell_of_file(&mut self, code: &'static str, file: &Path, message: &str) {
        self.findings.push(Finding::of_file(code, file.to_string_lossy().into_owned(), message));
    }
}

/// What is not said of a finding.
pub const NOTHING: Note<'static> =
    Note { code: "", document: 0, path: "", is_key: false, message: &[], expected: "", hint: &[] };

/// The files of a directory, by name.
fn files_of(dir: &Path) -> Result<Vec<PathBuf>> {
    let names = file_names(dir).map_err(|e| Error::io("open", &e))?;
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}

/// Decodes and checks a plugin's object as ADD does, without doing anything.
pub fn try_out(
    entry: &Entry,
    plugins: &'static [Entry],
    mut value: Value,
    network: &str,
    version: &str,
    observer: &Rc<Observer>,
) -> Result<()> {
    let name = NetworkName::parse(network).or_else(|_| NetworkName::parse("network"))?; // the second one is a name
    value.set("name", Value::text(name.as_str()));
    value.set("cniVersion", Value::text(version));
    let (text, version, observer) = (vec![], version.to_owned(), Some(Rc::clone(observer)));
    let config = Config { text, value, name, version, observer };
    let env = [("CNI_IFNAME".into(), "eth0".into())].into_iter().collect();
    entry.validate(&Context::new(plugins, &config, &env, "", vec![]))
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

fn did_you_mean(near: &str) -> [&str; 3] {
    ["did you mean \"", near, "\"?"]
}

/// Whether a key is given as `true`.
pub fn is_true(value: Option<&Value>) -> bool {
    matches!(value, Some(Value::Bool(true)))
}

/// Whether one path is the other or leads to it.
fn touches(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The path without its last step.
fn parent(path: &str) -> &str {
    path.bytes().rposition(|byte| b".[".contains(&byte)).map_or("", |end| &path[..end])
}

/// Makes the value at this path null; false where there is none.
fn take_out(value: &mut Value, path: &str) -> bool {
    if path.is_empty() {
        return std::mem::take(value).kind() != "null";
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
