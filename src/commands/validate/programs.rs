//! The programs of plugins.

use std::time::Duration;

use super::checker::{Checker, NOTHING, did_you_mean};
use super::finding::Note;
use super::nearest::nearest;
use super::network::Plugin;
use crate::cni::delegate;

/// The timeout of a program that is asked for its versions.
const PATIENCE: Duration = Duration::from_secs(5);

impl Checker<'_> {
    /// Whether the program `kind` named by `key` is in the runtime's path and supports the version.
    pub fn check_program(&mut self, plugin: &Plugin, key: &str, kind: &str, version: &str) -> bool {
        let document = plugin.document;
        let path = &plugin.at(key);
        let spoken = match self.asked.iter().find(|(asked, _)| asked == kind) {
            Some((_, spoken)) => spoken.clone(),
            None => {
                let spoken = self.ask(document, path, kind);
                self.asked.push((kind.to_owned(), spoken.clone()));
                spoken
            }
        };
        let Some(spoken) = spoken else { return false };
        let speaks = version.is_empty() || spoken.split(", ").any(|spoken| spoken == version);
        if !speaks {
            let message = &[kind, " does not speak version ", version];
            self.tell(Note {
                code: "version-of-plugin",
                document,
                path,
                message,
                expected: &spoken,
                ..NOTHING
            });
        }
        speaks && !version.is_empty()
    }

    /// The versions of a plugin, if it exists and reports them.
    fn ask(&mut self, document: usize, path: &str, kind: &str) -> Option<String> {
        if let Err(error) = delegate::find(kind, &self.runtime.directories()) {
            let near = nearest(kind, self.runtime.plugins.iter().map(|entry| entry.name));
            let (code, hint) = match (self.own(kind), near) {
                (Some(_), _) => (
                    "not-on-path",
                    ["`cni-multi net` has it, other runtimes do not find it", "", ""],
                ),
                (None, Some(near)) => ("no-plugin", did_you_mean(near)),
                (None, None) => ("no-plugin", Default::default()),
            };
            self.tell(Note {
                code,
                document,
                path,
                message: &[&error.msg],
                hint: &hint,
                ..NOTHING
            });
            return self.own(kind).map(|entry| entry.versions.join(", "));
        }
        match self.runtime.versions_within(kind, PATIENCE) {
            Ok(versions) => Some(versions.join(", ")),
            Err(error) => {
                let message = &["it does not tell its versions: ", &error.msg];
                self.tell(Note {
                    code: "no-answer",
                    document,
                    path,
                    message,
                    hint: &[&error.details],
                    ..NOTHING
                });
                None
            }
        }
    }
}
