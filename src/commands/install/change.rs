//! The changes of a plugin directory. After each, every plugin has a file.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::layout::{KEEP, LINK, attempt, content, remove, rename, write_draft};
use crate::error::Result;

/// Gives a file a second name; it has a name at every moment.
pub fn keep(name: &str, kept: &str) -> Result<()> {
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
pub fn record(list: &str, draft: &str, words: &[String]) -> Result<()> {
    let text = words.join("\n") + "\n";
    attempt("write", list, write_draft(draft, text.as_bytes(), 0o644))?;
    rename(draft, list)
}

/// Replaces the name by a link.
pub fn link(name: &str, to: &str) -> Result<()> {
    remove(LINK)?;
    attempt("link", name, symlink(to, LINK))?;
    rename(LINK, name)
}
