//! Owners, and the elements that are to be theirs.

use std::collections::HashSet;

use crate::net::nft::batch::{Batch, Table};
use crate::net::nft::expr::Expressions;

/// The comment of elements that are not one owner's alone.
pub(super) const SHARED: &str = "shared";

/// All have as many, so that the count of a chain's uses says how many elements lead to it.
const RULES_OF_SHARED_CHAIN: usize = 2;

/// An attachment, as far as a table knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The first half is the owner's group, for [`OurTable::holdings`](super::OurTable::holdings).
    pub id: [u8; 16],
    /// The comment of its elements, which tells them from another's.
    pub comment: String,
}

/// An element that is to have an owner.
#[derive(Clone, Debug, Default)]
pub struct OwnedElement {
    /// The name of the set or map.
    pub set: &'static str,
    /// The key.
    pub key: Vec<u8>,
    /// In a verdict map: the chain that packets go to which it matches.
    pub chain: Option<SharedChain>,
    /// Whether others may have it at the same time. It goes with the last of them.
    pub is_shared: bool,
    /// In a map of values: its value.
    pub value: Option<Vec<u8>>,
    /// What no other owner may have beside it.
    pub rivals: Vec<Rival>,
}

/// Elements of others that one cannot stand beside.
#[derive(Clone, Debug)]
pub enum Rival {
    /// The one with this key.
    Key {
        /// The name of its set.
        set: &'static str,
        /// Its key.
        key: Vec<u8>,
    },
    /// Each whose key ends so.
    Suffix {
        /// The name of their set.
        set: &'static str,
        /// The end of their keys.
        suffix: Vec<u8>,
    },
}

/// A chain that elements of many owners lead to; it goes with the last of them.
#[derive(Clone, Debug)]
pub struct SharedChain {
    /// Its name, which says all about its rules.
    pub name: String,
    /// Its rules, written when it is made.
    pub rules: [Expressions; RULES_OF_SHARED_CHAIN],
}

impl SharedChain {
    pub(super) fn write(&self, batch: &mut Batch, table: Table) {
        batch.chain(table, &self.name).flush_chain(table, &self.name);
        for rule in &self.rules {
            batch.rule_of(table, &self.name, rule);
        }
    }
}

/// The chains that elements lead to, each once.
pub(super) fn chains_of(elements: &[OwnedElement]) -> impl Iterator<Item = &SharedChain> {
    let mut seen = HashSet::new();
    elements
        .iter()
        .filter_map(|element| element.chain.as_ref())
        .filter(move |chain| seen.insert(chain.name.as_str()))
}
