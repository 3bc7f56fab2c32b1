//! One of our tables in the kernel and the elements of one owner in it, and whether they are still as
//! they were created.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use nix::errno::Errno;

use super::layout::{ADMIN, Layout, OwnedElement, Owner, SharedChain, chains_of};
use crate::error::{Error, Result};
use crate::net::netlink::attr::Attrs;
use crate::net::nft::batch::{Batch, Table};
use crate::net::nft::expr::Expressions;
use crate::net::nft::{ChainInfo, ElementInfo, Nft, RuleInfo};

/// One of our tables in the kernel.
#[derive(Clone, Copy)]
pub struct OurTable<'a> {
    pub(super) nft: &'a Nft,
    pub(super) layout: &'a Layout,
}

/// The elements that an owner has, and is to have, in one of our tables.
#[derive(Clone, Copy)]
pub struct Claims<'a> {
    pub(super) ours: OurTable<'a>,
    pub(super) owner: &'a Owner,
}

impl Layout {
    /// The table as the kernel has it.
    pub fn on<'a>(&'a self, nft: &'a Nft) -> OurTable<'a> {
        OurTable { nft, layout: self }
    }
}

impl<'a> OurTable<'a> {
    /// The elements of one owner in this table.
    pub fn of(self, owner: &'a Owner) -> Claims<'a> {
        Claims { ours: self, owner }
    }

    pub(super) fn table(&self) -> Table {
        self.layout.table
    }

    pub(super) fn element(&self, set: &str, key: &[u8]) -> Result<Option<ElementInfo>> {
        self.nft.element(self.table(), set, key)
    }

    pub(super) fn elements(&self, set: &str) -> Result<Vec<ElementInfo>> {
        self.nft.elements(self.table(), set)
    }

    pub(super) fn has_element(
        &self,
        set: &str,
        is_one: impl Fn(&ElementInfo) -> bool,
    ) -> Result<bool> {
        self.nft.has_element(self.table(), set, is_one)
    }

    pub(super) fn chain(&self, name: &str) -> Result<Option<ChainInfo>> {
        self.nft.chain(self.table().family, self.table().name, name)
    }

    pub(super) fn rules(&self, chain: &str) -> Result<Vec<RuleInfo>> {
        self.nft.rules(self.table().family, self.table().name, chain)
    }

    /// Commits a batch, after what relies on elements that it removes.
    pub(super) fn commit(&self, batch: &Batch, what: impl fmt::Display) -> Result<()> {
        self.end_reliance(batch, &mut vec![])?;
        self.nft.commit(batch, what)
    }

    /// Whether a shared chain has exactly its rules.
    pub(super) fn is_intact(&self, chain: &SharedChain) -> Result<bool> {
        let wanted: Vec<Attrs<'_>> = chain.rules.iter().map(Expressions::attrs).collect();
        Ok(are_as_wanted(&self.rules(&chain.name)?, &wanted, RuleInfo::does))
    }
}

impl OurTable<'_> {
    /// Checks whether elements can be added: the table exists, or the kernel can create it. The
    /// error says what the kernel lacks.
    pub fn require(&self) -> Result<()> {
        if self.incomplete_chain()?.is_none() {
            return Ok(());
        }
        let mut batch = Batch::default();
        self.layout.write(&mut batch);
        let what = format_args!("make table {:?}", self.table().name);
        match self.nft.rehearse(&batch, what) {
            Err(error) if error.is_errno(Errno::ENOENT) => Err(error.with_details(
                "this kernel may lack nft_chain_nat, nft_nat, nft_masq, nft_fib_inet or nft_ct",
            )),
            rehearsed => rehearsed,
        }
    }

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
            if finder.find(element.set, &element.key)?.is_none() {
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
        does_enough && (!is_held || entries.contains(&element.entry()))
    }
}

/// How a rule that was found is compared with the wanted one.
type Compare = fn(&RuleInfo, Attrs<'_>) -> bool;

/// Whether rules are as many as the wanted ones and each does the same.
fn are_as_wanted(found: &[RuleInfo], wanted: &[Attrs<'_>], does: Compare) -> bool {
    found.len() == wanted.len()
        && found.iter().zip(wanted).all(|(found, wanted)| does(found, *wanted))
}

/// The numbers of lookups for which one dump of the set takes less time. For each page of a dump
/// the kernel begins at the set's first element again, so for even more elements a dump takes
/// longer.
const MANY: Range<usize> = 1000..20_000;

/// Finds elements of one table by their keys: by a lookup each, or if there are many to find, by
/// one dump of the set.
pub(super) struct Finder<'n> {
    ours: OurTable<'n>,
    are_many: bool,
    listed: HashMap<String, HashMap<Vec<u8>, ElementInfo>>,
}

impl<'n> Finder<'n> {
    /// A finder for about `count` lookups.
    pub fn new(ours: OurTable<'n>, count: usize) -> Finder<'n> {
        Finder { ours, are_many: MANY.contains(&count), listed: HashMap::new() }
    }

    /// The element with this key, if it exists.
    pub fn find(&mut self, set: &str, key: &[u8]) -> Result<Option<ElementInfo>> {
        if !self.are_many {
            return self.ours.element(set, key);
        }
        if !self.listed.contains_key(set) {
            let elements = self.ours.elements(set)?.into_iter();
            let listed = elements.map(|element| (element.key.clone(), element)).collect();
            self.listed.insert(set.to_owned(), listed);
        }
        Ok(self.listed.get(set).and_then(|listed| listed.get(key)).cloned())
    }
}
