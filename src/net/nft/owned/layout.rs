//! What our tables consist of, and the elements that owners are to have in them.

use std::collections::HashSet;

use crate::error::Result;
use crate::hex;
use crate::net::nft::batch::{Batch, Element, Holding, Holds, KeyType, Set, Table};
use crate::net::nft::expr::{Expressions, Verdict};

/// The ledger, the set that records which owner has which element: its keys are an owner's id and a
/// number, its comments name an element.
pub(super) const LEDGER: Set =
    Set { name: "attachments", key: &[KeyType::Mark; 5], holds: Holds::Keys };

/// The chain that an administrator may fill. We write no rule of it, and a table in which it has rules
/// outlives the last owner.
pub(super) const ADMIN: &str = "admin";

/// Writes a rule for the layout: the administrator's chain comes before what the chain says from here on.
pub fn jump_to_admin(batch: &mut Batch, table: Table, chain: &str) {
    batch.chain(table, ADMIN);
    batch.rule(table, chain, |rule| {
        rule.verdict(&Verdict::Jump(ADMIN.to_owned()));
    });
}

/// The layout of one of our tables.
#[derive(Clone, Copy)]
pub struct Layout {
    /// The table.
    pub table: Table,
    /// Shown by `nft list`.
    pub comment: &'static str,
    /// Its sets and maps, apart from the ledger.
    pub sets: &'static [&'static Set],
    /// Writes its constant chains and rules; writing them again changes nothing.
    pub lay_out: fn(&mut Batch, Table),
    /// What on the host relies on elements of one of the sets.
    pub reliance: Option<Reliance>,
}

/// Something on the host that is safe only while elements of a set stand. It ends before the
/// transaction that removes the element: a process that is killed in between leaves the host safe.
#[derive(Clone, Copy, Debug)]
pub struct Reliance {
    /// The set.
    pub set: &'static Set,
    /// Ends what relies on the element with this key. It may have ended already.
    pub end: fn(&[u8]) -> Result<()>,
    /// Begins it again: the transaction was planned once more, and the element stays.
    pub begin_again: fn(&[u8]) -> Result<()>,
}

impl Layout {
    /// The name of the set, if the table has it.
    pub(super) fn set(&self, name: &str) -> Option<&'static str> {
        self.sets.iter().map(|set| set.name).find(|known| *known == name)
    }

    /// Adds the table with everything except elements.
    pub(super) fn write(&self, batch: &mut Batch) {
        batch.table(self.table, self.comment).set(self.table, &LEDGER);
        for set in self.sets {
            batch.set(self.table, set);
        }
        (self.lay_out)(batch, self.table);
    }

    /// Only the constant chains and rules.
    pub(super) fn chains_and_rules(&self) -> Batch {
        let mut batch = Batch::default();
        (self.lay_out)(&mut batch, self.table);
        batch
    }
}

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

/// An entry of the ledger: `<set> <key in hex>`, which is readable in `nft list` as well.
pub(super) fn entry_of(set: &str, key: &[u8]) -> String {
    format!("{set} {}", hex::encode(key))
}

impl OwnedElement {
    /// Its entry in the ledger.
    pub(super) fn entry(&self) -> String {
        entry_of(self.set, &self.key)
    }

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
