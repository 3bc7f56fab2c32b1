//! The programs of plugins: which one runs for a name, the advice about a name that is not found, and
//! whether a network's plugins support its version, which runtimes check before they use a network.

use std::path::PathBuf;
use std::time::Duration;

use super::chain::{Program, Runtime};
use super::check::Checked;
use super::find::listed;
use super::list::NetworkList;
use crate::cni::{delegate, version};
use crate::error::{Code, Error, ErrorList, Result};
use crate::plugin::Entry;
use crate::terminal::nearest::nearest;

impl Runtime<'_> {
    /// Finds a plugin's program. A file in the path takes precedence over a plugin that is compiled
    /// in, unless the file is this binary, be it by an alias.
    pub(super) fn find(&self, kind: &str) -> Result<Program> {
        let own = self.plugins.iter().find(|entry| entry.name == kind);
        match (delegate::find(kind, &self.directories()), own) {
            (Ok(program), own) if delegate::is_this_binary(&program) => {
                let own = own.or_else(|| Entry::of_link(self.plugins, &program));
                Ok(own.map_or(Program::File(program), Program::Own))
            }
            (Ok(program), _) => Ok(Program::File(program)),
            (Err(_), Some(entry)) => Ok(Program::Own(entry)),
            (Err(error), None) => Err(error),
        }
    }

    /// The directories of `path`.
    pub fn directories(&self) -> Vec<PathBuf> {
        if self.path.is_empty() {
            vec![]
        } else {
            self.path.split(':').map(PathBuf::from).collect()
        }
    }

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

    /// VERSION for every plugin: each has to list the network's version literally. Returns the
    /// capabilities that any of them declares; the error names every plugin that does not qualify.
    pub fn validate(&self, list: &NetworkList) -> Result<Vec<String>> {
        let mut errors = ErrorList::default();
        let mut capabilities = vec![];
        let wanted = if list.version.is_empty() { version::ABSENT } else { &list.version };
        for plugin in &list.plugins {
            let kind = &plugin.kind;
            errors.push(self.versions(kind).and_then(|spoken| {
                if spoken.iter().any(|version| version == wanted) {
                    return Ok(());
                }
                let msg = format!("plugin {kind} does not support config version {wanted:?}");
                Err(Error::new(Code::INCOMPATIBLE_VERSION, msg)
                    .with_details(format_args!("it speaks {}", spoken.join(", "))))
            }));
            capabilities.extend(plugin.capabilities.iter().cloned());
        }
        capabilities.sort_unstable();
        capabilities.dedup();
        errors.finish().map(|()| capabilities)
    }

    /// The versions that a plugin supports. A plugin that is compiled in is not run for that.
    pub fn versions(&self, kind: &str) -> Result<Vec<String>> {
        match self.find(kind)? {
            Program::File(program) => delegate::versions(&program, self.env),
            Program::Own(entry) => Ok(entry.version_list()),
        }
    }

    /// As [`Runtime::versions`], with a time limit for the program.
    pub fn versions_within(&self, kind: &str, patience: Duration) -> Result<Vec<String>> {
        match self.find(kind)? {
            Program::File(program) => delegate::versions_within(&program, self.env, patience),
            Program::Own(entry) => Ok(entry.version_list()),
        }
    }
}
