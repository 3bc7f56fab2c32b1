//! `--only NAMES`: some of the plugins, for a directory whose other names belong to another program.
//!
//! The choice stays with the directory: a rollback, `--watch` and the next installation follow it,
//! until `--all` ends it.

use std::fs;
use std::io;

use clap::{Arg, ArgAction, ArgMatches};

use super::layout::{ONLY, ONLY_DRAFT, attempt, exists, write_draft};
use super::step::Step;
use super::work::Work;
use crate::error::{Code, Error, Result};
use crate::plugin::Entry;
use crate::terminal::nearest::nearest;

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
            .conflicts_with_all(["all", "rollback", "uninstall", "watch", "left"]),
        all.help("Link every plugin again").conflicts_with_all([
            "rollback",
            "uninstall",
            "watch",
            "left",
        ]),
    ]
}

impl Choice {
    /// What the options choose. Refuses a name that no plugin has.
    pub fn of(matches: &ArgMatches, plugins: &[Entry]) -> Result<Choice> {
        let Some(names) = matches.get_many::<String>("only") else {
            return Ok(if matches.get_flag("all") { Choice::All } else { Choice::Kept });
        };
        let names: Vec<String> = names.cloned().collect();
        names.iter().try_for_each(|name| require_plugin(name, plugins))?;
        let chosen = plugins.iter().map(|entry| entry.name.to_owned());
        Ok(Choice::Only(chosen.filter(|name| names.contains(name)).collect()))
    }

    /// The chosen names; None for all.
    fn names(&self) -> Result<Option<Vec<String>>> {
        match self {
            Choice::Kept => recorded(),
            Choice::Only(names) => Ok(Some(names.clone())),
            Choice::All => Ok(None),
        }
    }
}

fn require_plugin(name: &str, plugins: &[Entry]) -> Result<()> {
    if plugins.iter().any(|entry| entry.name == name) {
        return Ok(());
    }
    let error = Error::new(Code::INVALID_CONFIG, format!("--only: no plugin is named {name:?}"));
    Err(match nearest(name, plugins.iter().map(|entry| entry.name)) {
        Some(near) => error.with_details(format_args!("did you mean {near:?}?")),
        None => error.with_details("`cni-multi list` lists the plugins"),
    })
}

/// The names that an earlier run has chosen.
fn recorded() -> Result<Option<Vec<String>>> {
    match fs::read_to_string(ONLY) {
        Ok(text) => Ok(Some(text.lines().map(str::to_owned).collect())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => attempt("read", ONLY, Err(error)),
    }
}

/// Writes the choice, a name a line.
pub fn record(names: &[String]) -> Result<()> {
    let text = names.join("\n") + "\n";
    let written = write_draft(ONLY_DRAFT, text.as_bytes(), 0o644);
    attempt("write", ONLY, written.and_then(|()| fs::rename(ONLY_DRAFT, ONLY)))
}

impl Work<'_> {
    /// The chosen ones of the names. None at all is an error: every link would go.
    pub(super) fn chosen(&self, mut names: Vec<String>) -> Result<Vec<String>> {
        let Some(only) = self.choice.names()? else { return Ok(names) };
        names.retain(|name| only.contains(name));
        if names.is_empty() { Err(nothing_chosen()) } else { Ok(names) }
    }

    /// Keeps the choice for later runs.
    pub(super) fn keep_choice(&mut self) -> Result<()> {
        let before = recorded()?;
        match self.choice.names()? {
            Some(names) if before.as_ref() != Some(&names) => self.act(Step::Choose(&names)),
            None if exists(ONLY) => self.act(Step::ForgetChoice),
            _ => Ok(()),
        }
    }

    /// Says why a run without `--only` has not linked every plugin.
    pub(super) fn say_choice(&mut self) {
        if matches!(self.choice, Choice::Kept) && exists(ONLY) {
            let line = format!("{}/{ONLY} names these alone; --all links every plugin", self.dir);
            self.say(&line);
        }
    }
}

fn nothing_chosen() -> Error {
    let problem = format!("{ONLY} names no plugin of this binary");
    Error::new(Code::CONFLICT, problem)
        .with_details("--all links every plugin, --only NAMES others")
}
