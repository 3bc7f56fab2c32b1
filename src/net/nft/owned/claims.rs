//! One of our tables in the kernel, and the elements of one owner in it.

use super::element::{Owner, SharedChain};
use super::layout::Layout;
use crate::error::Result;
use crate::net::nft::batch::Table;
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

    /// Whether a shared chain has exactly its rules.
    pub(super) fn is_intact(&self, chain: &SharedChain) -> Result<bool> {
        let found = self.rules(&chain.name)?;
        let is_each = found
            .iter()
            .zip(&chain.rules)
            .all(|(found, wanted)| found.does_within_family(wanted.attrs()));
        Ok(found.len() == chain.rules.len() && is_each)
    }
}
