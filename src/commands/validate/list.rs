//! The checks of a network: its name and version, its keys, its plugins and their order.

use std::path::{Path, PathBuf};

use super::checker::{Checker, Network, Note, Plugin, is_true};
use super::document::{Document, Spot, item};
use super::files::files_of;
use super::keys::KnownKeys;
use super::mistakes::{place, problem};
use super::picks;
use crate::cni::attachment::NetworkName;
use crate::cni::decode::describe;
use crate::cni::json::Value;
use crate::cni::version;
use crate::plugin::{Entry, Kind};
use crate::runtime::list::{NetworkList, choose_version, set_own_names};
use crate::steps::veth::validate_mtu;

/// Plugins of the group main that may come after another one: loopback sets up `lo`, and ipvlan
/// takes the interface of `prevResult` as its master.
const BESIDE_OTHERS: [&str; 2] = ["loopback", "ipvlan"];

/// Plugins of the group meta that a list may have more than once: each sets other things.
const SEVERAL_TIMES: [&str; 1] = ["tuning"];

impl Checker<'_> {
    /// Checks the network of a document as it stands in its file; returns the network's number.
    pub fn check_whole(&mut self, document: usize) -> usize {
        let text = self.documents[document].text.clone().into_bytes();
        self.check_document(document, text)
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
            let spot = Spot::whole(document).at("plugins");
            let message = &["a list of plugins in a file that is read as a single plugin"];
            let note = Note::new("list-in-plugin", &spot, message).of_key();
            self.tell(note.hint(&["name the file .conflist"]));
            return network;
        }
        network.name = self.check_name(document);
        network.version = self.check_version(document);
        if is_list {
            self.check_list(&mut network);
        } else {
            network.plugins.push(self.whole_file(document, true));
        }
        network.plugins.iter().for_each(|plugin| self.check_gateways(plugin));
        network.plugins.iter().for_each(|plugin| self.check_hosts(plugin));
        self.check_tables(&network.plugins);
        let mut is_served = true;
        for plugin in &network.plugins {
            is_served &= self.check_plugin(plugin, &network); // each is checked
        }
        network.is_served = is_served;
        network
    }

    /// Checks the keys of a list and the order of its plugins, and adds them to the network.
    fn check_list(&mut self, network: &mut Network) {
        let whole = Spot::whole(network.document);
        let of = &self.documents[network.document];
        if of.member("type").is_some() && of.member("plugins").is_none() {
            let spot = whole.at("type");
            let message = &["a single plugin in a file that is read as a list"];
            let note = Note::new("plugin-in-list", &spot, message);
            self.tell(note.hint(&["name the file .conf"]));
            network.loads = false;
            return;
        }
        self.check_keys(&whole, &KnownKeys::of_list());
        self.add_plugins(network);
        self.check_order(&network.plugins);
        for (index, plugin) in network.plugins.iter().enumerate() {
            self.check_repetition(plugin, &network.plugins[..index]);
        }
        self.check_tuned_mtu(&network.plugins);
    }

    /// Adds the plugins in the list, and those that packages install into the directory named after
    /// the network.
    fn add_plugins(&mut self, network: &mut Network) {
        let document = network.document;
        let list = self.documents[document].member("plugins");
        for (i, value) in list.map_or(&[][..], Value::items).iter().enumerate() {
            let spot = Spot::whole(document).at(&item("plugins", i));
            network.plugins.push(self.plugin(spot, value.clone(), i == 0));
        }
        for file in self.installed(network) {
            let name = file.to_string_lossy().into_owned();
            let read = self.read_file(&file).and_then(|bytes| self.read(name, &bytes));
            let is_first = network.plugins.is_empty();
            match read {
                Some(document) => network.plugins.push(self.whole_file(document, is_first)),
                None => network.loads = false,
            }
        }
        if network.plugins.is_empty() {
            let spot = Spot::whole(document).at("plugins");
            self.tell(Note::new("no-plugins", &spot, &["missing or empty"]));
            network.loads = false;
        }
    }

    /// The plugin that a file holds.
    fn whole_file(&self, document: usize, is_first: bool) -> Plugin {
        self.plugin(Spot::whole(document), self.documents[document].value.clone(), is_first)
    }

    fn plugin(&self, spot: Spot, mut value: Value, is_first: bool) -> Plugin {
        set_own_names(&mut value, &|kind| self.own(kind));
        Plugin { spot, value, is_first }
    }

    /// The files of plugins in the directory named after the network.
    fn installed(&self, network: &Network) -> Vec<PathBuf> {
        let of = &self.documents[network.document];
        let only_inlined = match of.member("loadOnlyInlinedPlugins") {
            Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
            other => is_true(other),
        };
        if only_inlined || !of.is_in_directory || NetworkName::parse(&network.name).is_err() {
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
        if !plugins.first().is_some_and(|first| limited.contains(&first.text("type"))) {
            return;
        }
        for plugin in plugins.iter().filter(|plugin| plugin.text("type") == "tuning") {
            let (path, mtu) = match plugin.arg("mtu") {
                Some(mtu) => ("args.cni.mtu", Some(mtu)),
                None => ("mtu", plugin.value.get("mtu")),
            };
            let mtu: Option<u32> = mtu.and_then(|mtu| mtu.to_text().parse().ok());
            if let Err(error) = validate_mtu(mtu.unwrap_or_default()) {
                self.tell_mistake(&plugin.at(path), &error, None);
            }
        }
    }

    /// Reports a plugin that one before it in the list excludes: a second one that creates the
    /// interface, or the same one twice.
    fn check_repetition(&mut self, plugin: &Plugin, before: &[Plugin]) {
        let creates_interface =
            |entry: &Entry| entry.kind == Kind::Main && !BESIDE_OTHERS.contains(&entry.name);
        let Some(entry) = self.own(plugin.text("type")) else { return };
        let spot = plugin.at("type");
        let mut others = before.iter().filter_map(|other| self.own(other.text("type")));
        let is_same = |other: &Plugin| other.text("type") == entry.name;
        match entry.kind {
            Kind::Main if creates_interface(entry) => {
                let Some(first) = others.find(|other| creates_interface(other)) else { return };
                let message =
                    &[entry.name, " creates the interface that ", first.name, " has created"];
                let note = Note::new("second-interface", &spot, message);
                self.tell(note.hint(&["move it to a network of its own"]));
            }
            Kind::Meta if !SEVERAL_TIMES.contains(&entry.name) && before.iter().any(is_same) => {
                let message = &[entry.name, " is in the list twice"];
                let note = Note::new("repeated", &spot, message);
                self.tell(note.hint(&["remove one of them"]));
            }
            _ => (), // an IPAM plugin is in no list, which `order` reports
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

/// The longest portable name: the limit in the specification's schema.
const NAME_MAX: usize = 200;

impl Checker<'_> {
    /// The network's name; empty if there is none.
    pub fn check_name(&mut self, document: usize) -> String {
        let spot = Spot::whole(document).at("name");
        let name = match self.documents[document].member("name") {
            Some(Value::String(name)) => name.clone(),
            Some(other) => {
                self.tell_wrong_type(&spot, &describe(other), "a string");
                return String::new();
            }
            None => String::new(),
        };
        if let Err(error) = NetworkName::parse(&name) {
            let expected = "at most 200 letters, digits, \"_\", \".\" and \"-\"";
            self.tell(Note::new("invalid-name", &spot, &[&problem(&error)]).expecting(expected));
        } else if name.len() > NAME_MAX {
            let message = &["the name is too long to be portable"];
            self.tell(Note::new("long-name", &spot, message).expecting("at most 200 characters"));
        }
        name
    }

    /// The version that its plugins are called with; empty if there is no valid one.
    pub fn check_version(&mut self, document: usize) -> String {
        let is_known = |version: &str| version::ALL.contains(&version);
        let of = &self.documents[document];
        // The version of a single plugin, or libcni's choice from a list's; None if it rejects the
        // list.
        let chosen = if of.is_list {
            choose_version(&of.value).ok()
        } else {
            of.member("cniVersion").and_then(Value::as_str).map(str::to_owned)
        };
        let given = given_versions(of);
        for (path, version) in &given {
            let is_chosen = chosen.as_ref().is_none_or(|chosen| chosen == version);
            if is_known(version) || !is_chosen && is_to_come(version) {
                continue;
            }
            let (code, message) = if is_chosen {
                ("unknown-version", "unknown version")
            } else {
                ("unused-version", "unknown version; another one is used")
            };
            let spot = Spot::whole(document).at(path);
            self.tell(Note::new(code, &spot, &[message]).expecting(&version::ALL.join(", ")));
        }
        if given.is_empty() {
            let spot = Spot::whole(document).at("cniVersion");
            let message = &["missing, which means ", version::ABSENT];
            let note = Note::new("no-version", &spot, message);
            self.tell(note.hint(&["the newest is ", version::CURRENT]));
            return version::ABSENT.to_owned();
        }
        chosen.filter(|version| is_known(version)).unwrap_or_default()
    }

    /// Checks for networks of the same name in one directory, from `first` on.
    pub fn check_names(&mut self, first: usize) {
        for i in first..self.networks.len() {
            let Network { name, document, .. } = &self.networks[i];
            let mut before = self.networks[first..i].iter();
            let Some(other) = before.find(|it| it.name == *name && !name.is_empty()) else {
                continue;
            };
            let file = self.documents[other.document].file.clone();
            let spot = Spot::whole(*document).at("name");
            let message = &[&file, " has a network of the same name"];
            let note = Note::new("duplicate-name", &spot, message);
            self.tell(note.hint(&["a runtime uses only one of them"]));
        }
    }
}

/// The versions that a document names, each with its path. A value of another type, which another
/// check reports, counts as the newest version.
fn given_versions(document: &Document) -> Vec<(String, String)> {
    let single = document.member("cniVersion").map(|version| ("cniVersion".to_owned(), version));
    let list = document.member("cniVersions").filter(|_| document.is_list);
    let list = list.map_or(&[][..], Value::items).iter().enumerate();
    let given =
        single.into_iter().chain(list.map(|(i, version)| (item("cniVersions", i), version)));
    let text = |version: &Value| version.as_str().unwrap_or(version::CURRENT).to_owned();
    let given = given.map(|(path, version)| (path, text(version)));
    given.filter(|(_, version)| !version.is_empty()).collect()
}

/// Whether a version is newer than the newest known one. A list may name such versions, if it also
/// has a known one.
fn is_to_come(version: &str) -> bool {
    let Ok(number) = version::Number::parse(version) else { return false };
    version::Number::parse(version::CURRENT).is_ok_and(|newest| number > newest)
}
