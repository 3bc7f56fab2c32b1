//! One plugin's object: the errors of its own types and checks, and the keys that no code reads.

use super::capabilities::Reader;
use super::checker::Checker;
use super::delegate;
use super::finding::Note;
use super::keys::{KnownKeys, ReadKeys, SPECIFICATION};
use super::mistakes::Rest;
use super::network::{Network, Plugin};
use super::trial::Trial;
use crate::cni::decode::{Shape, describe};
use crate::plugin::{Entry, Kind};
use crate::runtime::list::PluginConfig;

/// The keys that the specification reserves for runtimes.
const RESERVED: [&str; 2] = ["runtimeConfig", "prevResult"];

impl Checker<'_> {
    /// Whether the plugin exists and supports the network's version.
    pub fn check_plugin(&mut self, plugin: &Plugin, network: &Network) -> bool {
        if plugin.value.kind() != "object" {
            self.tell_wrong_type(&plugin.spot, &describe(&plugin.value), "an object");
            return false;
        }
        let completed = delegate::completed(plugin);
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
        self.mistakes(&mut rest, &|value| trial.of_file(entry, value));
        let mut shapes = trial.observed();
        let has_ipam = |(path, shape): &(String, Shape)| {
            path.is_empty() && matches!(shape, Shape::Keys(keys) if keys.contains(&"ipam"))
        };
        let reads_ipam = entry.kind == Kind::Main && shapes.iter().any(has_ipam);
        let ipam = if reads_ipam { plugin.ipam_text("type") } else { "" };
        let of_ipam = self.check_ipam(plugin, ipam, &network.version);
        if let Some(of_ipam) = of_ipam {
            self.mistakes(&mut rest, &|value| trial.of_file(of_ipam, value));
            shapes.extend(trial.observed());
        }
        let of_delegate = self.check_delegate(plugin, network);
        let is_known = of_delegate.is_some() && (ipam.is_empty() || of_ipam.is_some());
        shapes.extend(of_delegate.into_iter().flatten());
        let read = ReadKeys::of(shapes);
        for (path, keys) in &read.0 {
            let of = if path.starts_with("ipam") { ipam } else { entry.name };
            self.check_keys(&plugin.at(path), &KnownKeys::of_plugin(path, keys, of));
        }
        if let Some(of_ipam) = of_ipam {
            for key in of_ipam.no_effect.iter().filter(|key| plugin.ipam(key).is_some()) {
                let spot = plugin.at(&["ipam.", key].concat());
                let message = &["without effect in the ", of_ipam.name, " of cni-multi"];
                self.tell(Note::new("no-effect", &spot, message).of_key());
            }
        }
        if is_known {
            let reader = Reader { name: entry.name, read: read.at("runtimeConfig") };
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
