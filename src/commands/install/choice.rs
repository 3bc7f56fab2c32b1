//! `--only NAMES`: creates links for these plugins alone, in a directory that another program uses
//! as well. `--alias NAME=PLUGIN`: creates further names of plugins, as programs expect them that bring
//! copies of plugins under names of their own: KubeVirt's `cnv-bridge`, BuildKit's
//! `buildkit-cni-bridge`. An alias is a link to the plugin's link: a process that is called by an
//! unknown name reads where the link of that name leads.
//!
//! Both stay with the directory: a rollback, `--watch` and the next installation follow them, until
//! `--all` or `--no-alias` ends them.

use clap::{Arg, ArgAction, ArgMatches};

use super::layout::{ALIASES, BINARY, ONLY, is_plugin_name, lines_of, target};
use super::on_path;
use crate::commands::advice_about_plugin;
use crate::error::{Code, Error, Result};
use crate::registry::PLUGINS;
use crate::terminal::arguments::{flag, option};

/// `--only`, `--all`, `--alias` and `--no-alias`.
pub fn arguments() -> [Arg; 4] {
    let only = "Link these plugins alone, separated by commas, now and at later installations";
    let alias = "Link further names to plugins, now and at later installations";
    [
        option("only", "NAMES", only).value_delimiter(',').conflicts_with("all"),
        flag("all", "Link every plugin again"),
        option("alias", "NAME=PLUGIN", alias)
            .value_delimiter(',')
            .action(ArgAction::Append)
            .conflicts_with("no-alias"),
        flag("no-alias", "Remove the further names"),
    ]
    .map(|argument| argument.conflicts_with_all(["rollback", "uninstall", "watch"]))
}

/// Which plugins get links.
pub enum Choice {
    /// Those that an earlier run has chosen, else all.
    Kept,
    /// These.
    Only(Vec<String>),
    /// All.
    All,
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

/// A further name of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    pub name: String,
    pub plugin: String,
}

/// The aliases of a directory.
pub enum Aliases {
    /// Those that an earlier run has named.
    Kept,
    /// These.
    Only(Vec<Alias>),
}

impl Alias {
    fn parse(text: &str) -> Option<Alias> {
        let (name, plugin) = text.split_once('=')?;
        let is_free =
            is_plugin_name(name) && !name.starts_with(BINARY) && !on_path::NAMES.contains(&name);
        (is_free && is_plugin_name(plugin))
            .then(|| Alias { name: name.to_owned(), plugin: plugin.to_owned() })
    }

    /// Whether the name is the alias's link.
    pub fn is_linked(&self) -> bool {
        target(&self.name) == self.plugin
    }

    pub fn line(&self) -> String {
        [&self.name, "=", &self.plugin].concat()
    }
}

impl Aliases {
    /// Those of the options. Refuses a plugin's name, and a plugin that there is not.
    pub fn of(matches: &ArgMatches) -> Result<Aliases> {
        let Some(texts) = matches.get_many::<String>("alias") else {
            let is_none = matches.get_flag("no-alias");
            return Ok(if is_none { Aliases::Only(vec![]) } else { Aliases::Kept });
        };
        let refused = |problem| Error::new(Code::INVALID_CONFIG, problem);
        let mut aliases = vec![];
        for text in texts {
            let alias = Alias::parse(text)
                .filter(|alias| !PLUGINS.iter().any(|entry| entry.name == alias.name));
            let alias = alias.ok_or_else(|| {
                refused(format!("--alias: {text:?} is no further name")).with_details(
                    "expected NAME=PLUGIN, with a name of a-z, 0-9 and - that is free",
                )
            })?;
            require_plugin("--alias", &alias.plugin)?;
            aliases.push(alias);
        }
        let is_twice = |at: usize| aliases[..at].iter().any(|it| it.name == aliases[at].name);
        if let Some(at) = (0..aliases.len()).find(|at| is_twice(*at)) {
            return Err(refused(format!("--alias: {:?} is given twice", aliases[at].name))
                .with_details("a name is a link to one plugin"));
        }
        Ok(Aliases::Only(aliases))
    }

    /// Returns an error if `--alias` names a plugin that the installer does not link now. It keeps
    /// the aliases of earlier runs, and links each once its plugin is linked again.
    pub fn require_linked(&self, names: &[String]) -> Result<()> {
        let Aliases::Only(aliases) = self else { return Ok(()) };
        match aliases.iter().find(|alias| !names.contains(&alias.plugin)) {
            None => Ok(()),
            Some(alias) => {
                let problem = format!("--alias: {:?} would not be linked", alias.plugin);
                let advice = format!("expected one of the linked plugins: {}", names.join(" "));
                Err(Error::new(Code::INVALID_CONFIG, problem).with_details(advice))
            }
        }
    }

    /// The aliases.
    pub fn all(&self) -> Result<Vec<Alias>> {
        match self {
            Aliases::Kept => recorded(),
            Aliases::Only(aliases) => Ok(aliases.clone()),
        }
    }
}

/// The aliases that an earlier run has named.
pub fn recorded() -> Result<Vec<Alias>> {
    let lines = lines_of(ALIASES)?.unwrap_or_default();
    Ok(lines.iter().filter_map(|line| Alias::parse(line)).collect())
}
