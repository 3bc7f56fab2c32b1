//! Owners, and the elements that they are to have.

use std::collections::HashSet;

use crate::net::nft::batch::{Batch, Element, Holding, Set, Table};
use crate::net::nft::expr::Expressions;

/// The comment of elements that owners share.
pub(super) const SHARED: &str = "shared";

/// An attachment, as a table identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The first half is the owner's group, for [`OurTable::holdings`](super::OurTable::holdings).
    pub id: [u8; 16],
    /// The comment of its elements, which distinguishes them from those of other owners.
    pub comment: String,
}

/// An element that an owner is to have.
#[derive(Clone, Debug, Default)]
pub struct OwnedElement {
    /// The name of the set or map.
    pub set: &'static str,
    /// The key.
    pub key: Vec<u8>,
    /// In a verdict map: the chain that matching packets go to.
    pub chain: Option<SharedChain>,
    /// Whether several owners may have it at the same time. It is removed with the last of them.
    pub is_shared: bool,
    /// In a map of values: its value.
    pub value: Option<Vec<u8>>,
    /// The elements of other owners that exclude this one.
    pub rivals: Vec<Rival>,
}

impl OwnedElement {
    /// The element of a set with this key.
    pub fn of(set: &Set, key: Vec<u8>) -> OwnedElement {
        OwnedElement { set: set.name, key, ..OwnedElement::default() }
    }

    /// The same in a verdict map, leading to this chain.
    pub fn leading_to(self, chain: SharedChain) -> OwnedElement {
        OwnedElement { chain: Some(chain), ..self }
    }

    /// The name of the chain that it leads to.
    pub(super) fn chain_name(&self) -> Option<&str> {
        self.chain.as_ref().map(|chain| chain.name.as_str())
    }

    /// The element as a batch adds it.
    pub(super) fn holding<'a>(&'a self, holding: Holding<'a>, comment: &'a str) -> Element<'a> {
        Element { set: self.set, key: &self.key, holding, comment }
    }
}

/// Elements of another owner that cannot coexist with one of ours.
#[derive(Clone, Debug)]
pub enum Rival {
    /// The element with this key.
    Key {
        /// The name of its set.
        set: &'static str,
        /// Its key.
        key: Vec<u8>,
    },
    /// Every element whose key ends like this.
    Suffix {
        /// The name of their set.
        set: &'static str,
        /// The end of their keys.
        suffix: Vec<u8>,
    },
}

/// A chain that elements of many owners lead to; it is removed with the last of them.
#[derive(Clone, Debug)]
pub struct SharedChain {
    /// Its name, which determines its rules.
    pub name: String,
    /// Its rules, written when it is created.
    pub rules: Vec<Expressions>,
}

impl SharedChain {
    pub(super) fn write(&self, batch: &mut Batch, table: Table) {
        batch.chain(table, &self.name).flush_chain(table, &self.name);
        for rule in &self.rules {
            batch.rule_of(table, &self.name, rule);
        }
    }
}

/// The chains that the elements lead to, each once.
pub(super) fn chains_of(elements: &[OwnedElement]) -> impl Iterator<Item = &SharedChain> {
    let mut seen = HashSet::new();
    elements
        .iter()
        .filter_map(|element| element.chain.as_ref())
        .filter(move |chain| seen.insert(chain.name.as_str()))
}
