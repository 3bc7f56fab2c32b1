//! Checks whether a table and an owner's elements are still as they were created.

use std::collections::HashSet;

use super::claims::{Claims, Compare, Finder, OurTable, are_as_wanted};
use super::element::{OwnedElement, chains_of};
use super::layout::ADMIN;
use super::ledger::write_entry;
use crate::error::{Error, Result};
use crate::net::netlink::attr::Attrs;
use crate::net::nft::batch::Table;
use crate::net::nft::expr::Expressions;
use crate::net::nft::{ElementInfo, RuleInfo};

impl OurTable<'_> {
    /// What keeps the table from working: it is dormant, or a constant chain is missing or has
    /// other rules.
    pub fn damage(&self) -> Result<Option<String>> {
        let Table { family, name } = self.table();
        self.nft.damage_of(&format!("{family} {name}"), || {
            if let Some(chain) = self.changed_chain(RuleInfo::does_as_listed)? {
                return Ok(Some(format!("chain {chain:?} of table {name:?} is not what it was")));
            }
            let is_dormant = !self.nft.is_in_force(self.table())?;
            Ok(is_dormant.then(|| format!("table {name:?} is dormant")))
        })
    }

    /// Verifies that nothing keeps the table from working; code 103 says what does.
    pub fn verify(&self) -> Result<()> {
        self.damage()?.map_or(Ok(()), |damage| Err(Error::check(damage)))
    }

    /// Whether the table is active, its constant chains have as many rules as they should, and its
    /// ledger has lost nothing. Their existence is not enough: `nft flush table` leaves chains
    /// without rules.
    pub(super) fn is_laid_out(&self) -> Result<bool> {
        Ok(self.incomplete_chain()?.is_none()
            && self.nft.is_in_force(self.table())?
            && self.is_ledger_whole()?)
    }

    /// The first constant chain that is missing or has other rules, as `does` compares them.
    pub(super) fn changed_chain(&self, does: Compare) -> Result<Option<String>> {
        if let Some(chain) = self.incomplete_chain()? {
            return Ok(Some(chain));
        }
        let wanted = self.layout.chains_and_rules();
        for name in wanted.chains().filter(|name| name != ADMIN) {
            let wanted: Vec<Attrs<'_>> = wanted.rules_of(&name).collect();
            if !are_as_wanted(&self.rules(&name)?, &wanted, does) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// The first constant chain that is missing or has another use count. It costs less than
    /// reading all rules.
    pub(super) fn incomplete_chain(&self) -> Result<Option<String>> {
        let wanted = self.layout.chains_and_rules();
        for name in wanted.chains() {
            let uses = wanted.uses_of(&name);
            let is_whole = |uses_found| uses_found == uses || name == ADMIN && uses_found > uses;
            if !self.chain(&name)?.is_some_and(|chain| is_whole(chain.uses)) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Whether the element exists, and leads to a chain with this rule at its end.
    pub fn leads_to_end(&self, set: &str, key: &[u8], end: &Expressions) -> Result<bool> {
        let chain = self.element(set, key)?.and_then(|found| found.chain);
        let rules = chain.map_or(Ok(vec![]), |chain| self.rules(&chain))?;
        Ok(rules.last().is_some_and(|last| last.does(end.attrs())))
    }

    /// The elements that do not exist, whichever owner they would have.
    pub fn absent<'e>(&self, elements: &'e [OwnedElement]) -> Result<Vec<&'e OwnedElement>> {
        let mut finder = Finder::new(*self, elements.len());
        let mut absent = vec![];
        for element in elements {
            if !finder.has(element)? {
                absent.push(element);
            }
        }
        Ok(absent)
    }
}

impl Claims<'_> {
    /// The elements that are missing, or belong to another owner and do something else; also those
    /// that the owner would not find again, and those that lead to a chain without its rules.
    pub fn missing<'e>(&self, elements: &'e [OwnedElement]) -> Result<Vec<&'e OwnedElement>> {
        let entries = self.entries()?.into_iter().map(|(_, entry)| entry).collect();
        let mut finder = Finder::new(self.ours, elements.len());
        let mut broken = HashSet::new();
        for chain in chains_of(elements) {
            if !self.ours.is_intact(chain)? {
                broken.insert(chain.name.as_str());
            }
        }
        let mut missing = vec![];
        for element in elements {
            let is_broken = element.chain_name().is_some_and(|chain| broken.contains(chain));
            let serves = |found| self.serves(element, &found, &entries);
            if is_broken || !finder.find(element.set, &element.key)?.is_some_and(serves) {
                missing.push(element);
            }
        }
        Ok(missing)
    }

    /// Whether the element that was found with its key does what this one is to do, and if it is
    /// the owner's or shared, is among the owner's ledger entries.
    fn serves(
        &self,
        element: &OwnedElement,
        found: &ElementInfo,
        entries: &HashSet<String>,
    ) -> bool {
        let is_own = found.comment == self.owner.comment;
        let does_enough = element.is_shared
            || match &element.value {
                Some(value) => found.value == *value,
                None if is_own => true,
                None => element.chain.is_some() && found.chain.as_deref() == element.chain_name(),
            };
        let is_held = is_own || element.is_shared;
        does_enough && (!is_held || entries.contains(&write_entry(element)))
    }
}
