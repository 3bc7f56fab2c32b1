//! Whether a network's plugins support its version, which runtimes check before they use a network.

use std::time::Duration;

use super::chain::{Program, Runtime};
use super::list::NetworkList;
use crate::cni::{delegate, version};
use crate::error::{Code, Error, ErrorList, Result};

impl Runtime<'_> {
    /// VERSION for every plugin: each has to list the network's version literally. Returns the
    /// capabilities that any of them declares; the error names every plugin that does not qualify.
    pub fn validate(&self, list: &NetworkList) -> Result<Vec<String>> {
        let mut errors = ErrorList::default();
        let mut capabilities = vec![];
        for plugin in &list.plugins {
            errors.push(self.require_version(&plugin.kind, list));
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

    fn require_version(&self, kind: &str, list: &NetworkList) -> Result<()> {
        let wanted = if list.version.is_empty() { version::ABSENT } else { &list.version };
        let spoken = self.versions(kind)?;
        if spoken.iter().any(|version| version == wanted) {
            return Ok(());
        }
        Err(not_spoken(kind, wanted, &spoken))
    }
}

fn not_spoken(kind: &str, wanted: &str, spoken: &[String]) -> Error {
    let msg = format!("plugin {kind} does not support config version {wanted:?}");
    let details = format!("it speaks {}", spoken.join(", "));
    Error::new(Code::INCOMPATIBLE_VERSION, msg).with_details(details)
}
