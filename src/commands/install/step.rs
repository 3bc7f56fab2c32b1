//! The steps of an installation: what each one changes, and the path that a dry run lists for it.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::alias::Alias;
use super::layout::{
    ALIASES, ALIASES_DRAFT, BINARY, KEEP, LINK, NEW, ON_PATH, ONLY, ONLY_DRAFT, PREVIOUS,
    ROLLED_BACK, attempt, content, kept, remove, rename, write_draft,
};
use super::on_path;
use crate::error::Result;
use crate::plain_file;

/// One change of the plugin directory. After each, every plugin has a file.
pub enum Step<'a> {
    /// Keeps the present binary for a rollback.
    KeepPrevious,
    /// Removes the mark of a rollback.
    ForgetRollback,
    /// Keeps the chosen names.
    Choose(&'a [String]),
    /// Forgets an earlier choice of names.
    ForgetChoice,
    /// Keeps the aliases.
    KeepAliases(&'a [Alias]),
    /// Forgets earlier aliases.
    ForgetAliases,
    /// Keeps a file of another owner that has this plugin's name.
    KeepForeign(&'a str),
    /// Gives the new binary its name.
    RenameNew,
    /// Replaces the name by a link to the binary.
    Link(&'a str),
    /// Replaces the alias's name by a link to its plugin's.
    LinkAlias(&'a Alias),
    /// Makes this link to the binary in a directory of PATH; the plugin directory.
    PutOnPath(&'a str, &'a str),
    /// Removes such a link.
    TakeOffPath(&'a str),
    /// Marks the rollback.
    MarkRollback,
    /// Gives the previous binary its name back.
    RenamePrevious,
    /// Gives a replaced file its name back.
    Restore(&'a str),
    /// Removes a link to the binary.
    Unlink(&'a str),
    /// Removes a kept file that is back already.
    DropKept(&'a str),
    /// Removes the binary, and what is kept of it.
    RemoveBinary,
}

impl Step<'_> {
    /// The path that the step changes, from the plugin directory, and whether it removes it.
    pub fn path(&self) -> (String, bool) {
        let (name, is_removed) = match self {
            Step::KeepPrevious => (PREVIOUS, false),
            Step::ForgetRollback => (ROLLED_BACK, true),
            Step::Choose(_) => (ONLY, false),
            Step::ForgetChoice => (ONLY, true),
            Step::KeepAliases(_) => (ALIASES, false),
            Step::ForgetAliases => (ALIASES, true),
            Step::LinkAlias(alias) => (alias.name.as_str(), false),
            Step::KeepForeign(name) => return (kept(name), false),
            Step::RenameNew | Step::RenamePrevious => (BINARY, false),
            Step::Link(name) | Step::Restore(name) | Step::PutOnPath(name, _) => (*name, false),
            Step::Unlink(name) | Step::TakeOffPath(name) => (*name, true),
            Step::MarkRollback => (ROLLED_BACK, false),
            Step::DropKept(name) => return (kept(name), true),
            Step::RemoveBinary => (BINARY, true),
        };
        (name.to_owned(), is_removed)
    }

    /// Takes the step.
    pub fn take(&self) -> Result<()> {
        match self {
            Step::KeepPrevious => keep(BINARY, PREVIOUS),
            Step::ForgetRollback => remove(ROLLED_BACK),
            Step::Choose(names) => record(ONLY, ONLY_DRAFT, names),
            Step::ForgetChoice => remove(ONLY),
            Step::KeepAliases(aliases) => {
                let lines: Vec<String> = aliases.iter().map(Alias::line).collect();
                record(ALIASES, ALIASES_DRAFT, &lines)
            }
            Step::ForgetAliases => remove(ALIASES),
            Step::LinkAlias(alias) => link(&alias.name, &alias.plugin),
            Step::KeepForeign(name) => keep(name, &kept(name)),
            Step::RenameNew => rename(NEW, BINARY),
            Step::Link(name) => link(name, BINARY),
            Step::PutOnPath(link, dir) => on_path::link(link, dir),
            Step::TakeOffPath(link) => remove(link),
            Step::MarkRollback => {
                attempt("write", ROLLED_BACK, plain_file::create_anew(ROLLED_BACK.as_ref(), b""))
            }
            Step::RenamePrevious => rename(PREVIOUS, BINARY),
            Step::Restore(name) => rename(&kept(name), name),
            Step::Unlink(name) => remove(name),
            Step::DropKept(name) => remove(&kept(name)),
            Step::RemoveBinary => [BINARY, PREVIOUS, ROLLED_BACK, ON_PATH, ONLY, ALIASES]
                .into_iter()
                .try_for_each(remove),
        }
    }
}

/// Gives a file a second name; it has a name at every moment.
fn keep(name: &str, kept: &str) -> Result<()> {
    remove(KEEP)?;
    attempt("keep", name, fs::hard_link(name, KEEP).or_else(|_| copy(name, KEEP)))?;
    rename(KEEP, kept)
}

/// Copies a file if hard links are unsupported, or not permitted: a root without all capabilities
/// may be unable to link another user's symlink. A program is copied without set-user-ID, which
/// would change its owner.
fn copy(name: &str, to: &str) -> io::Result<()> {
    if let Ok(leads_to) = fs::read_link(name) {
        return symlink(leads_to, to);
    }
    let mode = fs::metadata(name)?.permissions().mode();
    write_draft(to, &content(name)?, mode & 0o777)
}

/// Writes a list, one word a line.
fn record(list: &str, draft: &str, words: &[String]) -> Result<()> {
    let text = words.join("\n") + "\n";
    attempt("write", list, write_draft(draft, text.as_bytes(), 0o644))?;
    rename(draft, list)
}

fn link(name: &str, to: &str) -> Result<()> {
    remove(LINK)?;
    attempt("link", name, symlink(to, LINK))?;
    rename(LINK, name)
}
