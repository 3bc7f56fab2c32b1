//! One of our tables in the kernel, and the elements of one owner in it.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use super::layout::{Layout, OwnedElement, Owner, SharedChain};
use crate::error::Result;
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

/// How a rule that was found is compared with the wanted one.
pub(super) type Compare = fn(&RuleInfo, Attrs<'_>) -> bool;

/// Whether rules are as many as the wanted ones and each does the same.
pub(super) fn are_as_wanted(found: &[RuleInfo], wanted: &[Attrs<'_>], does: Compare) -> bool {
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

    /// Whether the element exists.
    pub fn has(&mut self, element: &OwnedElement) -> Result<bool> {
        Ok(self.find(element.set, &element.key)?.is_some())
    }
}
