//! The plugin that flannel runs: it reads the keys of `delegate`, and flannel supplies the others.

use super::checker::Checker;
use super::finding::Note;
use super::keys::{KnownKeys, ReadKeys};
use super::mistakes::Rest;
use super::network::{Network, Plugin};
use super::trial::Trial;
use crate::cni::decode::Shape;
use crate::cni::json::Value;
use crate::error::Error;
use crate::plugin::{Kind, Plugin as _};
use crate::plugins::main::flannel::{Flannel, USUAL_IPAM};

/// What a plugin expected at each place.
type Shapes = Vec<(String, Shape)>;

/// flannel's object, completed with what it supplies to its IPAM plugin; None for another plugin's.
pub fn completed(plugin: &Plugin) -> Option<Plugin> {
    if plugin.text("type") != Flannel::NAME {
        return None;
    }
    let mut ipam = object_at(&plugin.value, "ipam")?;
    if ipam.get("type").is_none() {
        ipam.set("type", Value::text(USUAL_IPAM));
    }
    ipam.set("ranges", ranges());
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
fn ranges() -> Value {
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
    let ipam = [("type", Value::text(USUAL_IPAM)), ("ranges", ranges())];
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
        self.mistakes(&mut rest, &|value| trial.of_file(entry, value));
        let is_of_runtime = |(path, _): &(String, Shape)| path == "runtimeConfig";
        let (of_runtime, own): (Shapes, Shapes) =
            trial.observed().into_iter().partition(is_of_runtime);
        for (path, keys) in &ReadKeys::of(own).0 {
            self.check_keys(&delegate.at(path), &KnownKeys::of_plugin(path, keys, entry.name));
        }
        Some(of_runtime)
    }
}
