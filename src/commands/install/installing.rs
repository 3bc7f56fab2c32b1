//! `cni-multi install` itself: keeps what was there, renames the binary and links its names.

use std::fs;

use super::change::keep;
use super::layout::{
    BINARY, NEW, PREVIOUS, REPLACED, ROLLED_BACK, attempt, exists, is_content, is_our_link,
    is_same, kept, rename, target, write_draft,
};
use super::links::refuse_directories;
use super::on_path;
use super::program::list_names;
use super::work::{New, Work};
use crate::error::Result;
use crate::terminal::visible::visible;

impl Work<'_> {
    pub(super) fn install(&mut self, new: &New) -> Result<()> {
        let names = if self.is_dry { new.names.clone() } else { write_new(&new.content)? };
        let names = self.chosen(names)?;
        let names = self.without_others(names);
        self.further.require_linked(&names)?;
        refuse_directories(&names)?;
        self.keep_choice()?;
        self.keep_aliases()?;
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
            let put = match self.put_link(link) {
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

    fn put_link(&mut self, link: &str) -> Result<()> {
        let dir = self.dir.clone();
        if !on_path::is_wanted(link, &dir)? {
            return Ok(());
        }
        if self.is_dry { self.make(link, || Ok(())) } else { on_path::link(link, &dir) }
    }
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
