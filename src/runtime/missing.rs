//! The advice about a plugin that is not found.

use super::chain::Runtime;
use super::check::Checked;
use super::find::listed;
use super::list::NetworkList;
use crate::error::{Code, Error};
use crate::terminal::nearest::nearest;

impl Runtime<'_> {
    /// The error of an operation on the network. If it may be about a plugin that is not found, its
    /// details have the name that was probably meant, or the names that there are.
    pub fn explain(&self, list: &NetworkList, error: Error) -> Error {
        if error.code != Code::DELEGATE {
            return error;
        }
        match list.plugins.iter().find(|plugin| self.find(&plugin.kind).is_err()) {
            Some(plugin) => error.with_details(self.advice(&plugin.kind)),
            None => error,
        }
    }

    /// A CHECK whose plugins that are not found have the same advice.
    #[must_use]
    pub fn explain_each(&self, mut checked: Checked) -> Checked {
        for (plugin, error) in &mut checked.failures {
            if error.code == Code::DELEGATE && self.find(&plugin.kind).is_err() {
                *error = error.clone().with_details(self.advice(&plugin.kind));
            }
        }
        checked
    }

    fn advice(&self, kind: &str) -> String {
        let mut names: Vec<String> = vec![];
        for directory in self.directories() {
            // One that cannot be read has no plugins.
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            let files = entries.filter(|entry| entry.path().is_file());
            names.extend(files.map(|entry| entry.file_name().to_string_lossy().into_owned()));
        }
        names.extend(self.plugins.iter().map(|entry| entry.name.to_owned()));
        names.sort();
        names.dedup();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match nearest(kind, names.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("there are {}", listed(&names)),
        }
    }
}
