//! Plugins of a list that exclude each other: a second one that creates the interface, and the same
//! one twice.

use super::checker::Checker;
use super::finding::Note;
use super::network::Plugin;
use crate::plugin::{Entry, Kind};

/// Plugins of the group main that may come after another one: loopback sets up `lo`, and ipvlan
/// takes the interface of `prevResult` as its master.
const BESIDE_OTHERS: [&str; 2] = ["loopback", "ipvlan"];

/// Plugins of the group meta that a list may have more than once: each sets other things.
const SEVERAL_TIMES: [&str; 1] = ["tuning"];

impl Checker<'_> {
    /// Reports plugins that a plugin before them in the list excludes.
    pub fn check_repetitions(&mut self, plugins: &[Plugin]) {
        for (index, plugin) in plugins.iter().enumerate() {
            let Some(entry) = self.own(plugin.text("type")) else { continue };
            match entry.kind {
                Kind::Main => self.check_second_interface(entry, plugin, &plugins[..index]),
                Kind::Meta => self.check_repeated(entry, plugin, &plugins[..index]),
                Kind::Ipam => (), // it is in no list, which `order` reports
            }
        }
    }

    fn check_second_interface(&mut self, entry: &Entry, plugin: &Plugin, before: &[Plugin]) {
        let mut creators = before.iter().filter_map(|other| self.own(other.text("type")));
        let Some(first) = creators.find(|other| creates_interface(other)) else { return };
        if !creates_interface(entry) {
            return;
        }
        let spot = plugin.at("type");
        let message = &[entry.name, " creates the interface that ", first.name, " has created"];
        let note = Note::new("second-interface", &spot, message);
        self.tell(note.hint(&["move it to a network of its own"]));
    }

    fn check_repeated(&mut self, entry: &Entry, plugin: &Plugin, before: &[Plugin]) {
        let is_same = |other: &Plugin| other.text("type") == entry.name;
        if SEVERAL_TIMES.contains(&entry.name) || !before.iter().any(is_same) {
            return;
        }
        let spot = plugin.at("type");
        let message = &[entry.name, " is in the list twice"];
        let note = Note::new("repeated", &spot, message);
        self.tell(note.hint(&["remove one of them"]));
    }
}

fn creates_interface(entry: &Entry) -> bool {
    entry.kind == Kind::Main && !BESIDE_OTHERS.contains(&entry.name)
}
