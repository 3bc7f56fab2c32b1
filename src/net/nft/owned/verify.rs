//! Whether a table and an owner's elements are still as they were made.

use std::collections::HashSet;

use super::ledger::write_entry;
use super::{Layout, OwnedElement, Owner};
use crate::error::Result;
use crate::net::netlink::attr::Attrs;
use crate::net::nft::batch::{Batch, Table};
use crate::net::nft::expr::Expressions;
use crate::net::nft::{ElementInfo, Nft};

impl Nft {
    /// What keeps the table from doing what it was made for: it is switched off, or a constant chain is not there or has
    /// other rules.
    pub fn damage(&self, layout: &Layout) -> Result<Option<String>> {
        let table = layout.table.name;
        let not_what_it_was = |chain| format!("chain {chain:?} of table {table:?} is not what it was");
        match self.changed_chain(layout)? {
            Some(chain) => Ok(Some(not_what_it_was(chain))),
            None if !self.is_in_force(layout.table)? => Ok(Some(format!("table {table:?} is dormant"))),
            None => Ok(None),
        }
    }

    fn changed_chain(&self, layout: &Layout) -> Result<Option<&'static str>> {
        if let Some(chain) = self.incomplete_chain(layout)? {
            return Ok(Some(chain));
        }
        let mut wanted = Batch::default();
        (layout.lay_out)(&mut wanted, layout.table);
        for (name, _) in layout.chains {
            if !self.has_rules(layout.table, name, wanted.rules_of(name))? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Whether a chain has these rules and no others.
    pub(super) fn has_rules<'a>(
        &self,
        table: Table,
        chain: &str,
        wanted: impl Iterator<Item = Attrs<'a>>,
    ) -> Result<bool> {
        let (found, wanted) = (self.rules(table.family, table.name, chain)?, wanted.collect::<Vec<_>>());
        Ok(found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, wanted)| found.does(wanted)))
    }

    /// The first constant chain that is not there or has not got so many rules. It costs less than to read them all.
    pub(super) fn incomplete_chain(&self, layout: &Layout) -> Result<Option<&'static str>> {
        for (name, uses) in layout.chains {
            let found = self.chain(layout.table.family, layout.table.name, name)?;
            if found.is_none_or(|chain| chain.uses != *uses) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Which of these elements are missing, or are another's and do something else; also those that the owner would not
    /// find again, and those that lead to a chain without its rules.
    pub fn missing<'a>(
        &self,
        layout: &Layout,
        owner: &Owner,
        elements: &'a [OwnedElement],
    ) -> Result<Vec<&'a OwnedElement>> {
        let entries: HashSet<String> = self.entries(layout.table, owner)?.into_iter().map(|(_, entry)| entry).collect();
        let mut missing = vec![];
        for element in elements {
            let found = self.element(layout.table, element.set, &element.key)?;
            let leads_to = element.chain.as_ref().map(|chain| chain.name.as_str());
            let serves = |found: ElementInfo| {
                let does_the_same = match &element.value {
                    Some(value) => found.value == *value,
                    None => leads_to.is_some() && found.chain.as_deref() == leads_to,
                };
                element.is_shared || does_the_same || (element.value.is_none() && found.comment == owner.comment)
            };
            if !found.is_some_and(serves) || !self.is_whole(layout.table, owner, element, &entries)? {
                missing.push(element);
            }
        }
        Ok(missing)
    }

    /// Whether the ledger has the element, if it is the owner's, and its chain has all rules.
    fn is_whole(&self, table: Table, owner: &Owner, element: &OwnedElement, entries: &HashSet<String>) -> Result<bool> {
        if let Some(chain) = &element.chain
            && !self.has_rules(table, &chain.name, chain.rules.iter().map(Expressions::attrs))?
        {
            return Ok(false);
        }
        let is_his =
            self.element(table, element.set, &element.key)?.is_some_and(|found| found.comment == owner.comment);
        Ok(!is_his || entries.contains(&write_entry(element)))
    }
}
