//! The checks of a network: its keys, its plugins and their order.

use std::path::Path;

use super::checker::{Checker, NOTHING, is_true};
use super::files::{STDIN, files_of};
use super::finding::Note;
use super::names::LIST_KEYS;
use super::network::{A_LIST, Network, Plugin};
use super::picks;
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::error::Result;
use crate::plugin::Kind;
use crate::runtime::list::NetworkList;
use crate::steps::veth::validate_mtu;

impl Checker<'_> {
    /// Checks a text as the kind of file that its name indicates, else as what it appears to be.
    pub fn check(&mut self, file: String, bytes: &[u8]) -> Option<usize> {
        let document = self.read(file, bytes)?;
        let is_list = self.documents[document].is_list;
        let text = self.documents[document].text.clone().into_bytes();
        let loaded = if is_list { NetworkList::parse(text) } else { NetworkList::of_single(text) };
        let before = self.errors();
        let network = self.check_network(document);
        // If our own checks find no error, report libcni's.
        if let (Err(error), true) = (&loaded, self.errors() == before) {
            let path = error.mistake.as_ref().map_or("", |mistake| &mistake.path);
            let message = &[error.msg.as_str()];
            self.tell(Note { code: "not-loaded", document, path, message, ..NOTHING });
        }
        self.networks[network].loads &= loaded.is_ok();
        Some(network)
    }

    fn check_network(&mut self, document: usize) -> usize {
        let of = &self.documents[document];
        let is_list = of.is_list;
        let has_type = of.member("type").is_some();
        let has_plugins = of.member("plugins").is_some();
        let network =
            |name, plugins| Network { name, document, plugins, loads: true, is_served: true };
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
        let version = self.check_version(document);
        let mut network = network(name, vec![]);
        if !is_list {
            let value = self.documents[document].value.clone();
            network.plugins.push(Plugin { document, path: String::new(), value, is_first: true });
        } else if has_type && !has_plugins {
            let message = &["a single plugin in a file that is read as a list"];
            let hint = &["name the file .conf"];
            self.tell(Note {
                code: "plugin-in-list",
                document,
                path: "type",
                message,
                hint,
                ..NOTHING
            });
            network.loads = false;
        } else {
            self.unknown_keys(document, "", &LIST_KEYS, A_LIST, true);
            self.add_plugins(&mut network);
            self.check_order(&network.plugins);
            self.check_tuned_mtu(&network.plugins);
        }
        for plugin in &network.plugins {
            network.is_served &= self.check_plugin(plugin, &network.name, &version);
        }
        self.networks.push(network);
        self.networks.len() - 1
    }

    /// Adds the plugins in the list, and those that packages install into the directory named after
    /// the network.
    fn add_plugins(&mut self, network: &mut Network) {
        let document = network.document;
        if let Some(Value::Array(items)) = self.documents[document].member("plugins") {
            let plugin = |(i, item): (usize, &Value)| Plugin {
                document,
                path: ["plugins[", &i.to_string(), "]"].concat(),
                value: item.clone(),
                is_first: i == 0,
            };
            network.plugins.extend(items.iter().enumerate().map(plugin));
        }
        let only_inlined = match self.documents[document].member("loadOnlyInlinedPlugins") {
            Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
            other => is_true(other),
        };
        let file = self.documents[document].file.as_str();
        let dir = Path::new(file).parent().map(|parent| parent.join(&network.name));
        let files = dir
            .filter(|_| !only_inlined && file != STDIN && NetworkName::parse(&network.name).is_ok())
            .map(|dir| files_of(&dir));
        for file in files.and_then(Result::ok).unwrap_or_default() {
            if picks::extension(&file) != Some("conf") {
                continue;
            }
            let bytes = self.read_file(&file);
            match bytes.and_then(|bytes| self.read(file.to_string_lossy().into_owned(), &bytes)) {
                Some(document) => {
                    let value = self.documents[document].value.clone();
                    let is_first = network.plugins.is_empty();
                    network.plugins.push(Plugin { document, path: String::new(), value, is_first });
                }
                None => network.loads = false,
            }
        }
        if network.plugins.is_empty() {
            self.tell(Note {
                code: "no-plugins",
                document,
                path: "plugins",
                message: &["there are none"],
                ..NOTHING
            });
            network.loads = false;
        }
    }

    /// Reports an MTU that the previous plugin's interface cannot have. tuning reports it when the
    /// interface exists; interfaces of other plugins, and a dummy's, may have any MTU.
    fn check_tuned_mtu(&mut self, plugins: &[Plugin]) {
        let limited = ["bridge", "ptp", "macvlan", "ipvlan", "vlan", "tap"];
        if !plugins.first().is_some_and(|first| limited.contains(&first.text("type"))) {
            return;
        }
        for plugin in plugins.iter().filter(|plugin| plugin.text("type") == "tuning") {
            let given = plugin.value.get("args").and_then(|args| args.get("cni")?.get("mtu"));
            let (key, value) = match given {
                Some(value) => ("args.cni.mtu", Some(value)),
                None => ("mtu", plugin.value.get("mtu")),
            };
            let mtu =
                value.and_then(|value| value.to_text().parse::<u32>().ok()).unwrap_or_default();
            let Err(error) = validate_mtu(mtu) else { continue };
            self.tell_mistake(plugin, key, &error, None);
        }
    }

    /// Reports plugins that cannot work at their position in the list.
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
            let document = plugin.document;
            let path = &plugin.at("type");
            let (message, hint): (&[&str], &[&str]) = (&[entry.name, message], &[hint]);
            self.tell(Note { code: "order", document, path, message, hint, ..NOTHING });
        }
    }
}
