//! Whether a table and an owner's elements are still as they were made.

use std::collections::HashSet;

use super::finder::Finder;
use super::ledger::write_entry;
use super::{Layout, OwnedElement, Owner, SharedChain, chains_of};
use crate::error::Result;
use crate::net::netlink::attr::Attrs;
use crate::net::nft::batch::{Batch, Table};
use crate::net::nft::expr::Expressions;
use crate::net::nft::{ElementInfo, Nft, RuleInfo};

/// How a rule that was found is compared with one that is wanted.
pub(super) type Compare = fn(&RuleInfo, Attrs<'_>) -> bool;

impl Nft {
    /// What keeps the table from doing what it was made for: it is switched off, or a constant
    /// chain is not there or has other rules.
    pub fn damage(&self, layout: &Layout) -> Result<Option<String>> {
        let table = layout.table.name;
        let not_what_it_was =
            |chain| format!("chain {chain:?} of table {table:?} is not what it was");
        match self.changed_chain(layout, RuleInfo::does_as_listed)? {
            Some(chain) => Ok(Some(not_what_it_was(chain))),
            None if !self.is_in_force(layout.table)? => {
                Ok(Some(format!("table {table:?} is dormant")))
            }
            None => Ok(None),
        }
    }

    /// The first constant chain that is not there or has other rules, as `does` compares them.
    pub(super) fn changed_chain(
        &self,
        layout: &Layout,
        does: Compare,
    ) -> Result<Option<&'static str>> {
        if let Some(chain) = self.incomplete_chain(layout)? {
            return Ok(Some(chain));
        }
        let mut wanted = Batch::default();
        (layout.lay_out)(&mut wanted, layout.table);
        for (name, _) in layout.chains {
            let found = self.rules(layout.table.family, layout.table.name, name)?;
            let mut wanted_of_chain = wanted.rules_of(name);
            let is_each = found
                .iter()
                .all(|found| wanted_of_chain.next().is_some_and(|wanted| does(found, wanted)));
            if !is_each || wanted_of_chain.next().is_some() {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Whether a shared chain has its rules and no others.
    pub(super) fn is_intact(&self, table: Table, chain: &SharedChain) -> Result<bool> {
        let (found, wanted) = (self.rules(table.family, table.name, &chain.name)?, &chain.rules);
        let does =
            |(found, wanted): (&RuleInfo, &Expressions)| found.does_within_family(wanted.attrs());
        Ok(found.len() == wanted.len() && found.iter().zip(wanted).all(does))
    }

    /// The first constant chain that is not there or has not got so many rules. It costs less than
    /// to read them all.
    pub(super) fn incomplete_chain(&self, layout: &Layout) -> Result<Option<&'static str>> {
        for (name, uses) in layout.chains {
            let found = self.chain(layout.table.family, layout.table.name, name)?;
            if found.is_none_or(|chain| chain.uses != *uses) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Which of these elements are missing, or are another's and do something else; also those that
    /// the owner would not find again, and those that lead to a chain without its rules.
    pub fn missing<'a>(
        &self,
        layout: &Layout,
        owner: &Owner,
        elements: &'a [OwnedElement],
    ) -> Result<Vec<&'a OwnedElement>> {
        let table = layout.table;
        let entries: HashSet<String> =
            self.entries(table, owner)?.into_iter().map(|(_, entry)| entry).collect();
        let mut finder = Finder::new(self, table, elements.len());
        let mut broken = HashSet::new();
        for chain in chains_of(elements) {
            if !self.is_intact(table, chain)? {
                broken.insert(chain.name.as_str());
            }
        }
        let mut missing = vec![];
        for element in elements {
            let leads_to = element.chain.as_ref().map(|chain| chain.name.as_str());
            let serves = |found: ElementInfo| {
                let is_his = found.comment == owner.comment;
                let does_the_same = match &element.value {
                    Some(value) => found.value == *value,
                    None => leads_to.is_some() && found.chain.as_deref() == leads_to,
                };
                let does_enough =
                    element.is_shared || does_the_same || (element.value.is_none() && is_his);
                does_enough && (!is_his || entries.contains(&write_entry(element)))
            };
            let is_broken = leads_to.is_some_and(|chain| broken.contains(chain));
            if is_broken || !finder.find(element.set, &element.key)?.is_some_and(serves) {
                missing.push(element);
            }
        }
        Ok(missing)
    }
}
