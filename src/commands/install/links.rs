//! The links of a plugin directory: which names are ours to link, and what becomes of the others.

use std::path::Path;

use super::alias::{self, Alias};
use super::change::{link, record};
use super::choice::Choice;
use super::layout::{
    ALIASES, ALIASES_DRAFT, BINARY, ONLY, ONLY_DRAFT, REPLACED, exists, is_anything_kept,
    is_our_link, kept, lines_of, names_in, rename, target,
};
use super::work::Work;
use crate::error::{Code, Error, Result};

impl Work<'_> {
    /// The chosen ones of the names. None at all is an error: every link would go.
    pub(super) fn chosen(&self, mut names: Vec<String>) -> Result<Vec<String>> {
        let Some(only) = self.choice.names()? else { return Ok(names) };
        names.retain(|name| only.contains(name));
        if names.is_empty() {
            let problem = format!("{ONLY} names no plugin of this binary");
            return Err(Error::new(Code::CONFLICT, problem)
                .with_details("--all links every plugin, --only NAMES others"));
        }
        Ok(names)
    }

    /// Keeps the choice for later runs.
    pub(super) fn keep_choice(&mut self) -> Result<()> {
        let before = lines_of(ONLY)?;
        match self.choice.names()? {
            Some(names) if before.as_ref() != Some(&names) => {
                self.make(ONLY, || record(ONLY, ONLY_DRAFT, &names))
            }
            None if exists(ONLY) => self.remove(ONLY),
            _ => Ok(()),
        }
    }

    /// The names without those of aliases that another program has, each of which is reported.
    pub(super) fn without_others(&mut self, names: Vec<String>) -> Vec<String> {
        let (others, names): (Vec<String>, Vec<String>) =
            names.into_iter().partition(|name| self.is_another(name));
        for alias in others {
            self.say(&format!(
                "{}/{alias} is another program and stays; without it, the next installation links {alias}",
                self.dir
            ));
        }
        names
    }

    /// Whether another program has the name of an alias.
    pub(super) fn is_another(&self, name: &str) -> bool {
        self.aliases.contains(&name) && exists(name) && !is_our_link(name, &self.dir)
    }

    /// Creates the links, and removes those with other names.
    pub(super) fn link_names(&mut self, names: &[String]) -> Result<()> {
        for name in names.iter().filter(|name| target(name) != BINARY) {
            self.make(name, || link(name, BINARY))?;
        }
        self.unlink_others(names)
    }

    /// Removes our links that are not in `names`, and restores the files that they replaced.
    pub(super) fn unlink_others(&mut self, names: &[String]) -> Result<()> {
        for name in names_in(".") {
            if !names.contains(&name) && is_our_link(&name, &self.dir) {
                self.unlink(&name)?;
            }
        }
        Ok(())
    }

    /// Removes a link of ours, or restores the file that it replaced.
    pub(super) fn unlink(&mut self, name: &str) -> Result<()> {
        let kept = kept(name);
        if exists(&kept) { self.make(name, || rename(&kept, name)) } else { self.remove(name) }
    }

    /// Keeps the aliases for later runs, and removes the links of earlier ones.
    pub(super) fn keep_aliases(&mut self) -> Result<()> {
        let (before, now) = (alias::recorded()?, self.further.all()?);
        let names: Vec<String> = now.iter().map(|alias| alias.name.clone()).collect();
        refuse_directories(&names)?;
        let mut ended = before.iter().filter(|alias| !now.contains(alias));
        ended.try_for_each(|alias| self.unlink_alias(alias))?;
        match now.is_empty() {
            false if before != now => {
                let lines: Vec<String> = now.iter().map(Alias::line).collect();
                self.make(ALIASES, || record(ALIASES, ALIASES_DRAFT, &lines))
            }
            true if exists(ALIASES) => self.remove(ALIASES),
            _ => Ok(()),
        }
    }

    /// Links the aliases of these plugins. Those of other plugins lead nowhere.
    pub(super) fn link_aliases(&mut self, plugins: &[String]) -> Result<()> {
        for alias in self.further.all()? {
            if !plugins.contains(&alias.plugin) {
                self.unlink_alias(&alias)?;
            } else if !alias.is_linked() {
                self.keep_foreign(std::slice::from_ref(&alias.name))?;
                self.make(&alias.name, || link(&alias.name, &alias.plugin))?;
            }
        }
        Ok(())
    }

    /// Removes an alias's link, or restores the file that it replaced.
    pub(super) fn unlink_alias(&mut self, alias: &Alias) -> Result<()> {
        if alias.is_linked() { self.unlink(&alias.name) } else { Ok(()) }
    }

    /// Links the names to the binary in place, and reports what is installed.
    pub(super) fn finish(&mut self, done: &str, names: &[String]) -> Result<()> {
        self.link_names(names)?;
        self.link_aliases(names)?;
        if self.is_dry {
            return Ok(());
        }
        let aliases = self.further.all()?;
        let aliases = aliases.iter().filter(|alias| names.contains(&alias.plugin)).map(Alias::line);
        let names: Vec<String> = names.iter().cloned().chain(aliases).collect();
        self.say(&format!("{done} {}, with these plugins: {}", self.dir, names.join(" ")));
        // Why a run without `--only` has not linked every plugin.
        if matches!(self.choice, Choice::Kept) && exists(ONLY) {
            let line = format!("{}/{ONLY} names these alone; --all links every plugin", self.dir);
            self.say(&line);
        }
        if is_anything_kept() {
            let dir = &self.dir;
            self.say(&format!(
                "What had these names before is kept in {dir}/{REPLACED} for --uninstall."
            ));
        }
        Ok(())
    }
}

pub(super) fn refuse_directories(names: &[String]) -> Result<()> {
    for name in names.iter().map(String::as_str).chain([BINARY]) {
        if Path::new(name).symlink_metadata().is_ok_and(|there| there.is_dir()) {
            let problem = [name, " is a directory; nothing was changed"].concat();
            return Err(Error::new(Code::CONFLICT, problem));
        }
    }
    Ok(())
}
