//! The programs of plugins.

use std::time::Duration;

use super::checker::{Checker, did_you_mean};
use super::document::Spot;
use super::finding::Note;
use crate::cni::delegate;
use crate::terminal::nearest::nearest;

/// The timeout of a program that is asked for its versions.
const PATIENCE: Duration = Duration::from_secs(5);

impl Checker<'_> {
    /// Whether the program that the configuration names here, or else `kind`, is in the runtime's
    /// path and supports the version.
    pub fn check_program(&mut self, spot: &Spot, kind: &str, version: &str) -> bool {
        let named = self.documents[spot.document].string_at(&spot.path);
        let kind = named.as_deref().unwrap_or(kind);
        let Some(versions) = self.versions(spot, kind) else { return false };
        if version.is_empty() {
            return false;
        }
        let speaks = versions.iter().any(|spoken| spoken == version);
        if !speaks {
            let message = &[kind, " does not support version ", version];
            let expected = versions.join(", ");
            self.tell(Note::new("version-of-plugin", spot, message).expecting(&expected));
        }
        speaks
    }

    /// The versions of a plugin, which is asked once.
    fn versions(&mut self, spot: &Spot, kind: &str) -> Option<Vec<String>> {
        if let Some((_, known)) = self.asked.iter().find(|(asked, _)| asked == kind) {
            return known.clone();
        }
        let versions = self.ask(spot, kind);
        self.asked.push((kind.to_owned(), versions.clone()));
        versions
    }

    /// The versions of a plugin, if it exists and reports them.
    fn ask(&mut self, spot: &Spot, kind: &str) -> Option<Vec<String>> {
        if let Err(error) = delegate::find(kind, &self.runtime.directories()) {
            // No directory has the program; it may be compiled in.
            let message = &[error.msg.as_str()];
            let Some(own) = self.own(kind) else {
                let near = nearest(kind, self.runtime.plugins.iter().map(|entry| entry.name));
                let hint = near.map(did_you_mean).unwrap_or_default();
                self.tell(Note::new("no-plugin", spot, message).hint(&hint));
                return None;
            };
            let hint = &["only `cni-multi net` can run it: it is compiled in"];
            self.tell(Note::new("not-on-path", spot, message).hint(hint));
            return Some(own.version_list());
        }
        match self.runtime.versions_within(kind, PATIENCE) {
            Ok(versions) => Some(versions),
            Err(error) => {
                let message = &["it does not report its versions: ", error.msg.as_str()];
                self.tell(Note::new("no-answer", spot, message).hint(&[&error.details()]));
                None
            }
        }
    }
}
