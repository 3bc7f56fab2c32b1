//! Names and versions.

use super::checker::{Checker, NOTHING};
use super::finding::Note;
use super::network::Network;
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::cni::version;
use crate::runtime::list::choose_version;

/// The keys of a list, case-sensitive: libcni reads them without a decoder.
pub const LIST_KEYS: [&str; 7] = [
    "cniVersion",
    "cniVersions",
    "name",
    "disableCheck",
    "disableGC",
    "loadOnlyInlinedPlugins",
    "plugins",
];

/// The longest portable name: the limit in the specification's schema.
const NAME_MAX: usize = 200;

impl Checker<'_> {
    pub fn check_name(&mut self, document: usize) -> String {
        let name = match self.documents[document].member("name") {
            Some(Value::String(name)) => name.clone(),
            Some(other) => {
                let found = other.clone();
                self.tell_wrong_type(document, "name", &found, "a string");
                return String::new();
            }
            None => String::new(),
        };
        let problem = match NetworkName::parse(&name) {
            Err(error) => {
                let problem = error.mistake.as_ref().map(|mistake| mistake.problem.to_string());
                problem.unwrap_or_else(|| error.msg.clone())
            }
            Ok(_) if name.len() > NAME_MAX => {
                let message = &["the name is longer than is portable"];
                let expected = "at most 200 characters";
                self.tell(Note {
                    code: "long-name",
                    document,
                    path: "name",
                    message,
                    expected,
                    ..NOTHING
                });
                return name;
            }
            Ok(_) => return name,
        };
        let expected = "at most 200 letters, digits, \"_\", \".\" and \"-\"";
        self.tell(Note {
            code: "invalid-name",
            document,
            path: "name",
            message: &[&problem],
            expected,
            ..NOTHING
        });
        name
    }

    /// The version that its plugins are called with; empty if there is no valid one.
    pub fn check_version(&mut self, document: usize) -> String {
        let of = &self.documents[document];
        // libcni's choice from a list's versions; None if it rejects the list.
        let chosen = if of.is_list {
            choose_version(&of.value).ok()
        } else {
            of.member("cniVersion").and_then(Value::as_str).map(str::to_owned)
        };
        let mut given = vec![("cniVersion".to_owned(), of.member("cniVersion"))];
        if let (true, Some(Value::Array(versions))) = (of.is_list, of.member("cniVersions")) {
            let entry = |(i, version)| {
                (["cniVersions[", &usize::to_string(&i), "]"].concat(), Some(version))
            };
            given.extend(versions.iter().enumerate().map(entry));
        }
        let given: Vec<(String, String)> = given
            .into_iter()
            .filter_map(|(path, version)| {
                let is_text =
                    |version: &&Value| version.kind() != "string" || version.as_str() != Some("");
                version
                    .filter(is_text)
                    .map(|version| (path, version.as_str().unwrap_or(version::CURRENT).to_owned()))
            })
            .collect();
        let is_given = !given.is_empty();
        for (path, version) in &given {
            let number = version::Number::parse(version);
            let is_to_come = number.is_ok_and(|number| {
                version::Number::parse(version::CURRENT).is_ok_and(|newest| number > newest)
            });
            let is_chosen = chosen.as_ref().is_none_or(|chosen| chosen == version);
            if version::ALL.contains(&version.as_str()) || is_to_come && !is_chosen {
                continue; // a list may name future versions, if it also has a current one
            }
            let (code, message) = if is_chosen {
                ("unknown-version", "no version that is spoken here")
            } else {
                ("unused-version", "no version that is spoken here, and not the one that is chosen")
            };
            let (message, expected): (&[&str], _) = (&[message], &version::ALL.join(", "));
            self.tell(Note { code, document, path, message, expected, ..NOTHING });
        }
        let chosen = chosen.unwrap_or_default();
        if !is_given {
            let (message, hint): (&[&str], &[&str]) = (
                &["missing, which means ", version::ABSENT],
                &["the newest is ", version::CURRENT],
            );
            self.tell(Note {
                code: "no-version",
                document,
                path: "cniVersion",
                message,
                hint,
                ..NOTHING
            });
            return version::ABSENT.to_owned();
        }
        if version::ALL.contains(&chosen.as_str()) { chosen } else { String::new() }
    }

    /// Checks for networks of the same name in one directory, from `first` on.
    pub fn check_names(&mut self, first: usize) {
        for i in first..self.networks.len() {
            let Network { name, document, .. } = &self.networks[i];
            let other = self.networks[first..i]
                .iter()
                .find(|other| other.name == *name && !name.is_empty());
            if let Some(other) = other {
                let (document, file) = (*document, self.documents[other.document].file.clone());
                let message = &[&file, " has a network of this name as well"];
                let hint = &["a runtime takes one of them"];
                self.tell(Note {
                    code: "duplicate-name",
                    document,
                    path: "name",
                    message,
                    hint,
                    ..NOTHING
                });
            }
        }
    }
}
