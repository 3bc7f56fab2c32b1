//! `cni-multi install` itself: keeps what was there, renames the binary and links its names.

use std::fs;
use std::path::Path;

use super::choice::{self, Alias, Aliases, Choice};
use super::layout::{
    ALIASES, ALIASES_DRAFT, BINARY, NEW, ONLY, ONLY_DRAFT, PREVIOUS, REPLACED, ROLLED_BACK,
    attempt, exists, is_anything_kept, is_content, is_our_link, is_same, keep, kept, lines_of,
    link, list_names, names_in, record, rename, target, write_draft,
};
use super::on_path;
use super::work::{New, Work};
use crate::error::{Code, Error, Result};
use crate::terminal::visible::visible;

impl Work<'_> {
    pub(super) fn install(&mut self, new: &New) -> Result<()> {
        let names = if self.is_dry { new.names.clone() } else { write_new(&new.content)? };
        let names = self.chosen(names)?;
        let names = self.without_others(names);
        self.further.require_linked(&names)?;
        refuse_directories(&names)?;
        self.keep_choices()?;
        // The replaced binary is kept for a rollback, unless it is this same build.
        if exists(BINARY) && target(BINARY).is_empty() && is_content(BINARY, &new.content) {
            self.say(&format!("{}/{BINARY} is this build already", self.dir));
        } else if exists(BINARY) {
            self.make(PREVIOUS, || keep(BINARY, PREVIOUS))?;
            if exists(ROLLED_BACK) {
                self.remove(ROLLED_BACK)?;
            }
        }
        self.keep_foreign(&names)?;
        self.make(BINARY, || rename(NEW, BINARY))?;
        self.finish("cni-multi is installed in", &names)?;
        self.put_on_path()
    }

    /// Keeps replaced files. If several files had a name in succession, the first one is restored.
    /// Of several links it is the last one: a program such as k3s links its plugins again at each of
    /// its upgrades, and the target of the first may be gone.
    pub(super) fn keep_foreign(&mut self, names: &[String]) -> Result<()> {
        for name in names {
            let is_foreign = exists(name) && !is_our_link(name, &self.dir);
            if is_foreign && (!exists(&kept(name)) || is_next_link(name)) {
                self.make(&kept(name), || keep(name, &kept(name)))?;
            } else if is_foreign && !is_same(name, &kept(name)) {
                self.say(&format!(
                    "{dir}/{name} came after {dir}/{REPLACED}/{name}, which stays the one that is kept",
                    dir = self.dir
                ));
            }
        }
        Ok(())
    }

    /// Links the binary into a directory of PATH. The plugins are installed by then, so it is an
    /// error only if the user has named the directory.
    pub(super) fn put_on_path(&mut self) -> Result<()> {
        let mut links: Vec<String> = self.path.links().collect();
        let mut done = Ok(());
        for link in &links {
            let wanted = on_path::is_wanted(link, &self.dir);
            let put = wanted.and_then(|is_wanted| match (is_wanted, self.is_dry) {
                (false, _) => Ok(()),
                (true, true) => self.make(link, || Ok(())),
                (true, false) => on_path::link(link, &self.dir),
            });
            let put = match put {
                Err(error) if !self.path.is_named => {
                    let advice = "--path DIR names another directory of PATH, and --no-path none";
                    let _ = writeln!(self.err, "{}; {advice}", visible(&error.to_string())); // a mere note
                    Ok(())
                }
                put => put,
            };
            done = done.and(put); // the other link is made all the same
        }
        links.retain(|link| on_path::is_ours(link, &self.dir));
        if !self.is_dry && !links.is_empty() {
            self.say(&format!("Links to it in a directory of PATH: {}", links.join(" ")));
        }
        done
    }

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

    /// Keeps the choice and the aliases for later runs, and removes the links of earlier aliases.
    pub(super) fn keep_choices(&mut self) -> Result<()> {
        self.keep_list(ONLY, ONLY_DRAFT, self.choice.names()?)?;
        let (before, now) = (choice::recorded()?, self.further.all()?);
        let names: Vec<String> = now.iter().map(|alias| alias.name.clone()).collect();
        refuse_directories(&names)?;
        let mut ended = before.iter().filter(|alias| !now.contains(alias));
        ended.try_for_each(|alias| self.unlink_alias(alias))?;
        let is_kept = matches!(self.further, Aliases::Kept);
        if before == now && (is_kept || exists(ALIASES) != now.is_empty()) {
            return Ok(()); // a line that only a newer version reads stays
        }
        let lines: Vec<String> = now.iter().map(Alias::line).collect();
        self.keep_list(ALIASES, ALIASES_DRAFT, Some(lines).filter(|lines| !lines.is_empty()))
    }

    /// Writes a list if it has changed, and removes one without words.
    fn keep_list(&mut self, list: &str, draft: &str, words: Option<Vec<String>>) -> Result<()> {
        let before = lines_of(list)?;
        match words {
            Some(words) if before.as_ref() != Some(&words) => {
                self.make(list, || record(list, draft, &words))
            }
            None if exists(list) => self.remove(list),
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

/// Whether both the name and what is kept of it are links, to different targets.
fn is_next_link(name: &str) -> bool {
    let (now, before) = (target(name), target(&kept(name)));
    !now.is_empty() && !before.is_empty() && now != before
}

/// Writes the new binary beside its later name, and lists its names from there: a directory that is
/// mounted noexec would be of no use to a runtime.
pub(super) fn write_new(content: &[u8]) -> Result<Vec<String>> {
    attempt("make", REPLACED, fs::create_dir_all(REPLACED))?;
    attempt("write", NEW, write_draft(NEW, content, 0o755))?;
    list_names(NEW, "the copy of this binary")
}
