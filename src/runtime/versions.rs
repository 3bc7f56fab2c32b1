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
