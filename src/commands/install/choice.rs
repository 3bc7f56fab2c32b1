//! `--only NAMES`: creates links for these plugins alone, in a directory that another program uses
//! as well.
//!
//! The choice stays with the directory: a rollback, `--watch` and the next installation follow it,
//! until `--all` ends it.

use clap::{Arg, ArgAction, ArgMatches};

use super::layout::{ONLY, lines_of};
use crate::commands::advice_about_plugin;
use crate::error::{Code, Error, Result};
use crate::registry::PLUGINS;

/// Which plugins get links.
pub enum Choice {
    /// Those that an earlier run has chosen, else all.
    Kept,
    /// These.
    Only(Vec<String>),
    /// All.
    All,
}

/// `--only` and `--all`.
pub fn arguments() -> [Arg; 2] {
    let only = Arg::new("only").long("only").value_name("NAMES").value_delimiter(',');
    let all = Arg::new("all").long("all").action(ArgAction::SetTrue);
    [
        only.help("Link these plugins alone, separated by commas, now and at later installations")
            .conflicts_with_all(["all", "rollback", "uninstall", "watch"]),
        all.help("Link every plugin again").conflicts_with_all(["rollback", "uninstall", "watch"]),
    ]
}

impl Choice {
    /// What the options choose. Refuses a name that no plugin has.
    pub fn of(matches: &ArgMatches) -> Result<Choice> {
        let Some(names) = matches.get_many::<String>("only") else {
            return Ok(if matches.get_flag("all") { Choice::All } else { Choice::Kept });
        };
        let names: Vec<String> = names.cloned().collect();
        names.iter().try_for_each(|name| require_plugin("--only", name))?;
        let chosen = PLUGINS.iter().map(|entry| entry.name.to_owned());
        Ok(Choice::Only(chosen.filter(|name| names.contains(name)).collect()))
    }

    /// The chosen names; None for all.
    pub fn names(&self) -> Result<Option<Vec<String>>> {
        match self {
            Choice::Kept => lines_of(ONLY),
            Choice::Only(names) => Ok(Some(names.clone())),
            Choice::All => Ok(None),
        }
    }
}

/// Refuses a name that no plugin has.
pub fn require_plugin(option: &str, name: &str) -> Result<()> {
    if PLUGINS.iter().any(|entry| entry.name == name) {
        return Ok(());
    }
    let problem = format!("{option}: no plugin is named {name:?}");
    let error = Error::new(Code::INVALID_CONFIG, problem);
    if name.is_empty() {
        return Err(error.with_details("expected names, with one comma between two of them"));
    }
    Err(error.with_details(advice_about_plugin(name)))
}
