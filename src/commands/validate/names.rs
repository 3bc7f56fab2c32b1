//! Names and versions.

use super::checker::Checker;
use super::document::{Document, Spot, item};
use super::finding::Note;
use super::mistakes::problem;
use super::network::Network;
use crate::cni::attachment::NetworkName;
use crate::cni::decode::describe;
use crate::cni::json::Value;
use crate::cni::version;
use crate::runtime::list::choose_version;

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
