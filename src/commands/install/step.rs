//! The steps of an installation: what each one changes, and the sentence with which a dry run
//! announces it.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::layout::{
    BINARY, KEEP, LINK, NEW, ON_PATH, ONLY, ONLY_DRAFT, PREVIOUS, REPLACED, ROLLED_BACK, attempt,
    content, kept, remove, rename, write_draft,
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
    /// Keeps a file of another owner that has this plugin's name.
    KeepForeign(&'a str),
    /// Gives the new binary its name.
    RenameNew,
    /// Replaces the name by a link to the binary.
    Link(&'a str),
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
    /// The step in words; `dir` is the plugin directory.
    pub fn sentence(&self, dir: &str) -> String {
        match self {
            Step::KeepPrevious => format!("keep {dir}/{BINARY} as {dir}/{PREVIOUS}"),
            Step::ForgetRollback => "forget that the install before was rolled back".to_owned(),
            Step::Choose(names) => format!("write {} into {dir}/{ONLY}", names.join(" ")),
            Step::ForgetChoice => format!("remove {dir}/{ONLY}"),
            Step::KeepForeign(name) => format!("move {dir}/{name} to {dir}/{REPLACED}/{name}"),
            Step::RenameNew => format!("rename the new binary to {dir}/{BINARY}"),
            Step::Link(name) => format!("link {dir}/{name} to {BINARY}"),
            Step::PutOnPath(link, dir) => format!("link {link} to {dir}/{BINARY}"),
            Step::TakeOffPath(link) => format!("remove the link {link}"),
            Step::MarkRollback => format!("mark the rollback in {dir}/{ROLLED_BACK}"),
            Step::RenamePrevious => format!("rename {dir}/{PREVIOUS} to {dir}/{BINARY}"),
            Step::Restore(name) => format!("move {dir}/{REPLACED}/{name} back to {dir}/{name}"),
            Step::Unlink(name) => format!("remove the link {dir}/{name}"),
            Step::DropKept(name) => {
                format!("remove {dir}/{REPLACED}/{name}, which {dir}/{name} still is")
            }
            Step::RemoveBinary => {
                format!("remove {dir}/{BINARY}, {dir}/{PREVIOUS} and {dir}/{ROLLED_BACK}")
            }
        }
    }

    /// Takes the step.
    pub fn take(&self) -> Result<()> {
        match self {
            Step::KeepPrevious => keep(BINARY, PREVIOUS),
            Step::ForgetRollback => remove(ROLLED_BACK),
            Step::Choose(names) => record_choice(names),
            Step::ForgetChoice => remove(ONLY),
            Step::KeepForeign(name) => keep(name, &kept(name)),
            Step::RenameNew => rename(NEW, BINARY),
            Step::Link(name) => link(name),
            Step::PutOnPath(link, dir) => on_path::link(link, dir),
            Step::TakeOffPath(link) => remove(link),
            Step::MarkRollback => {
                attempt("write", ROLLED_BACK, plain_file::create_anew(ROLLED_BACK.as_ref(), b""))
            }
            Step::RenamePrevious => rename(PREVIOUS, BINARY),
            Step::Restore(name) => rename(&kept(name), name),
            Step::Unlink(name) => remove(name),
            Step::DropKept(name) => remove(&kept(name)),
            Step::RemoveBinary => {
                [BINARY, PREVIOUS, ROLLED_BACK, ON_PATH, ONLY].into_iter().try_for_each(remove)
            }
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
/// may be unable to link another user's symlink.
fn copy(name: &str, to: &str) -> io::Result<()> {
    match fs::read_link(name) {
        Ok(leads_to) => symlink(leads_to, to),
        Err(_) => copy_program(name, to),
    }
}

/// Copies a program without set-user-ID, which would change its owner.
fn copy_program(name: &str, to: &str) -> io::Result<()> {
    let mode = fs::metadata(name)?.permissions().mode();
    write_draft(to, &content(name)?, mode & 0o777)
}

/// Writes the chosen names, one a line.
fn record_choice(names: &[String]) -> Result<()> {
    let text = names.join("\n") + "\n";
    attempt("write", ONLY, write_draft(ONLY_DRAFT, text.as_bytes(), 0o644))?;
    rename(ONLY_DRAFT, ONLY)
}

fn link(name: &str) -> Result<()> {
    remove(LINK)?;
    attempt("link", name, symlink(BINARY, LINK))?;
    rename(LINK, name)
}
