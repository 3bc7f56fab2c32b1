//! Lists and removes the elements of owners.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};

use super::claims::{Claims, Finder, OurTable};
use super::layout::{ADMIN, LEDGER, OwnedElement, Reliance, SHARED, chains_of};
use super::ledger::{
    NO_OWNER, is_entry_of_other, is_of, ledger_key, named_in, owner_of, read_entry,
};
use crate::error::Result;
use crate::net::nft::ElementInfo;
use crate::net::nft::batch::{Batch, Table};

/// How an owner's elements are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// Through the ledger: the cost does not depend on the number of owners.
    Ledger,
    /// By the comment of every element, for an owner whose ledger entries may be lost.
    Comments,
}

/// Whether the owner's elements may be removed, by the ruleset of this moment.
type MayGo<'a> = &'a dyn Fn() -> Result<bool>;

impl OurTable<'_> {
    /// The elements of each owner, of one group or of all: the owners in the ledger, and those that
    /// elements name. Reads each set once.
    pub fn holdings(&self, group: Option<[u8; 8]>) -> Result<Vec<Owned>> {
        let mut held = Held { group, owners: BTreeMap::new() };
        for entry in self.elements(LEDGER.name)? {
            held.owner(owner_of(&entry.key));
        }
        for set in self.layout.sets {
            for element in self.elements(set.name)? {
                if let Some(owner) = held.owner(named_in(&element.comment)) {
                    owner.comment.clone_from(&element.comment);
                    owner.elements.push(Released::new(set.name, element));
                }
            }
        }
        Ok(held.owners.into_values().collect())
    }

    /// Ends what relies on elements that the batch removes. `ended` has the keys of those for which
    /// an earlier attempt has done so: what relies on one that stays begins again. The element
    /// stands then, because the batch is bound to the generation in which it was found.
    pub(super) fn end_reliance(&self, batch: &Batch, ended: &mut Vec<Vec<u8>>) -> Result<()> {
        let Some(Reliance { set, end, begin_again }) = &self.layout.reliance else { return Ok(()) };
        let going = if batch.removes_table() {
            self.elements(set.name)?.into_iter().map(|element| element.key).collect()
        } else {
            batch.removed_from(set.name)
        };
        for key in ended.extract_if(.., |key| !going.contains(key)) {
            if self.element(set.name, &key)?.is_some() {
                begin_again(&key)?;
            }
        }
        for key in going {
            end(&key)?;
            ended.push(key);
        }
        Ok(())
    }

    /// Whether an administrator has rules in the table.
    fn is_administered(&self) -> Result<bool> {
        Ok(self.chain(ADMIN)?.is_some() && !self.rules(ADMIN)?.is_empty())
    }

    fn plan_deletion(&self, batch: &mut Batch, elements: &[Released]) {
        for element in elements {
            batch.delete_element(self.table(), &element.set, &element.key);
        }
    }
}

/// The owners that were found, of one group or of all.
struct Held {
    group: Option<[u8; 8]>,
    owners: BTreeMap<[u8; 16], Owned>,
}

impl Held {
    /// The owner with this id, if it is wanted.
    fn owner(&mut self, id: Option<[u8; 16]>) -> Option<&mut Owned> {
        let id = id.filter(|id| *id != NO_OWNER)?;
        if self.group.is_some_and(|group| id[..8] != group) {
            return None;
        }
        let new = || Owned { id, comment: String::new(), elements: vec![] };
        Some(self.owners.entry(id).or_insert_with(new))
    }
}

impl Claims<'_> {
    /// Removes all elements of the owner, and returns them. The table is removed with its last
    /// element.
    pub fn release(&self, search: Search) -> Result<Vec<Released>> {
        self.release_if(search, &|| Ok(true))
    }

    /// The same, if `may_go` says so of the ruleset that each removal is bound to.
    pub fn release_if(&self, search: Search, may_go: MayGo<'_>) -> Result<Vec<Released>> {
        let by_ledger = |batch: &mut Batch| {
            let plan = self.plan_release(batch)?;
            if batch.is_empty() {
                return Ok(plan.released);
            }
            if !plan.is_any_shared && !self.has_others()? && !self.ours.is_administered()? {
                batch.clear();
                batch.delete_table(self.ours.table());
            } else {
                plan.delete_unused(batch, self.ours.table(), &[]);
            }
            Ok(plan.released)
        };
        let by_comments = |batch: &mut Batch| {
            let left = self.all()?;
            self.ours.plan_deletion(batch, &left);
            if !left.is_empty() && !self.is_of_others()? && !self.ours.is_administered()? {
                batch.delete_table(self.ours.table());
            }
            Ok(left)
        };
        let mut released = vec![];
        if self.has_entry()? || self.ours.is_lost(&[])? {
            released = self.deleting(may_go, by_ledger)?;
        }
        if search == Search::Comments {
            released.extend(self.deleting(may_go, by_comments)?);
        }
        Ok(released)
    }

    /// Commits what `plan` plans, bound to the generation that it was planned on.
    fn deleting(
        &self,
        may_go: MayGo<'_>,
        plan: impl Fn(&mut Batch) -> Result<Vec<Released>>,
    ) -> Result<Vec<Released>> {
        let what = format!("delete elements of table {:?}", self.ours.table().name);
        let ended = RefCell::default();
        self.ours.nft.again(&what, || {
            let mut batch = Batch::of_generation(self.ours.nft.generation()?);
            let planned = if may_go()? { plan(&mut batch)? } else { vec![] };
            self.ours.end_reliance(&batch, &mut ended.borrow_mut())?;
            self.ours.nft.commit(&batch, &what).map(|()| planned)
        })
    }

    /// Whether there are other owners, according to the ledger unless that was flushed.
    fn has_others(&self) -> Result<bool> {
        if self.ours.is_ledger_whole()? {
            self.is_in_ledger_with_others()
        } else {
            self.is_of_others()
        }
    }

    /// Whether there are other owners, according to the ledger or to their elements.
    fn is_of_others(&self) -> Result<bool> {
        let is_another_s =
            |found: &ElementInfo| found.comment != SHARED && !is_of(&found.comment, self.owner);
        for set in self.ours.layout.sets {
            if self.ours.has_element(set.name, is_another_s)? {
                return Ok(true);
            }
        }
        self.is_in_ledger_with_others()
    }

    fn is_in_ledger_with_others(&self) -> Result<bool> {
        self.ours.has_element(LEDGER.name, |found| is_entry_of_other(&found.key, self.owner))
    }

    /// The elements, by set and key, that belong to the owner alone; also those of its ledger
    /// entries that are gone from their sets and that no other owner has.
    pub fn belongings(&self, search: Search) -> Result<Vec<(String, Vec<u8>)>> {
        let keys = self.keys()?;
        let mut elements = vec![];
        let mut finder = Finder::new(self.ours, keys.len());
        for (set, key) in keys {
            if finder.find(&set, &key)?.is_none_or(|found| is_of(&found.comment, self.owner)) {
                elements.push((set, key));
            }
        }
        if search == Search::Comments {
            self.add_all(&mut elements)?;
        }
        Ok(elements)
    }

    /// The elements of the owner's ledger entries, and those that name the owner if any entry is
    /// lost.
    pub(super) fn keys(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let entries = self.entries()?;
        let mut keys: Vec<_> = entries.iter().filter_map(|(_, entry)| read_entry(entry)).collect();
        if self.ours.is_lost(&entries)? {
            self.add_all(&mut keys)?;
        }
        Ok(keys)
    }

    /// Adds the elements of all sets that name the owner, each once.
    fn add_all(&self, keys: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
        let known: HashSet<(String, Vec<u8>)> = keys.iter().cloned().collect();
        let all = self.all()?.into_iter().map(|element| (element.set, element.key));
        keys.extend(all.filter(|element| !known.contains(element)));
        Ok(())
    }

    /// Whether the owner has any element at all.
    pub fn has_anything(&self) -> Result<bool> {
        Ok(self.has_entry()? || !self.keys()?.is_empty())
    }

    /// Plans the removal of the owner's elements.
    pub(super) fn plan_release(&self, batch: &mut Batch) -> Result<Plan> {
        let entries = self.entries()?;
        let mut released = vec![];
        let mut finder = Finder::new(self.ours, entries.len());
        for (number, entry) in &entries {
            let key = ledger_key(self.owner, *number);
            batch.delete_element(self.ours.table(), LEDGER.name, &key);
            released.extend(self.find_own(&mut finder, entry)?);
        }
        if self.ours.is_lost(&entries)? {
            released = self.all()?;
        }
        self.ours.plan_deletion(batch, &released);
        let keys = released.iter().map(|element| (element.set.clone(), element.key.clone()));
        let mut plan = Plan { keys: keys.collect(), released, ..Plan::default() };
        let mut leading = BTreeMap::new(); // chain: how many of the elements lead there
        for chain in plan.released.iter().filter_map(|element| element.chain.as_deref()) {
            *leading.entry(chain).or_default() += 1;
        }
        for (chain, ours) in leading {
            let Some(info) = self.ours.chain(chain)? else { continue };
            let rules = self.ours.rules(chain)?.len();
            // A transaction between the two reads changes the generation: the plan is then made
            // again.
            let others = info.uses.checked_sub(ours).and_then(|uses| usize::try_from(uses).ok());
            if others == Some(rules) {
                plan.unused.push(chain.to_owned());
            } else {
                plan.is_any_shared = true;
            }
        }
        Ok(plan)
    }

    /// The element that a ledger entry names, if no other owner has it.
    fn find_own(&self, finder: &mut Finder<'_>, entry: &str) -> Result<Option<Released>> {
        let Some((set, key)) = read_entry(entry) else { return Ok(None) };
        let Some(found) = finder.find(&set, &key)? else { return Ok(None) };
        let is_own = match found.comment.as_str() {
            SHARED => !self.is_another_s(entry)?,
            comment => is_of(comment, self.owner),
        };
        Ok(is_own.then(|| Released::new(&set, found)))
    }

    /// The elements of all sets that name the owner.
    fn all(&self) -> Result<Vec<Released>> {
        let mut all = vec![];
        for set in self.ours.layout.sets {
            let mut own = self.ours.elements(set.name)?;
            own.retain(|found| is_of(&found.comment, self.owner));
            all.extend(own.into_iter().map(|element| Released::new(set.name, element)));
        }
        Ok(all)
    }
}

/// The elements of one owner.
#[derive(Clone, Debug)]
pub struct Owned {
    /// The owner's id.
    pub id: [u8; 16],
    /// The comment of its elements; empty if it has only shared ones.
    pub comment: String,
    /// The elements that belong to it alone.
    pub elements: Vec<Released>,
}

/// An element that an owner had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The name of its set or map.
    pub set: String,
    /// Its key.
    pub key: Vec<u8>,
    /// Its value, in a map of values.
    pub value: Vec<u8>,
    /// The chain it led to.
    chain: Option<String>,
}

impl Released {
    fn new(set: &str, element: ElementInfo) -> Released {
        Released {
            set: set.to_owned(),
            key: element.key,
            value: element.value,
            chain: element.chain,
        }
    }
}

/// The planned removal of an owner's elements.
#[derive(Default)]
pub(super) struct Plan {
    /// The elements.
    pub released: Vec<Released>,
    /// Their sets and keys.
    pub keys: HashSet<(String, Vec<u8>)>,
    /// Chains that no other element leads to.
    pub unused: Vec<String>,
    /// Whether an element of another owner leads to at least one of the chains: then this owner is
    /// not the last, and the ledger need not be read.
    pub is_any_shared: bool,
}

impl Plan {
    /// Whether the element is removed.
    pub fn has(&self, element: &OwnedElement) -> bool {
        self.keys.contains(&(element.set.to_owned(), element.key.clone()))
    }

    /// Deletes the unused chains, except those that the new elements lead to.
    pub fn delete_unused(&self, batch: &mut Batch, table: Table, elements: &[OwnedElement]) {
        let is_wanted = |name: &str| chains_of(elements).any(|chain| chain.name == name);
        for chain in self.unused.iter().filter(|chain| !is_wanted(chain)) {
            batch.delete_chain(table, chain);
        }
    }
}
