//! Names and versions.

use super::checker::{Checker, NOTHING};
use super::finding::Note;
use super::network::Network;
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::cni::version;

/// The keys of a list, in this case only: libcni reads them by hand.
pub const LIST_KEYS: [&str; 7] =
    ["cniVersion", "cniVersions", "name", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "plugins"];

/// The longest name that is portable: the specification's schema has this limit.
const NAME_MAX: usize = 200;

impl Checker<'_> {
    pub fn check_name(&mut self, document: usize) -> String {
        let name = match self.documents[document].member("name") {
            Some(Value::String(name)) => name.clone(),
            Some(other) => {
                let kind = other.kind();
                self.tell_wrong_type(document, "name", kind, "a string");
                return String::new();
            }
            None => String::new(),
        };
        let problem = match NetworkName::parse(&name) {
            Err(error) => error.msg.clone(),
            Ok(_) if name.len() > NAME_MAX => "the name is too long".to_owned(),
            Ok(_) => return name,
        };
        let expected = "at most 200 letters, digits, \"_\", \".\" and \"-\"";
        self.tell(Note { code: "invalid-name", document, path: "name", message: &[&problem], expected, ..NOTHING });
        name
    }

    /// The version that its plugins are called with; empty where that is none that could be.
    pub fn check_version(&mut self, document: usize, chosen: &str) -> String {
        let mut given = vec!["cniVersion".to_owned()];
        if let Some(Value::Array(versions)) = self.documents[document].member("cniVersions") {
            given.extend((0..versions.len()).map(|i| ["cniVersions[", &i.to_string(), "]"].concat()));
        }
        let mut is_given = false;
        for path in &given {
            let place = self.documents[document].find(path);
            let text = self.documents[document].text.get(place.value).unwrap_or_default();
            let version = text.trim_matches('"').to_owned();
            if !place.is_exact || version.is_empty() {
                continue;
            }
            is_given = true;
            let is_to_come = match (version::Number::parse(&version), version::Number::parse(version::CURRENT)) {
                (Ok(number), Ok(newest)) => number > newest,
                _ => false,
            };
            // A list may name versions to come, as long as one of today is with them.
            let is_passed_over = is_to_come && version != chosen && !chosen.is_empty();
            if text.starts_with('"') && !version::ALL.contains(&version.as_str()) && !is_passed_over {
                let (message, expected): (&[&str], _) = (&["no version that is spoken here"], &version::ALL.join(", "));
                self.tell(Note { code: "unknown-version", document, path, message, expected, ..NOTHING });
            }
        }
        if !is_given {
            let (message, hint): (&[&str], &[&str]) =
                (&["missing, which means ", version::ABSENT], &["the newest is ", version::CURRENT]);
            self.tell(Note { code: "no-version", document, path: "cniVersion", message, hint, ..NOTHING });
            return version::ABSENT.to_owned();
        }
        if version::ALL.contains(&chosen) { chosen.to_owned() } else { String::new() }
    }

    /// Networks of one name in one directory, from `first` on.
    pub fn check_names(&mut self, first: usize) {
        for i in first..self.networks.len() {
            let Network { name, document, .. } = &self.networks[i];
            let other = self.networks[first..i].iter().find(|other| other.name == *name && !name.is_empty());
            if let Some(other) = other {
                let (document, file) = (*document, self.documents[other.document].file.clone());
                let (message, hint) =
                    (&[&file, " has a network of this name as well"], &["a runtime takes one of them"]);
                self.tell(Note { code: "duplicate-name", document, path: "name", message, hint, ..NOTHING });
            }
        }
    }
}
