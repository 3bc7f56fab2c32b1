//! The checks of a network: its keys, its plugins and their order.

use std::path::{Path, PathBuf};

use super::checker::{Checker, is_true};
use super::document::{Document, Spot, item};
use super::files::files_of;
use super::finding::Note;
use super::keys::KnownKeys;
use super::mistakes::place;
use super::network::{Network, Plugin};
use super::picks;
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::plugin::Kind;
use crate::runtime::list::{NetworkList, set_own_names};
use crate::steps::veth::validate_mtu;

impl Checker<'_> {
    /// Checks a text as the kind of file that its name indicates, else as what it appears to be.
    pub fn check(&mut self, file: String, bytes: &[u8]) -> Option<usize> {
        let document = self.read(file, bytes)?;
        let text = self.documents[document].text.clone().into_bytes();
        Some(self.check_document(document, text))
    }

    /// Checks the network of a document that libcni gets as this text.
    pub fn check_document(&mut self, document: usize, text: Vec<u8>) -> usize {
        let is_list = self.documents[document].is_list;
        let loaded = if is_list { NetworkList::parse(text) } else { NetworkList::of_single(text) };
        let before = self.errors();
        let mut network = self.check_network(document);
        // If our own checks find no error, report libcni's.
        if let Err(error) = &loaded
            && self.errors() == before
        {
            let spot = Spot::whole(document).at(place(error));
            self.tell(Note::new("not-loaded", &spot, &[&error.msg]));
        }
        network.loads &= loaded.is_ok();
        self.networks.push(network);
        self.networks.len() - 1
    }

    fn check_network(&mut self, document: usize) -> Network {
        let mut network = Network::new(document);
        let is_list = self.documents[document].is_list;
        let has_plugins = self.documents[document].member("plugins").is_some();
        if has_plugins && !is_list {
            network.loads = false;
            self.tell_list_in_plugin(document);
            return network;
        }
        network.name = self.check_name(document);
        network.version = self.check_version(document);
        if is_list {
            self.check_list(&mut network);
        } else {
            network.plugins.push(self.whole_file(document));
        }
        network.plugins.iter().for_each(|plugin| self.check_gateways(plugin));
        network.plugins.iter().for_each(|plugin| self.check_hosts(plugin));
        self.check_tables(&network.plugins);
        let served = network.plugins.iter().filter(|plugin| self.check_plugin(plugin, &network));
        network.is_served = served.count() == network.plugins.len();
        network
    }

    fn tell_list_in_plugin(&mut self, document: usize) {
        let spot = Spot::whole(document).at("plugins");
        let message = &["a list of plugins in a file that is read as a single plugin"];
        let note = Note::new("list-in-plugin", &spot, message).of_key();
        self.tell(note.hint(&["name the file .conflist"]));
    }

    /// Checks the keys of a list and the order of its plugins, and adds them to the network.
    fn check_list(&mut self, network: &mut Network) {
        let whole = Spot::whole(network.document);
        let of = &self.documents[network.document];
        if of.member("type").is_some() && of.member("plugins").is_none() {
            self.tell_plugin_in_list(&whole.at("type"));
            network.loads = false;
            return;
        }
        self.check_keys(&whole, &KnownKeys::of_list());
        self.add_plugins(network);
        self.check_order(&network.plugins);
        self.check_repetitions(&network.plugins);
        self.check_tuned_mtu(&network.plugins);
    }

    fn tell_plugin_in_list(&mut self, spot: &Spot) {
        let message = &["a single plugin in a file that is read as a list"];
        let note = Note::new("plugin-in-list", spot, message);
        self.tell(note.hint(&["name the file .conf"]));
    }

    /// Adds the plugins in the list, and those that packages install into the directory named after
    /// the network.
    fn add_plugins(&mut self, network: &mut Network) {
        network.plugins = self.inlined(network.document);
        for file in self.installed(network) {
            let is_first = network.plugins.is_empty();
            match self.read_plugin(&file) {
                Some(plugin) => network.plugins.push(Plugin { is_first, ..plugin }),
                None => network.loads = false,
            }
        }
        if network.plugins.is_empty() {
            let spot = Spot::whole(network.document).at("plugins");
            self.tell(Note::new("no-plugins", &spot, &["missing or empty"]));
            network.loads = false;
        }
    }

    fn read_plugin(&mut self, file: &Path) -> Option<Plugin> {
        let bytes = self.read_file(file)?;
        let document = self.read(file.to_string_lossy().into_owned(), &bytes)?;
        Some(self.whole_file(document))
    }

    /// The plugin that a file holds, as the first of its network.
    fn whole_file(&self, document: usize) -> Plugin {
        let value = self.documents[document].value.clone();
        Plugin { is_first: true, ..self.plugin(Spot::whole(document), value) }
    }

    fn plugin(&self, spot: Spot, mut value: Value) -> Plugin {
        set_own_names(&mut value, &|kind| self.own(kind));
        Plugin { spot, value, is_first: false }
    }

    /// The plugins in the list itself.
    fn inlined(&self, document: usize) -> Vec<Plugin> {
        let list = self.documents[document].member("plugins");
        let plugin = |(i, value): (usize, &Value)| {
            let spot = Spot::whole(document).at(&item("plugins", i));
            Plugin { is_first: i == 0, ..self.plugin(spot, value.clone()) }
        };
        list.map_or(&[][..], Value::items).iter().enumerate().map(plugin).collect()
    }

    /// The files of plugins in the directory named after the network.
    fn installed(&self, network: &Network) -> Vec<PathBuf> {
        let of = &self.documents[network.document];
        if only_inlined(of) || !of.is_in_directory || NetworkName::parse(&network.name).is_err() {
            return vec![];
        }
        let parent = Path::new(&of.file).parent();
        let files = parent.and_then(|parent| files_of(&parent.join(&network.name)).ok());
        let is_plugin = |file: &PathBuf| picks::extension(file) == Some("conf");
        files.into_iter().flatten().filter(is_plugin).collect()
    }

    /// Reports an MTU that the previous plugin's interface cannot have. tuning reports it when the
    /// interface exists; interfaces of other plugins, and a dummy's, may have any MTU.
    fn check_tuned_mtu(&mut self, plugins: &[Plugin]) {
        let limited = ["bridge", "ptp", "macvlan", "ipvlan", "vlan", "tap"];
        if plugins.first().is_some_and(|first| limited.contains(&first.text("type"))) {
            let tuning = plugins.iter().filter(|plugin| plugin.text("type") == "tuning");
            tuning.for_each(|plugin| self.check_mtu(plugin));
        }
    }

    fn check_mtu(&mut self, plugin: &Plugin) {
        let (path, mtu) = match plugin.arg("mtu") {
            Some(mtu) => ("args.cni.mtu", Some(mtu)),
            None => ("mtu", plugin.value.get("mtu")),
        };
        let mtu: Option<u32> = mtu.and_then(|mtu| mtu.to_text().parse().ok());
        if let Err(error) = validate_mtu(mtu.unwrap_or_default()) {
            self.tell_mistake(&plugin.at(path), &error, None);
        }
    }

    /// Reports plugins that cannot work at their position in the list.
    fn check_order(&mut self, plugins: &[Plugin]) {
        for plugin in plugins {
            let Some(entry) = self.own(plugin.text("type")) else { continue };
            let (message, hint) = match entry.kind {
                Kind::Meta if plugin.is_first => (
                    " changes what another plugin made, but is the first",
                    "put a plugin that creates an interface before it",
                ),
                Kind::Ipam => (
                    " allocates addresses for another plugin, but is in the list",
                    "move it to \"ipam\" of a plugin that creates an interface",
                ),
                _ => continue,
            };
            let spot = plugin.at("type");
            self.tell(Note::new("order", &spot, &[entry.name, message]).hint(&[hint]));
        }
    }
}

/// Whether the network consists only of the plugins in the list itself.
fn only_inlined(document: &Document) -> bool {
    match document.member("loadOnlyInlinedPlugins") {
        Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
        other => is_true(other),
    }
}
