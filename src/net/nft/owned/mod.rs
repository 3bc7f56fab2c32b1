//! Elements that belong to somebody: made together, found again by their owner alone, removed only
//! while still theirs.
//!
//! Each of our tables has constant chains and rules; what varies are elements of its sets and maps.
//! One more set, `attachments`, says for every owner which elements are his: its keys are the
//! owner's id and a running number, its comments name an element. So removing costs the same
//! however many there are, and needs nothing but the id.
//!
//! Every removal is bound to the generation of the rule set that it was planned on: if anything
//! changed in between, another may own the element by now, the kernel refuses, and the plan is made
//! anew.

mod finder;
mod ledger;
mod release;
mod verify;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use nix::errno::Errno;

use self::finder::Finder;
use self::ledger::{LEDGER, is_of, ledger_key, named_in, write_entry};
pub use self::release::{Owned, Released};
use super::batch::{Batch, Holding, Set, Table};
use super::expr::{Expressions, Verdict};
use super::{ElementInfo, Nft, RuleInfo};
use crate::error::{Code, Error, Result};

/// The comment of elements that are not one owner's alone.
const SHARED: &str = "shared";

/// How often a transaction is planned anew because another came between. Each time somebody else
/// has got on.
const TRIES: usize = 1000;

/// Whoever elements belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The first half is the owner's group, for [`Nft::holdings`].
    pub id: [u8; 16],
    /// The comment of his elements, which tells them from another's.
    pub comment: String,
}

/// An element that is to belong to somebody.
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
    /// What nobody else may have beside it.
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

/// An element that could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its place in the list.
    pub element: usize,
    /// The comment of whoever has it, or what it cannot stand beside.
    pub by: String,
}

/// What a claim has replaced.
#[derive(Clone, Debug, Default)]
pub struct Replaced {
    /// What the owner had before.
    own: Vec<OwnedElement>,
    /// What was another's, each with his comment.
    others: Vec<(OwnedElement, String)>,
}

impl Replaced {
    /// Whether all elements are new, and the owner is.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.others.is_empty()
    }

    /// What the owner had before.
    pub fn own(&self) -> &[OwnedElement] {
        &self.own
    }
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
    fn write(&self, batch: &mut Batch, table: Table) {
        batch.chain(table, &self.name).flush_chain(table, &self.name);
        for rule in &self.rules {
            batch.rule_of(table, &self.name, rule);
        }
    }
}

/// One of our tables.
#[derive(Clone, Copy)]
pub struct Layout {
    /// The table.
    pub table: Table,
    /// Shown by `nft list`.
    pub comment: &'static str,
    /// Its sets and maps, beside the one that says which elements are whose.
    pub sets: &'static [&'static Set],
    /// Its constant chains, with how often each is used: by its own rules, and by those that lead
    /// to it.
    pub chains: &'static [(&'static str, u32)],
    /// Writes its constant chains and rules; doing so again changes nothing.
    pub lay_out: fn(&mut Batch, Table),
}

/// Comments of elements by the end of their keys.
type BySuffix = HashMap<Vec<u8>, String>;

impl Nft {
    /// Makes the owner's elements. Those he had are replaced; one that another owner still has
    /// becomes his, for he was given what it stands for. Returns what was there in their place,
    /// for [`Nft::give_back`].
    pub fn claim(
        &self,
        layout: &Layout,
        owner: &Owner,
        elements: &[OwnedElement],
    ) -> Result<Replaced> {
        let what = format!("add elements to table {:?}", layout.table.name);
        if self.only_elements_are_missing(layout, owner, elements)? {
            let mut batch = Batch::default();
            add_elements(&mut batch, layout.table, owner, 0, elements);
            match self.commit(&batch, &what) {
                Err(error) if needs_plan(&error) => (),
                done => return done.map(|()| Replaced::default()),
            }
        }
        self.again(&what, || {
            let mut batch = Batch::of_generation(self.generation()?);
            let mut replaced = Replaced { own: self.own_elements(layout, owner)?, others: vec![] };
            let before = self.plan_release(&mut batch, layout, owner)?;
            self.plan_lay_out(&mut batch, layout, owner)?;
            before.delete_unused(&mut batch, layout.table, elements);
            let mut finder = Finder::new(self, layout.table, elements.len());
            for element in elements {
                let found = finder.find(element.set, &element.key)?;
                if let Some(found) = found.filter(|_| !element.is_shared && !before.has(element)) {
                    batch.delete_element(layout.table, element.set, &element.key);
                    if found.comment != owner.comment {
                        replaced.others.push((element.clone(), found.comment));
                    }
                }
            }
            chains_of(elements).for_each(|chain| chain.write(&mut batch, layout.table));
            add_elements(&mut batch, layout.table, owner, 0, elements);
            self.commit(&batch, &what).map(|()| replaced)
        })
    }

    /// Takes back a claim to elements of sets: the owner's go, and what they replaced is as it was.
    /// What another has been given since stays his. Returns what nobody has now: who had it
    /// before the claim has gone in between, and left it.
    pub fn give_back(
        &self,
        layout: &Layout,
        owner: &Owner,
        replaced: &Replaced,
    ) -> Result<Vec<OwnedElement>> {
        let (what, table) =
            (format!("give back elements of table {:?}", layout.table.name), layout.table);
        self.again(&what, || {
            let mut batch = Batch::of_generation(self.generation()?);
            self.plan_release(&mut batch, layout, owner)?;
            self.plan_lay_out(&mut batch, layout, owner)?;
            let is_free = |element: &OwnedElement| {
                let found = self.element(table, element.set, &element.key)?;
                Ok::<_, Error>(
                    found.is_none_or(|found| element.is_shared || is_of(&found.comment, owner)),
                )
            };
            let (mut own, mut left, mut is_any_back) = (vec![], vec![], false);
            for element in &replaced.own {
                if is_free(element)? {
                    own.push(element.clone());
                }
            }
            for (element, comment) in &replaced.others {
                if !is_free(element)? {
                    continue;
                }
                if self.is_known_of(table, comment, element)? {
                    batch.element(table, element.set, &element.key, Holding::Key, comment);
                    is_any_back = true;
                } else {
                    left.push(element.clone());
                }
            }
            if own.is_empty() && !is_any_back {
                return self.release(layout, owner).map(|_| left); // perhaps with the table
            }
            add_elements(&mut batch, table, owner, 0, &own);
            self.commit(&batch, &what).map(|()| left)
        })
    }

    /// Whether the ledger still has the element as that of whom the comment names.
    fn is_known_of(&self, table: Table, comment: &str, element: &OwnedElement) -> Result<bool> {
        let Some(id) = named_in(comment) else { return Ok(false) };
        let entries = self.entries(table, &Owner { id, comment: comment.to_owned() })?;
        Ok(entries.iter().any(|(_, entry)| *entry == write_entry(element)))
    }

    /// The elements of sets that the owner has, those too that he shares.
    fn own_elements(&self, layout: &Layout, owner: &Owner) -> Result<Vec<OwnedElement>> {
        let (mut own, keys) = (vec![], self.keys_of(layout, owner)?);
        let mut finder = Finder::new(self, layout.table, keys.len());
        for (set, key) in keys {
            let Some(set) = layout.sets.iter().find(|known| known.name == set) else { continue };
            let Some(found) = finder.find(set.name, &key)? else { continue };
            let is_shared = found.comment == SHARED;
            if is_shared || is_of(&found.comment, owner) {
                own.push(OwnedElement { set: set.name, key, is_shared, ..OwnedElement::default() });
            }
        }
        Ok(own)
    }

    /// Makes the owner's elements, in place of those he had, unless another has one of them or a
    /// rival of one.
    ///
    /// What is looked at and what is made is of one generation of the rule set, so of two who want
    /// the same one gets it.
    pub fn claim_free(
        &self,
        layout: &Layout,
        owner: &Owner,
        elements: &[OwnedElement],
    ) -> Result<Option<Taken>> {
        match self.try_claim_free(layout, owner, elements, false) {
            // A set is gone, or the ledger has lost what the owner has.
            Err(error) if needs_plan(&error) => self.try_claim_free(layout, owner, elements, true),
            done => done,
        }
    }

    fn try_claim_free(
        &self,
        layout: &Layout,
        owner: &Owner,
        elements: &[OwnedElement],
        is_damaged: bool,
    ) -> Result<Option<Taken>> {
        let (what, table) =
            (format!("add elements to table {:?}", layout.table.name), layout.table);
        self.again(&what, || {
            let mut batch = Batch::of_generation(self.generation()?);
            if let Some(taken) = self.first_taken(table, owner, elements)? {
                return Ok(Some(taken));
            }
            let before = self.plan_release(&mut batch, layout, owner)?;
            if is_damaged
                || !self.is_laid_out(layout)?
                || self.changed_chain(layout, RuleInfo::does)?.is_some()
            {
                self.plan_lay_out(&mut batch, layout, owner)?;
            }
            before.delete_unused(&mut batch, table, elements);
            // Another owner has none of them, unless it leads to a chain; the owner itself has
            // those that go already.
            let may_be_there = |element: &&OwnedElement| is_damaged || element.chain.is_some();
            let mut finder = Finder::new(self, table, elements.len());
            for element in
                elements.iter().filter(may_be_there).filter(|element| !before.has(element))
            {
                if finder.find(element.set, &element.key)?.is_some() {
                    batch.delete_element(table, element.set, &element.key);
                }
            }
            for chain in chains_of(elements) {
                if !self.is_intact(table, chain)? {
                    chain.write(&mut batch, table);
                }
            }
            add_elements(&mut batch, table, owner, 0, elements);
            self.commit(&batch, &what).map(|()| None)
        })
    }

    /// The first of these elements that another has, or has a rival of.
    pub fn first_taken(
        &self,
        table: Table,
        owner: &Owner,
        elements: &[OwnedElement],
    ) -> Result<Option<Taken>> {
        let mut finder = Finder::new(self, table, elements.len());
        let mut by_suffix = HashMap::new();
        let is_another_s = |found: &ElementInfo| found.comment != owner.comment;
        // What elements with a chain lead to is shared, so nobody has it for himself.
        for (number, element) in
            elements.iter().enumerate().filter(|(_, element)| element.chain.is_none())
        {
            let mut by = finder
                .find(element.set, &element.key)?
                .filter(is_another_s)
                .map(|found| found.comment);
            for rival in &element.rivals {
                let by_rival = match rival {
                    Rival::Key { set, key } => {
                        finder.find(set, key)?.filter(is_another_s).map(|found| found.comment)
                    }
                    Rival::Suffix { set, suffix } => {
                        let of_others = match by_suffix.entry((*set, suffix.len())) {
                            Entry::Occupied(known) => known.into_mut(),
                            Entry::Vacant(new) => new.insert(self.others_by_suffix(
                                table,
                                owner,
                                set,
                                suffix.len(),
                            )?),
                        };
                        of_others.get(suffix).cloned()
                    }
                };
                by = by.or(by_rival);
            }
            if let Some(by) = by {
                return Ok(Some(Taken { element: number, by }));
            }
        }
        Ok(None)
    }

    /// The comments of other owners' elements by the last bytes of their keys.
    fn others_by_suffix(
        &self,
        table: Table,
        owner: &Owner,
        set: &str,
        length: usize,
    ) -> Result<BySuffix> {
        let of_others =
            self.elements(table, set)?.into_iter().filter(|found| found.comment != owner.comment);
        let by_suffix = of_others.filter_map(|found| {
            let suffix = found.key.get(found.key.len().checked_sub(length)?..)?.to_vec();
            Some((suffix, found.comment))
        });
        Ok(by_suffix.collect())
    }

    /// Adds elements to those that the owner has. One that is another's becomes his.
    pub fn claim_more(
        &self,
        layout: &Layout,
        owner: &Owner,
        elements: &[OwnedElement],
    ) -> Result<()> {
        match self.try_claim_more(Batch::default(), layout, owner, elements) {
            Err(error) if error.is_not_found() => {
                let mut batch = Batch::default();
                lay_out(&mut batch, layout); // a set is gone
                self.try_claim_more(batch, layout, owner, elements)
            }
            done => done,
        }
    }

    fn try_claim_more(
        &self,
        mut batch: Batch,
        layout: &Layout,
        owner: &Owner,
        elements: &[OwnedElement],
    ) -> Result<()> {
        let what = format!("add elements to table {:?}", layout.table.name);
        let mut first = 0;
        while self.ledger_entry(layout.table, owner, first)?.is_some() {
            first += 1;
        }
        for element in elements {
            if self.element(layout.table, element.set, &element.key)?.is_some() {
                batch.delete_element(layout.table, element.set, &element.key);
            }
        }
        add_elements(&mut batch, layout.table, owner, first, elements);
        self.commit(&batch, &what)
    }

    /// Whether table, chains and rules are there and the owner has nothing yet. A batch that fails
    /// makes the kernel wait for all its processors, which takes longer than anything else
    /// here, so none is tried that can be seen to fail.
    fn only_elements_are_missing(
        &self,
        layout: &Layout,
        owner: &Owner,
        elements: &[OwnedElement],
    ) -> Result<bool> {
        if !self.is_laid_out(layout)? {
            return Ok(false);
        }
        for chain in chains_of(elements) {
            if !self.is_intact(layout.table, chain)? {
                return Ok(false);
            }
        }
        Ok(self.ledger_entry(layout.table, owner, 0)?.is_none())
    }

    /// Whether the table works, its constant chains have as many rules as they should, and its
    /// ledger has lost nothing. That they are there is not enough: `nft flush table` leaves
    /// chains without rules.
    fn is_laid_out(&self, layout: &Layout) -> Result<bool> {
        Ok(self.incomplete_chain(layout)?.is_none()
            && self.is_in_force(layout.table)?
            && self.is_ledger_whole(layout.table)?)
    }

    /// Plans whatever the table may lack but elements.
    fn plan_lay_out(&self, batch: &mut Batch, layout: &Layout, owner: &Owner) -> Result<()> {
        lay_out(batch, layout);
        self.restore_ledger(batch, layout, owner)
    }

    /// Whether elements can be added: the table is there, or the kernel can make it. What it lacks
    /// is in the error.
    pub fn require_layout(&self, layout: &Layout) -> Result<()> {
        if self.incomplete_chain(layout)?.is_none() {
            return Ok(());
        }
        let mut batch = Batch::default();
        lay_out(&mut batch, layout);
        self.rehearse(&batch, format_args!("make table {:?}", layout.table.name)).map_err(|error| {
            let hint =
                "this kernel may lack nft_chain_nat, nft_nat, nft_masq, nft_fib_inet or nft_ct";
            if error.is_errno(Errno::ENOENT) { error.with_details(hint) } else { error }
        })
    }

    /// Plans and commits until nobody came between. The kernel looks at the generation before
    /// anything else, so whatever else it refuses is refused for good.
    pub fn again<T>(&self, what: &str, attempt: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 0..TRIES {
            match attempt() {
                Err(e) if e.is_errno(Errno::ERESTART) || e.is_errno(Errno::EINTR) => (),
                done => return done,
            }
        }
        Err(Error::new(Code::TRY_AGAIN, what)
            .with_details(format_args!("the rules changed during each of {TRIES} tries")))
    }
}

/// The table is not laid out yet, or somebody has an element already: what is there has to be read
/// first.
fn needs_plan(error: &Error) -> bool {
    error.is_exists() || [Errno::ENOENT, Errno::EBUSY].iter().any(|errno| error.is_errno(*errno))
}

/// The chains that elements lead to, each once.
fn chains_of(elements: &[OwnedElement]) -> impl Iterator<Item = &SharedChain> {
    let mut seen = HashSet::new();
    elements
        .iter()
        .filter_map(|element| element.chain.as_ref())
        .filter(move |chain| seen.insert(chain.name.as_str()))
}

/// All have as many, so that the count of a chain's uses says how many elements lead to it.
const RULES_OF_SHARED_CHAIN: usize = 2;

fn lay_out(batch: &mut Batch, layout: &Layout) {
    batch.table(layout.table, layout.comment).set(layout.table, &LEDGER);
    for set in layout.sets {
        batch.set(layout.table, set);
    }
    (layout.lay_out)(batch, layout.table);
}

/// Adds elements and their entries in the ledger, which are numbered from `first`.
fn add_elements(
    batch: &mut Batch,
    table: Table,
    owner: &Owner,
    first: u32,
    elements: &[OwnedElement],
) {
    for (number, element) in (first..).zip(elements) {
        let verdict = element.chain.as_ref().map(|chain| Verdict::Goto(chain.name.clone()));
        let holding = match (&verdict, &element.value) {
            (Some(verdict), _) => Holding::Verdict(verdict),
            (None, Some(value)) => Holding::Value(value),
            (None, None) => Holding::Key,
        };
        if element.is_shared {
            batch.shared_element(table, element.set, &element.key, SHARED);
        } else {
            batch.element(table, element.set, &element.key, holding, &owner.comment);
        }
        batch.element(
            table,
            LEDGER.name,
            &ledger_key(owner, number),
            Holding::Key,
            &write_entry(element),
        );
    }
}
