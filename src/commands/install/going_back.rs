//! `--rollback` and `--uninstall`: what was replaced comes back.

use std::fs;
use std::path::Path;

use nix::errno::Errno;

use super::installing::refuse_directories;
use super::layout::{
    ALIASES, BINARY, ON_PATH, ONLY, PREVIOUS, REPLACED, ROLLED_BACK, attempt, exists,
    is_anything_kept, is_our_link, is_same, kept, list_names, names_in, remove, rename, target,
};
use super::work::Work;
use super::{choice, on_path};
use crate::error::{Code, Error, Result};
use crate::plain_file;
use crate::runtime::handover::{self, Handover};
use crate::runtime::leave;
use crate::terminal::visible::visible;

/// Where packages have the binary. What calls `--uninstall` from there is the package's removal.
const PACKAGED: [&str; 2] = ["/usr/lib", "/usr/libexec"];

/// The report of a completed rollback, before the directory.
const ROLLBACK_REPORT: &str = "The previous cni-multi is back in";

impl Work<'_> {
    pub(super) fn roll_back(&mut self) -> Result<()> {
        if exists(PREVIOUS) {
            let mut names = self.chosen(list_names(PREVIOUS, PREVIOUS)?)?;
            names.retain(|name| !self.is_another(name));
            refuse_directories(&names)?;
            // Mark it first: a run interrupted after the rename must count as a rollback.
            self.make(ROLLED_BACK, || {
                attempt("write", ROLLED_BACK, plain_file::create_anew(ROLLED_BACK.as_ref(), b""))
            })?;
            self.keep_foreign(&names)?;
            self.make(BINARY, || rename(PREVIOUS, BINARY))?;
            self.finish(ROLLBACK_REPORT, &names)
        } else if exists(ROLLED_BACK) {
            self.complete_rollback()
        } else if is_anything_kept() {
            self.hand_over();
            self.remove_all()
        } else {
            let problem = "no previous binary and no replaced plugins to go back to";
            Err(Error::new(Code::IO, problem).with_details("--uninstall removes cni-multi"))
        }
    }

    /// Links what an interrupted rollback may have left unlinked.
    fn complete_rollback(&mut self) -> Result<()> {
        let names = self.chosen(list_names(BINARY, BINARY)?)?;
        let names = self.without_others(names);
        let ours = names_in(".").into_iter().filter(|name| is_our_link(name, &self.dir)).count();
        let is_complete = ours == names.len()
            && names.iter().all(|name| target(name) == BINARY)
            && choice::recorded()?.iter().all(|it| it.is_linked() == names.contains(&it.plugin));
        if !is_complete {
            return self.finish(ROLLBACK_REPORT, &names);
        }
        self.say(&format!(
            "{} was rolled back already; --uninstall goes back to before cni-multi.",
            self.dir
        ));
        Ok(())
    }

    /// Makes what the reference's DEL of our attachments looks for. Without it a second DEL succeeds,
    /// so a failure is a note.
    pub(super) fn hand_over(&mut self) {
        if self.is_dry {
            return;
        }
        let note = match handover::make_chains() {
            Err(error) if error.is_errno(Errno::EPERM) => return, // nor can this user attach any
            Err(error) => format!("chains of iptables for the reference's DEL: {error}"),
            Ok(Handover { chains, unnamed }) => {
                if chains > 0 {
                    self.say(&format!("Chains of iptables made for the reference's DEL: {chains}"));
                }
                if unnamed == 0 {
                    return;
                }
                format!("{unnamed} masqueraded attachments have no record with their names")
            }
        };
        let advice = "the reference's first DEL may fail, and the second succeeds";
        let _ = writeln!(self.err, "{}; {advice}", visible(&note)); // a mere note
    }

    /// Uninstalls. Restores the replaced files before it removes the binary, so that a name common
    /// to both is never missing.
    pub(super) fn remove_all(&mut self) -> Result<()> {
        let aliases = choice::recorded()?;
        aliases.iter().try_for_each(|alias| self.unlink_alias(alias))?;
        self.unlink_others(&[])?;
        let is_alias = |name: &String| aliases.iter().any(|it| it.name == *name && it.is_linked());
        // In a dry run the aliases are there still.
        for name in names_in(REPLACED).iter().filter(|name| !is_alias(name)) {
            self.restore(name)?;
        }
        // Links in directories of PATH go before the binary that they lead to.
        for link in on_path::present(&self.path, &self.dir) {
            self.remove(&link)?;
        }
        self.act(BINARY, true, || {
            [BINARY, PREVIOUS, ROLLED_BACK, ON_PATH, ONLY, ALIASES].into_iter().try_for_each(remove)
        })?;
        if self.is_dry {
            return Ok(());
        }
        self.say(&format!("cni-multi is removed from {}.", self.dir));
        let left = left();
        if !left.is_empty() {
            self.say(&left);
        }
        Ok(())
    }

    /// Restores a replaced file unless its name is in use by another owner.
    pub(super) fn restore(&mut self, name: &str) -> Result<()> {
        if is_our_link(name, &self.dir) {
            return Ok(()); // in a dry run: `unlink_others` has announced it
        }
        if !exists(name) {
            return self.make(name, || rename(&kept(name), name));
        }
        if is_same(name, &kept(name)) {
            return self.remove(&kept(name));
        }
        self.say(&format!(
            "{dir}/{name} is not a link to cni-multi and stays; what was replaced earlier stays in \
             {dir}/{REPLACED}/{name}",
            dir = self.dir
        ));
        Ok(())
    }
}

/// One line about what stays in nftables; empty if nothing does.
fn left() -> String {
    // The installed binary is gone by now, and with it `cni-multi` in PATH. A package's goes next.
    let is_of_package = |own: &Path| PACKAGED.iter().any(|dir| own.starts_with(dir));
    let own = fs::read_link("/proc/self/exe").ok();
    let own = own.filter(|own| own.exists() && !is_of_package(own));
    let command = match own {
        Some(own) => format!("`{} net gc --leave`", own.display()),
        None => "`cni-multi net gc --leave` of a copy that stays".to_owned(),
    };
    match leave::count() {
        Ok(counts) => leave::summary(&counts, &command).unwrap_or_default(),
        Err(error) => {
            visible(&format!("whether anything stays in nftables cannot be told: {error}"))
        }
    }
}
