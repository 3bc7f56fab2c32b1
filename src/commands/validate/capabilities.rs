//! The capabilities that a plugin declares, and those that it needs.

use super::checker::{Checker, did_you_mean, is_true};
use super::finding::Note;
use super::network::Plugin;
use crate::terminal::nearest::nearest;

/// A plugin of ours, with the capabilities that it reads.
pub struct Reader<'a> {
    /// Its name.
    pub name: &'a str,
    /// The capabilities.
    pub read: &'a [&'static str],
}

impl Checker<'_> {
    /// Reports declared capabilities that are not read, and keys that work only with a capability.
    pub fn check_capabilities(&mut self, plugin: &Plugin, reader: &Reader<'_>) {
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

impl Reader<'_> {
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
