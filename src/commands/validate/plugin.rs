//! One plugin's object: the errors of its own types and checks, the keys that no code reads, and the
//! capabilities that it declares; the plugin that flannel runs, whose other keys flannel supplies; and
//! the programs of plugins.

use std::time::Duration;

use super::checker::{Checker, Network, Note, Plugin, did_you_mean, is_true};
use super::document::Spot;
use super::keys::{KnownKeys, ReadKeys, SPECIFICATION};
use super::mistakes::{Rest, Trial};
use crate::cni::decode::{Shape, describe};
use crate::cni::delegate;
use crate::cni::json::Value;
use crate::error::Error;
use crate::plugin::{Entry, Kind, Plugin as _};
use crate::plugins::main::flannel::{Flannel, USUAL_IPAM};
use crate::runtime::list::PluginConfig;
use crate::terminal::nearest::nearest;

/// The keys that the specification reserves for runtimes.
const RESERVED: [&str; 2] = ["runtimeConfig", "prevResult"];

impl Checker<'_> {
    /// Whether the plugin exists and supports the network's version.
    pub fn check_plugin(&mut self, plugin: &Plugin, network: &Network) -> bool {
        if plugin.value.kind() != "object" {
            self.tell_wrong_type(&plugin.spot, &describe(&plugin.value), "an object");
            return false;
        }
        let completed = with_flannel_s_ipam(plugin);
        let plugin = completed.as_ref().unwrap_or(plugin);
        let mut rest = Rest::of(plugin);
        self.mistakes(&mut rest, &|value| {
            PluginConfig::parse(value.to_text().as_bytes()).map(drop)
        });
        for key in self.keys(&plugin.spot) {
            let is_reserved = key.starts_with(SPECIFICATION)
                || RESERVED.iter().any(|known| key.eq_ignore_ascii_case(known));
            if is_reserved {
                let spot = plugin.at(&key);
                let note = Note::new("reserved-key", &spot, &["runtimes write this key"]).of_key();
                self.tell(note.hint(&["remove it"]));
            }
        }
        let kind = plugin.text("type");
        if kind.is_empty() {
            return false;
        }
        let is_served = self.check_program(&plugin.at("type"), kind, &network.version);
        self.check_typed(plugin, rest, network);
        is_served
    }

    /// Checks a plugin of ours with its own types, and reports keys that no code reads.
    fn check_typed(&mut self, plugin: &Plugin, mut rest: Rest, network: &Network) {
        let Some(entry) = self.own(plugin.text("type")) else { return };
        let trial = Trial::new(&network.name, &network.version);
        trial.prepare(&mut rest.value, plugin.is_first);
        self.mistakes(&mut rest, &|value| trial.run_completed(entry, value));
        let mut shapes = trial.observed();
        let has_ipam = |(path, shape): &(String, Shape)| {
            path.is_empty() && matches!(shape, Shape::Keys(keys) if keys.contains(&"ipam"))
        };
        let reads_ipam = entry.kind == Kind::Main && shapes.iter().any(has_ipam);
        let ipam = if reads_ipam { plugin.ipam_text("type") } else { "" };
        let of_ipam = self.check_ipam(plugin, ipam, &network.version);
        if let Some(of_ipam) = of_ipam {
            self.mistakes(&mut rest, &|value| trial.run_completed(of_ipam, value));
            shapes.extend(trial.observed());
        }
        let of_delegate = self.check_delegate(plugin, network);
        let is_known = of_delegate.is_some() && (ipam.is_empty() || of_ipam.is_some());
        shapes.extend(of_delegate.into_iter().flatten());
        let read = ReadKeys::of(shapes);
        let without_effect: Vec<&str> =
            of_ipam.into_iter().flat_map(|of_ipam| of_ipam.no_effect()).collect();
        for (path, keys) in &read.0 {
            let of = if path.starts_with("ipam") { ipam } else { entry.name };
            let mut keys = keys.clone();
            if path == "ipam" {
                keys.extend(&without_effect);
            }
            self.check_keys(&plugin.at(path), &KnownKeys::of_plugin(path, &keys, of));
        }
        if let Some(of_ipam) = of_ipam {
            for key in without_effect.iter().filter(|key| plugin.ipam(key).is_some()) {
                let spot = plugin.at(&["ipam.", key].concat());
                let message = &["without effect in the ", of_ipam.name, " of cni-multi"];
                self.tell(Note::new("no-effect", &spot, message).of_key());
            }
        }
        if is_known {
            let reader = CapabilityReader { name: entry.name, read: read.at("runtimeConfig") };
            self.check_capabilities(plugin, &reader);
        }
    }

    /// Whether the IPAM plugin of this name exists and is one; its entry, if it is ours.
    fn check_ipam(&mut self, plugin: &Plugin, ipam: &str, version: &str) -> Option<&'static Entry> {
        if ipam.is_empty() {
            return None;
        }
        let spot = plugin.at("ipam.type");
        self.check_program(&spot, ipam, version);
        let entry = self.own(ipam)?;
        if entry.kind == Kind::Ipam {
            return Some(entry);
        }
        let message = &[ipam, " is a ", entry.kind.as_str(), " plugin"];
        self.tell(Note::new("wrong-ipam", &spot, message).expecting("an ipam plugin"));
        None
    }
}

/// What a plugin expected at each place.
type Shapes = Vec<(String, Shape)>;

/// flannel's object, completed with what it supplies to its IPAM plugin; None for another plugin's.
pub fn with_flannel_s_ipam(plugin: &Plugin) -> Option<Plugin> {
    if plugin.text("type") != Flannel::NAME {
        return None;
    }
    let mut ipam = object_at(&plugin.value, "ipam")?;
    if ipam.get("type").is_none() {
        ipam.set("type", Value::text(USUAL_IPAM));
    }
    ipam.set("ranges", flannel_s_ranges());
    let mut value = plugin.value.clone();
    value.set("ipam", ipam);
    Some(Plugin { spot: plugin.spot.clone(), value, is_first: plugin.is_first })
}

/// The object at a key, empty if it is missing; None for another value, which flannel refuses.
fn object_at(value: &Value, key: &str) -> Option<Value> {
    match value.get(key) {
        None => Some(Value::Object(vec![])),
        Some(Value::Object(members)) => Some(Value::Object(members.clone())),
        Some(_) => None,
    }
}

/// Ranges as flannel makes them of a node's subnet.
fn flannel_s_ranges() -> Value {
    let range = Value::object([("subnet", Value::text("192.0.2.0/24"))]);
    Value::Array(vec![Value::Array(vec![range])])
}

/// The delegate's object as flannel completes it; None if flannel refuses it.
fn delegate_of(plugin: &Plugin) -> Option<Plugin> {
    let mut value = object_at(&plugin.value, "delegate")?;
    match value.get("type").cloned() {
        None => value.set("type", Value::text("bridge")),
        Some(Value::String(kind)) if kind != Flannel::NAME => (),
        Some(_) => return None,
    }
    let ipam = [("type", Value::text(USUAL_IPAM)), ("ranges", flannel_s_ranges())];
    value.set("ipam", Value::object(ipam));
    if let Some(declared) = plugin.value.get("capabilities") {
        value.set("capabilities", declared.clone());
    }
    Some(Plugin { spot: plugin.at("delegate"), value, is_first: true })
}

impl Checker<'_> {
    /// Checks the object `delegate` of flannel. Returns what the delegate reads of `runtimeConfig`,
    /// nothing for a plugin that runs none, and None if the delegate is not ours.
    pub fn check_delegate(&mut self, plugin: &Plugin, network: &Network) -> Option<Shapes> {
        if plugin.text("type") != Flannel::NAME {
            return Some(vec![]);
        }
        let ipam = plugin.at("ipam");
        if self.keys(&ipam).iter().any(|key| key == "ranges") {
            let message = &["without effect: flannel puts the node's subnets in its place"];
            self.tell(Note::new("no-effect", &ipam.at("ranges"), message).of_key());
        }
        let delegate = delegate_of(plugin)?;
        let spot = delegate.at("type");
        let kind = delegate.text("type");
        self.check_program(&spot, kind, &network.version);
        let entry = self.own(kind)?;
        if entry.kind != Kind::Main {
            let problem = [entry.name, " is a ", entry.kind.as_str(), " plugin"].concat();
            let error = Error::config("delegate.type", problem)
                .expecting("a plugin that creates an interface");
            self.tell_mistake(&spot, &error, None);
            return None;
        }
        let trial = Trial::new(&network.name, &network.version);
        let mut rest = Rest::of(&delegate);
        trial.prepare(&mut rest.value, delegate.is_first);
        self.mistakes(&mut rest, &|value| trial.run_completed(entry, value));
        let is_of_runtime = |(path, _): &(String, Shape)| path == "runtimeConfig";
        let (of_runtime, own): (Shapes, Shapes) =
            trial.observed().into_iter().partition(is_of_runtime);
        for (path, keys) in &ReadKeys::of(own).0 {
            self.check_keys(&delegate.at(path), &KnownKeys::of_plugin(path, keys, entry.name));
        }
        Some(of_runtime)
    }
}

/// A plugin of ours, with the capabilities that it reads.
pub struct CapabilityReader<'a> {
    /// Its name.
    pub name: &'a str,
    /// The capabilities.
    pub read: &'a [&'static str],
}

impl Checker<'_> {
    /// Reports declared capabilities that are not read, and keys that work only with a capability.
    pub fn check_capabilities(&mut self, plugin: &Plugin, reader: &CapabilityReader<'_>) {
        let declared = plugin.at("capabilities");
        for key in self.keys(&declared) {
            if !is_declared(plugin, &key) || reader.read.contains(&key.as_str()) {
                continue;
            }
            let known = reader.read.join(", ");
            let hint = match nearest(&key, reader.read.iter().copied()) {
                Some(near) => did_you_mean(near),
                None if reader.read.is_empty() => Default::default(),
                None => ["it reads ", &known, ""],
            };
            let spot = declared.at(&key);
            let message = &[reader.name, " does not read this capability"];
            self.tell(Note::new("unused-capability", &spot, message).of_key().hint(&hint));
        }
        if let Some((capability, effect)) = reader.needed(plugin)
            && !is_declared(plugin, capability)
            && plugin.value.get("runtimeConfig").is_none()
        {
            let spot = plugin.at("type");
            let message = &[reader.name, " lacks the capability ", capability, effect];
            let note = Note::new("missing-capability", &spot, message);
            self.tell(note.hint(&["add \"capabilities\": {\"", capability, "\": true}"]));
        }
    }
}

impl CapabilityReader<'_> {
    /// The capability without which the plugin does nothing, and in which way.
    fn needed(&self, plugin: &Plugin) -> Option<(&'static str, &'static str)> {
        let is_given = |key| plugin.value.get(key).is_some();
        // static without an address in the configuration.
        let lacks_addresses = plugin.ipam_text("type") == "static"
            && plugin.ipam("addresses").is_none_or(|addresses| addresses.items().is_empty())
            && plugin.arg("ips").is_none();
        match self.name {
            _ if self.read.contains(&"ips") && lacks_addresses => {
                Some(("ips", " and static has no addresses, so only CNI_ARGS can supply any"))
            }
            "portmap" => Some(("portMappings", ", so no port is ever published")),
            "bandwidth" if !is_given("ingressRate") && !is_given("egressRate") => {
                Some(("bandwidth", ", so nothing is ever limited"))
            }
            _ => None,
        }
    }
}

fn is_declared(plugin: &Plugin, capability: &str) -> bool {
    is_true(plugin.value.get("capabilities").and_then(|declared| declared.get(capability)))
}

/// The timeout of a program that is asked for its versions.
const PATIENCE: Duration = Duration::from_secs(5);

impl Checker<'_> {
    /// Whether the program that the configuration names here, or else `kind`, is in the runtime's
    /// path and supports the version.
    pub fn check_program(&mut self, spot: &Spot, kind: &str, version: &str) -> bool {
        let named = self.documents[spot.document].string_at(&spot.path);
        let kind = named.as_deref().unwrap_or(kind);
        let Some(versions) = self.versions(spot, kind) else { return false };
        if version.is_empty() {
            return false;
        }
        let speaks = versions.iter().any(|spoken| spoken == version);
        if !speaks {
            let message = &[kind, " does not support version ", version];
            let expected = versions.join(", ");
            self.tell(Note::new("version-of-plugin", spot, message).expecting(&expected));
        }
        speaks && delegate::find(kind, &self.runtime.directories()).is_ok()
    }

    /// The versions of a plugin, which is asked once.
    fn versions(&mut self, spot: &Spot, kind: &str) -> Option<Vec<String>> {
        if let Some((_, known)) = self.asked.iter().find(|(asked, _)| asked == kind) {
            return known.clone();
        }
        let versions = self.ask(spot, kind);
        self.asked.push((kind.to_owned(), versions.clone()));
        versions
    }

    /// The versions of a plugin, if it exists and reports them.
    fn ask(&mut self, spot: &Spot, kind: &str) -> Option<Vec<String>> {
        if let Err(error) = delegate::find(kind, &self.runtime.directories()) {
            // No directory has the program; it may be compiled in.
            let message = &[error.msg.as_str()];
            let Some(own) = self.own(kind) else {
                let near = nearest(kind, self.runtime.plugins.iter().map(|entry| entry.name));
                let hint = near.map(did_you_mean).unwrap_or_default();
                self.tell(Note::new("no-plugin", spot, message).hint(&hint));
                return None;
            };
            let hint = &["only `cni-multi net` can run it: it is compiled in"];
            self.tell(Note::new("not-on-path", spot, message).hint(hint));
            return Some(own.version_list());
        }
        match self.runtime.versions_within(kind, PATIENCE) {
            Ok(versions) => Some(versions),
            Err(error) => {
                let message = &["it does not report its versions: ", error.msg.as_str()];
                self.tell(Note::new("no-answer", spot, message).hint(&[&error.details()]));
                None
            }
        }
    }
}
