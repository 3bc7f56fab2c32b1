//! Rules that the reference's plugins made in nftables. They have a chain in common, and the comment
//! of a rule tells whose it is.

use crate::error::{ErrorList, Result};
use crate::net::nft::batch::{Batch, Table};
use crate::net::nft::{Nft, RuleInfo};
use crate::plugin::Handles;

/// The rules of one chain.
pub struct ReferenceRules {
    /// The table that the chain is in.
    pub table: Table,
    /// The chain.
    pub chain: &'static str,
    /// How many rules of the layout lead to the chain, which the kernel counts as its uses.
    pub jumps: u32,
    /// What the deletion of one is called in errors.
    pub deletion: &'static str,
}

impl ReferenceRules {
    /// Those whose comment is asked for.
    pub fn find(&self, nft: &Nft, is_asked: impl Fn(&str) -> bool) -> Result<Vec<RuleInfo>> {
        let Table { family, name } = self.table;
        if nft.chain(family, name, self.chain)?.is_none_or(|chain| chain.uses <= self.jumps) {
            return Ok(vec![]);
        }
        let mut rules = nft.rules(family, name, self.chain)?;
        rules.retain(|rule| is_asked(&rule.comment));
        Ok(rules)
    }

    /// Deletes one. It may be gone already.
    pub fn delete(&self, nft: &Nft, rule: &RuleInfo) -> Result<()> {
        let mut batch = Batch::default();
        batch.delete_rule(self.table, self.chain, rule.handle);
        match nft.commit(&batch, self.deletion) {
            Err(e) if e.is_not_found() => Ok(()),
            deleted => deleted,
        }
    }

    /// Deletes those whose comment is asked for, if the kernel has nf_tables.
    pub fn delete_all(&self, handles: &Handles, is_asked: impl Fn(&str) -> bool) -> Result<()> {
        let Some(nft) = handles.nft()? else { return Ok(()) };
        ErrorList::of(self.find(nft, is_asked)?.iter().map(|rule| self.delete(nft, rule)))
    }
}
