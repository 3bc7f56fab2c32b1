//! What a run of `cni-multi install` is to do.

use std::fs;
use std::path::Path;

use clap::ArgMatches;

use super::layout::attempt;
use crate::error::Result;
use crate::plugin::Entry;

/// The requested action.
pub(super) enum Task {
    Install(New),
    Rollback,
    Uninstall,
}

/// What is to be installed: this binary.
pub(super) struct New {
    pub(super) content: Vec<u8>,
    /// The names of its plugins.
    pub(super) names: Vec<String>,
}

impl New {
    fn of(called: &Path, plugins: &[Entry]) -> Result<New> {
        let content = own_content(called)?;
        let names = plugins.iter().map(|entry| entry.name.to_owned()).collect();
        Ok(New { content, names })
    }
}

/// The content of this binary, which was called by that path.
pub(super) fn own_content(called: &Path) -> Result<Vec<u8>> {
    let own = fs::read("/proc/self/exe").or_else(|_| fs::read(called));
    attempt("read", "this binary", own)
}

impl Task {
    pub(super) fn of(matches: &ArgMatches, called: &Path, plugins: &[Entry]) -> Result<Task> {
        if matches.get_flag("rollback") {
            return Ok(Task::Rollback);
        }
        if matches.get_flag("uninstall") {
            return Ok(Task::Uninstall);
        }
        New::of(called, plugins).map(Task::Install)
    }

    pub(super) fn is_install(&self) -> bool {
        matches!(self, Task::Install(_))
    }
}
