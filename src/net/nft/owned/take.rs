//! How an owner acquires its elements, and how that is undone.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use nix::errno::Errno;

use super::claims::{Claims, Finder};
use super::layout::{OwnedElement, Owner, Rival, SHARED, chains_of};
use super::ledger::{is_of, ledger_key, named_in};
use super::release::Search;
use crate::error::{Error, Result};
use crate::net::nft::batch::{Batch, Holding};
use crate::net::nft::expr::Verdict;
use crate::net::nft::{ElementInfo, RuleInfo};

/// An element that could not be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its index in the list.
    pub element: usize,
    /// The comment of its owner, or of the rival that excludes it.
    pub by: String,
}

/// The elements that a claim has replaced.
#[derive(Clone, Debug, Default)]
pub struct Replaced {
    /// The earlier elements of the owner.
    own: Vec<OwnedElement>,
    /// The elements of other owners, each with its owner's comment.
    others: Vec<(OwnedElement, String)>,
}

impl Replaced {
    /// Whether the claim replaced nothing: all elements are new, and the owner is.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.others.is_empty()
    }

    /// The earlier elements of the owner.
    pub fn own(&self) -> &[OwnedElement] {
        &self.own
    }
}

/// Elements of other owners.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    /// They are transferred.
    Transferred,
    /// There are none: they have been looked for.
    None,
    /// The same, in a table that has lost a set or entries of the ledger.
    NoneInDamaged,
}

/// Comments of elements by the end of their keys.
type BySuffix = HashMap<Vec<u8>, String>;

impl Claims<'_> {
    /// Creates the owner's elements. Its earlier ones are replaced; an element that another owner
    /// still has is transferred, because this owner was given what it stands for. Returns what was
    /// replaced, for [`Claims::give_back`].
    pub fn take(&self, elements: &[OwnedElement]) -> Result<Replaced> {
        if self.only_elements_are_missing(elements)? {
            let mut batch = Batch::default();
            self.add_elements(&mut batch, 0, elements);
            match self.ours.commit(&batch, self.adding()) {
                Err(error) if needs_plan(&error) => (),
                done => return done.map(|()| Replaced::default()),
            }
        }
        self.ours.nft.again(&self.adding(), || {
            let mut batch = Batch::of_generation(self.ours.nft.generation()?);
            let own = self.own_elements()?;
            let others = self.plan(&mut batch, elements, Others::Transferred)?;
            self.ours.commit(&batch, self.adding()).map(|()| Replaced { own, others })
        })
    }

    /// Plans the owner's elements in place of its earlier ones, and returns those of other owners
    /// that stood in the way, each with its owner's comment.
    fn plan(
        &self,
        batch: &mut Batch,
        elements: &[OwnedElement],
        of_others: Others,
    ) -> Result<Vec<(OwnedElement, String)>> {
        let table = self.ours.table();
        let is_sound = of_others == Others::None;
        let before = self.plan_release(batch)?;
        if !is_sound
            || !self.ours.is_laid_out()?
            || self.ours.changed_chain(RuleInfo::does)?.is_some()
        {
            self.plan_lay_out(batch)?;
        }
        before.delete_unused(batch, table, elements);
        let mut others = vec![];
        let mut finder = Finder::new(self.ours, elements.len());
        for element in elements {
            // Of free ones no other owner has any, except elements that lead to a chain; the owner's
            // earlier ones are being removed already.
            let may_be_there = !is_sound || element.chain.is_some();
            if !may_be_there || element.is_shared || before.has(element) {
                continue;
            }
            if let Some(found) = finder.find(element.set, &element.key)? {
                batch.delete_element(table, element.set, &element.key);
                if self.is_another_s_own(&found) {
                    others.push((element.clone(), found.comment));
                }
            }
        }
        for chain in chains_of(elements) {
            if of_others == Others::Transferred || !self.ours.is_intact(chain)? {
                chain.write(batch, table);
            }
        }
        self.add_elements(batch, 0, elements);
        Ok(others)
    }

    /// Undoes a claim to elements of sets: the owner's are removed, and what they replaced is
    /// restored. An element that another owner has been given since stays with it. Returns the
    /// elements that have no owner now: their earlier owner was released since the claim, and left
    /// them.
    pub fn give_back(&self, replaced: &Replaced) -> Result<Vec<OwnedElement>> {
        let what = format!("give back elements of table {:?}", self.ours.table().name);
        self.ours.nft.again(&what, || self.try_give_back(&what, replaced))
    }

    fn try_give_back(&self, what: &str, replaced: &Replaced) -> Result<Vec<OwnedElement>> {
        let mut batch = Batch::of_generation(self.ours.nft.generation()?);
        self.plan_release(&mut batch)?;
        self.plan_lay_out(&mut batch)?;
        let mut own = vec![]; // that no other owner has exclusively by now
        for element in &replaced.own {
            if self.is_free(element)? {
                own.push(element.clone());
            }
        }
        let mut is_any_back = false;
        let mut without_owner = vec![];
        for (element, comment) in &replaced.others {
            if !self.is_free(element)? {
                continue;
            }
            if self.is_known_of(comment, element)? {
                batch.element(self.ours.table(), &element.holding(Holding::Key, comment));
                is_any_back = true;
            } else {
                without_owner.push(element.clone());
            }
        }
        if own.is_empty() && !is_any_back {
            return self.release(Search::Ledger).map(|_| without_owner); // possibly with the table
        }
        self.add_elements(&mut batch, 0, &own);
        self.ours.commit(&batch, what).map(|()| without_owner)
    }

    /// Whether no other owner has the element exclusively.
    fn is_free(&self, element: &OwnedElement) -> Result<bool> {
        let found = self.ours.element(element.set, &element.key)?;
        Ok(found.is_none_or(|found| element.is_shared || is_of(&found.comment, self.owner)))
    }

    /// Whether the ledger still records the element for the owner that the comment names.
    fn is_known_of(&self, comment: &str, element: &OwnedElement) -> Result<bool> {
        let Some(id) = named_in(comment) else { return Ok(false) };
        let named = Owner { id, comment: comment.to_owned() };
        let entries = self.ours.of(&named).entries()?;
        Ok(entries.iter().any(|(_, entry)| *entry == element.entry()))
    }

    /// The owner's elements of sets, including those that it shares.
    fn own_elements(&self) -> Result<Vec<OwnedElement>> {
        let keys = self.keys()?;
        let mut own = vec![];
        let mut finder = Finder::new(self.ours, keys.len());
        for (set, key) in keys {
            let Some(set) = self.ours.layout.set(&set) else { continue };
            let Some(found) = finder.find(set, &key)? else { continue };
            let is_shared = found.comment == SHARED;
            if is_shared || is_of(&found.comment, self.owner) {
                own.push(OwnedElement { set, key, is_shared, ..OwnedElement::default() });
            }
        }
        Ok(own)
    }

    /// Creates the owner's elements in place of its earlier ones, unless another owner has one of
    /// them or a rival of one.
    ///
    /// The check and the creation are bound to one generation of the ruleset, so of two owners that
    /// want the same element only one gets it.
    pub fn take_free(&self, elements: &[OwnedElement]) -> Result<Option<Taken>> {
        let attempt = |rule| {
            self.ours.nft.again(&self.adding(), || {
                let mut batch = Batch::of_generation(self.ours.nft.generation()?);
                if let Some(taken) = self.first_taken(elements)? {
                    return Ok(Some(taken));
                }
                self.plan(&mut batch, elements, rule)?;
                self.ours.commit(&batch, self.adding()).map(|()| None)
            })
        };
        match attempt(Others::None) {
            // A set is gone, or the ledger has lost the owner's entries.
            Err(error) if needs_plan(&error) => attempt(Others::NoneInDamaged),
            done => done,
        }
    }

    /// The first of these elements that another owner has, or has a rival of.
    pub fn first_taken(&self, elements: &[OwnedElement]) -> Result<Option<Taken>> {
        let mut finder = Finder::new(self.ours, elements.len());
        let mut other_at = |set: &str, key: &[u8]| {
            let found = finder.find(set, key)?.filter(|found| self.is_another_s_own(found));
            Ok::<_, Error>(found.map(|found| found.comment))
        };
        let mut known: HashMap<(&str, usize), BySuffix> = HashMap::new();
        for (number, element) in elements.iter().enumerate() {
            // What elements with a chain lead to is shared, so no owner has it exclusively.
            if element.chain.is_some() || element.is_shared {
                continue;
            }
            let mut by = other_at(element.set, &element.key)?;
            for rival in &element.rivals {
                let by_rival = match rival {
                    Rival::Key { set, key } => other_at(set, key)?,
                    Rival::Suffix { set, suffix } => {
                        let of_others = match known.entry((set, suffix.len())) {
                            Entry::Occupied(known) => known.into_mut(),
                            Entry::Vacant(new) => {
                                new.insert(self.others_by_suffix(set, suffix.len())?)
                            }
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
    fn others_by_suffix(&self, set: &str, length: usize) -> Result<BySuffix> {
        let mut of_others = self.ours.elements(set)?;
        of_others.retain(|found| self.is_another_s_own(found));
        let end_and_comment = |found: ElementInfo| {
            let start = found.key.len().checked_sub(length)?;
            Some((found.key.get(start..)?.to_vec(), found.comment))
        };
        Ok(of_others.into_iter().filter_map(end_and_comment).collect())
    }

    fn is_another_s_own(&self, found: &ElementInfo) -> bool {
        found.comment != self.owner.comment
    }

    /// Adds elements to those that the owner has. An element of another owner is transferred.
    pub fn take_more(&self, elements: &[OwnedElement]) -> Result<()> {
        match self.try_more(Batch::default(), elements) {
            Err(error) if error.is_not_found() => {
                let mut batch = Batch::default();
                self.ours.layout.write(&mut batch); // a set is gone
                self.try_more(batch, elements)
            }
            done => done,
        }
    }

    fn try_more(&self, mut batch: Batch, elements: &[OwnedElement]) -> Result<()> {
        let mut first = 0;
        while self.ledger_entry(first)?.is_some() {
            first += 1;
        }
        for element in elements {
            if self.ours.element(element.set, &element.key)?.is_some() {
                batch.delete_element(self.ours.table(), element.set, &element.key);
            }
        }
        self.add_elements(&mut batch, first, elements);
        self.ours.commit(&batch, self.adding())
    }

    /// Whether table, chains and rules exist and the owner has nothing yet. A batch that fails
    /// makes the kernel wait for all its processors, which takes longer than anything else here, so
    /// a batch is not tried if it can be seen to fail.
    fn only_elements_are_missing(&self, elements: &[OwnedElement]) -> Result<bool> {
        if !self.ours.is_laid_out()? {
            return Ok(false);
        }
        for chain in chains_of(elements) {
            if !self.ours.is_intact(chain)? {
                return Ok(false);
            }
        }
        Ok(self.ledger_entry(0)?.is_none())
    }

    /// Plans whatever the table may lack, except elements.
    fn plan_lay_out(&self, batch: &mut Batch) -> Result<()> {
        self.ours.layout.write(batch);
        self.restore_ledger(batch)
    }

    /// Adds elements and their ledger entries, which are numbered from `first`.
    fn add_elements(&self, batch: &mut Batch, first: u32, elements: &[OwnedElement]) {
        for (number, element) in (first..).zip(elements) {
            let table = self.ours.table();
            if element.is_shared {
                batch.shared_element(table, &element.holding(Holding::Key, SHARED));
            } else {
                let verdict = element.chain_name().map(|chain| Verdict::Goto(chain.to_owned()));
                let holding = match (&verdict, &element.value) {
                    (Some(verdict), _) => Holding::Verdict(verdict),
                    (None, Some(value)) => Holding::Value(value),
                    (None, None) => Holding::Key,
                };
                batch.element(table, &element.holding(holding, &self.owner.comment));
            }
            self.ours.enter(batch, &ledger_key(self.owner, number), &element.entry());
        }
    }

    fn adding(&self) -> String {
        format!("add elements to table {:?}", self.ours.table().name)
    }
}

/// Whether the table is not laid out yet, or an element exists already: then the present state has
/// to be read first.
fn needs_plan(error: &Error) -> bool {
    error.is_exists() || [Errno::ENOENT, Errno::EBUSY].iter().any(|errno| error.is_errno(*errno))
}
