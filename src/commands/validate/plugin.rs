//! One plugin's object: the errors of its own types and checks, and the keys that no code reads.

use std::rc::Rc;

use super::checker::{Checker, NOTHING, did_you_mean, is_true};
use super::document::below;
use super::finding::Note;
use super::mistakes::Rest;
use super::nearest::nearest;
use super::network::{A_LIST, Plugin};
use super::trial::{a_result, supplied, try_out};
use crate::cni::decode::{Observer, Shape};
use crate::cni::json::Value;
use crate::cni::version;
use crate::error::Error;
use crate::plugin::{Entry, Kind};
use crate::runtime::list::PluginConfig;

/// The keys that every plugin may have. A single plugin's file also has `name` and `cniVersion`.
const PLUGIN_KEYS: [&str; 7] =
    ["cniVersion", "name", "type", "capabilities", "args", "runtimeConfig", "prevResult"];

/// The keys that runtimes add for themselves.
const NOTES_OF_RUNTIMES: [&str; 5] =
    ["nerdctlID", "nerdctlLabels", "ipRange", "podman_labels", "args"];

/// The keys that the specification reserves for runtimes.
const RESERVED: [&str; 2] = ["runtimeConfig", "prevResult"];

/// The objects in which unknown keys are not mistakes.
const FREE: [&str; 2] = ["args", "runtimeConfig"];

impl Checker<'_> {
    /// Whether the plugin exists and supports the version.
    pub fn check_plugin(&mut self, plugin: &Plugin, network: &str, version: &str) -> bool {
        let document = plugin.document;
        if plugin.value.kind() != "object" {
            self.tell_wrong_type(document, &plugin.path, &plugin.value, "an object");
            return false;
        }
        let mut rest = Rest::new(plugin.value.clone());
        self.mistakes(plugin, &mut rest, &|value| {
            PluginConfig::parse(value.to_text().as_bytes()).map(drop)
        });
        for key in self.keys(document, &plugin.path) {
            if RESERVED.iter().any(|reserved| key.eq_ignore_ascii_case(reserved))
                || key.starts_with("cni.dev/")
            {
                let path = &plugin.at(&key);
                let message = &["runtimes write this key"];
                let hint = &["remove it"];
                self.tell(Note {
                    code: "reserved-key",
                    document,
                    path,
                    is_key: true,
                    message,
                    hint,
                    ..NOTHING
                });
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

    /// Checks the plugin with its own types, and reports keys that no code reads.
    fn check_typed(
        &mut self,
        plugin: &Plugin,
        entry: &'static Entry,
        mut rest: Rest,
        network: &str,
        version: &str,
    ) {
        let observer = Rc::new(Observer::default());
        let plugins = self.runtime.plugins;
        let spoken = if version.is_empty() { version::CURRENT } else { version };
        if rest.value.get("runtimeConfig").is_none() {
            rest.value.set("runtimeConfig", Value::Object(vec![])); // so that reads of it are observed
        }
        if !plugin.is_first {
            rest.value.set("prevResult", a_result(spoken));
        }
        let try_out =
            |entry, value: Value| try_out(entry, plugins, value, network, spoken, &observer);
        let check = |entry, value: &Value| {
            let error = match (try_out(entry, value.clone()), supplied(value)) {
                (Err(error), Some(completed)) => match try_out(entry, completed) {
                    Ok(()) => return Ok(()),
                    Err(other) if is_supplied(&other) => error,
                    Err(other) => other,
                },
                (tried, _) => return tried,
            };
            Err(error)
        };
        self.mistakes(plugin, &mut rest, &|value| check(entry, value));
        let mut told = observer.take();
        let is_ipam = |(path, expected): &(String, Shape)| match expected {
            Shape::Keys(keys) => path.is_empty() && keys.contains(&"ipam"),
            Shape::Kind(_) => false,
        };
        let reads_ipam = entry.kind == Kind::Main && told.iter().any(is_ipam);
        let ipam = if reads_ipam { plugin.ipam_type() } else { "" };
        let of_ipam = self.check_ipam(plugin, ipam, version);
        if let Some(entry) = of_ipam {
            self.mistakes(plugin, &mut rest, &|value| check(entry, value));
            told.extend(observer.take());
        }
        let read = keys_that_are_read(told);
        for (path, keys) in &read {
            let mut known = keys.clone();
            match path.as_str() {
                "" => known.extend(PLUGIN_KEYS),
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

    /// Whether the IPAM plugin of this name exists and is one; its entry, if it is ours.
    fn check_ipam(&mut self, plugin: &Plugin, ipam: &str, version: &str) -> Option<&'static Entry> {
        if ipam.is_empty() {
            return None;
        }
        self.check_program(plugin, "ipam.type", ipam, version);
        let entry = self.own(ipam)?;
        if entry.kind == Kind::Ipam {
            return Some(entry);
        }
        let document = plugin.document;
        let path = &plugin.at("ipam.type");
        let message = &[ipam, " is a ", entry.kind.as_str(), " plugin"];
        let expected = "an ipam plugin";
        self.tell(Note { code: "wrong-ipam", document, path, message, expected, ..NOTHING });
        None
    }

    /// Reports declared capabilities that are not read, and keys that work only with a capability.
    fn check_capabilities(&mut self, plugin: &Plugin, name: &str, read: &[&str]) {
        let document = plugin.document;
        let declared = plugin.value.get("capabilities");
        let is_declared = |key: &str| is_true(declared.and_then(|all| all.get(key)));
        for key in self.keys(document, &plugin.at("capabilities")) {
            if !is_declared(&key) || read.contains(&key.as_str()) {
                continue;
            }
            let known = read.join(", ");
            let near = nearest(&key, read.iter().copied());
            let hint: [&str; 3] = match near {
                None if read.is_empty() => Default::default(),
                None => ["it reads ", &known, ""],
                Some(near) => did_you_mean(near),
            };
            let path = &plugin.at(&below("capabilities", &key));
            let (message, hint): (&[&str], &[&str]) =
                (&[name, " does not read this capability"], &hint);
            self.tell(Note {
                code: "unused-capability",
                document,
                path,
                is_key: true,
                message,
                hint,
                ..NOTHING
            });
        }
        let is_given = |key: &str| plugin.value.get(key).is_some();
        let has_addresses = matches!(plugin.value.get("ipam").and_then(|ipam| ipam.get("addresses")), Some(Value::Array(all)) if !all.is_empty());
        let gives_ips =
            plugin.value.get("args").and_then(|args| args.get("cni")?.get("ips")).is_some();
        let (capability, effect) = match name {
            _ if plugin.ipam_type() == "static"
                && read.contains(&"ips")
                && !has_addresses
                && !gives_ips =>
            {
                ("ips", " and static has no addresses, so only CNI_ARGS can give any")
            }
            "portmap" => ("portMappings", ", so no port is ever published"),
            "bandwidth" if !is_given("ingressRate") && !is_given("egressRate") => {
                ("bandwidth", ", so nothing is ever limited")
            }
            _ => return,
        };
        if !is_declared(capability) && !is_given("runtimeConfig") {
            let path = &plugin.at("type");
            let message = &[name, " has not the capability ", capability, effect];
            let hint = &["add \"capabilities\": {\"", capability, "\": true}"];
            self.tell(Note {
                code: "missing-capability",
                document,
                path,
                message,
                hint,
                ..NOTHING
            });
        }
    }

    /// Reports keys of the object at `path` that are not in `known`; in free objects only probable
    /// misspellings.
    pub fn unknown_keys(
        &mut self,
        document: usize,
        path: &str,
        known: &[&str],
        of: &str,
        is_complete: bool,
    ) {
        for key in self.keys(document, path) {
            let is = |known: &&str| {
                if of == A_LIST { **known == key } else { known.eq_ignore_ascii_case(&key) }
            };
            if known.iter().any(is)
                || NOTES_OF_RUNTIMES.contains(&key.as_str())
                || key.starts_with("cni.dev/")
            {
                continue;
            }
            let near = nearest(&key, known.iter().copied());
            if near.is_some() || is_complete {
                let path = &below(path, &key);
                let message = &["no key of ", of];
                let hint = &near.map(did_you_mean).unwrap_or_default();
                self.tell(Note {
                    code: "unknown-key",
                    document,
                    path,
                    is_key: true,
                    message,
                    hint,
                    ..NOTHING
                });
            }
        }
    }
}

/// Whether the mistake is in a value that runtimes supply.
fn is_supplied(error: &Error) -> bool {
    error.mistake.as_ref().is_some_and(|mistake| mistake.path.starts_with("runtimeConfig"))
}

/// The decoded structs, each with every key that some type reads there.
fn keys_that_are_read(told: Vec<(String, Shape)>) -> Vec<(String, Vec<&'static str>)> {
    let mut read: Vec<(String, Vec<&'static str>)> = vec![];
    for (path, expected) in told {
        let Shape::Keys(keys) = expected else { continue };
        match read.iter_mut().find(|(other, _)| *other == path) {
            Some((_, known)) => known.extend(
                keys.iter().filter(|key| !known.contains(key)).copied().collect::<Vec<_>>(),
            ),
            None => read.push((path, keys.to_vec())),
        }
    }
    read
}
