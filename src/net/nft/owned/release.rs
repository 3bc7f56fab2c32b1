//! What owners have, and how it is removed.

use std::collections::{BTreeMap, HashSet};

use super::finder::Finder;
use super::ledger::{
    LEDGER, NO_OWNER, is_entry_of_other, is_of, ledger_key, named_in, owner_of, read_entry,
};
use super::{Layout, OwnedElement, Owner, SHARED, chains_of};
use crate::error::Result;
use crate::net::nft::batch::{Batch, Table};
use crate::net::nft::{ElementInfo, Nft};

impl Nft {
    /// Removes all that belongs to the owner, and returns it. The table goes with the last element.
    pub fn release(&self, layout: &Layout, owner: &Owner) -> Result<Vec<Released>> {
        let what = format!("delete elements of table {:?}", layout.table.name);
        if !self.has_entry(layout.table, owner)? && !self.is_lost(layout.table, &[])? {
            return Ok(vec![]);
        }
        self.again(&what, || {
            let generation = self.generation()?;
            let mut batch = Batch::of_generation(generation);
            let Plan { released, unused, is_any_shared, .. } =
                self.plan_release(&mut batch, layout, owner)?;
            if batch.is_empty() {
                return Ok(released);
            }
            if !is_any_shared && !self.has_others(layout, owner)? {
                batch = Batch::of_generation(generation);
                batch.delete_table(layout.table);
                return self.commit(&batch, &what).map(|()| released);
            }
            for chain in unused {
                batch.delete_chain(layout.table, &chain);
            }
            self.commit(&batch, &what).map(|()| released)
        })
    }

    /// The same for an owner that may have lost its entries of the ledger: all elements of all sets
    /// are looked at.
    pub fn release_by_comment(&self, layout: &Layout, owner: &Owner) -> Result<Vec<Released>> {
        let what = format!("delete elements of table {:?}", layout.table.name);
        let mut released = self.release(layout, owner)?;
        released.extend(self.again(&what, || {
            let mut batch = Batch::of_generation(self.generation()?);
            let left = self.all_of(layout, owner)?;
            for element in &left {
                batch.delete_element(layout.table, &element.set, &element.key);
            }
            if !left.is_empty() && !self.is_of_others(layout, owner)? {
                batch.delete_table(layout.table);
            }
            self.commit(&batch, &what).map(|()| left)
        })?);
        Ok(released)
    }

    /// Whether there are other owners, by the ledger unless that was flushed.
    pub(super) fn has_others(&self, layout: &Layout, owner: &Owner) -> Result<bool> {
        match self.is_ledger_whole(layout.table)? {
            true => self.has_element(layout.table, LEDGER.name, |found| {
                is_entry_of_other(&found.key, owner)
            }),
            false => self.is_of_others(layout, owner),
        }
    }

    /// Whether there are other owners, by the ledger or by their elements.
    pub(super) fn is_of_others(&self, layout: &Layout, owner: &Owner) -> Result<bool> {
        let is_another_s =
            |found: &ElementInfo| found.comment != SHARED && !is_of(&found.comment, owner);
        for set in layout.sets {
            if self.has_element(layout.table, set.name, is_another_s)? {
                return Ok(true);
            }
        }
        self.has_element(layout.table, LEDGER.name, |found| is_entry_of_other(&found.key, owner))
    }

    /// What each owner has, of one group or of all: the owners that the ledger has, and those that
    /// elements name. Reads each set once.
    pub fn holdings(&self, layout: &Layout, group: Option<[u8; 8]>) -> Result<Vec<Owned>> {
        let mut held: BTreeMap<[u8; 16], Owned> = BTreeMap::new();
        let is_wanted =
            |id: &[u8; 16]| *id != NO_OWNER && group.is_none_or(|group| id[..8] == group);
        for entry in self.elements(layout.table, LEDGER.name)? {
            if let Some(id) = owner_of(&entry.key).filter(is_wanted) {
                held.entry(id).or_insert_with(|| Owned::new(id));
            }
        }
        for set in layout.sets {
            for element in self.elements(layout.table, set.name)? {
                let Some(id) = named_in(&element.comment).filter(is_wanted) else { continue };
                let of_owner = held.entry(id).or_insert_with(|| Owned::new(id));
                of_owner.comment.clone_from(&element.comment);
                of_owner.elements.push(Released::new(set.name, element));
            }
        }
        Ok(held.into_values().collect())
    }

    /// The elements, by set and key, that belong to the owner alone; also those of the ledger that
    /// have gone from their sets and that no other owner has.
    pub fn belongings(&self, layout: &Layout, owner: &Owner) -> Result<Vec<(String, Vec<u8>)>> {
        let (mut elements, keys) = (vec![], self.keys_of(layout, owner)?);
        let mut finder = Finder::new(self, layout.table, keys.len());
        for (set, key) in keys {
            if finder.find(&set, &key)?.is_none_or(|found| is_of(&found.comment, owner)) {
                elements.push((set, key));
            }
        }
        Ok(elements)
    }

    /// The same for an owner that may have lost its entries of the ledger: all elements of all sets
    /// are looked at as well.
    pub fn belongings_by_comment(
        &self,
        layout: &Layout,
        owner: &Owner,
    ) -> Result<Vec<(String, Vec<u8>)>> {
        let mut elements = self.belongings(layout, owner)?;
        let known: HashSet<(String, Vec<u8>)> = elements.iter().cloned().collect();
        let all = self.all_of(layout, owner)?.into_iter().map(|element| (element.set, element.key));
        elements.extend(all.filter(|element| !known.contains(element)));
        Ok(elements)
    }

    /// What the ledger has as the owner's, or the elements themselves where it has lost anything.
    pub(super) fn keys_of(&self, layout: &Layout, owner: &Owner) -> Result<Vec<(String, Vec<u8>)>> {
        let entries = self.entries(layout.table, owner)?;
        let mut keys: Vec<_> = entries.iter().filter_map(|(_, entry)| read_entry(entry)).collect();
        if self.is_lost(layout.table, &entries)? {
            let known: HashSet<(String, Vec<u8>)> = keys.iter().cloned().collect();
            let all =
                self.all_of(layout, owner)?.into_iter().map(|element| (element.set, element.key));
            keys.extend(all.filter(|element| !known.contains(element)));
        }
        Ok(keys)
    }

    /// Whether the owner has any element at all.
    pub fn has_anything(&self, layout: &Layout, owner: &Owner) -> Result<bool> {
        Ok(self.has_entry(layout.table, owner)? || !self.keys_of(layout, owner)?.is_empty())
    }

    /// Which of these elements are not there, for whatever owner.
    pub fn absent<'e>(
        &self,
        layout: &Layout,
        elements: &'e [OwnedElement],
    ) -> Result<Vec<&'e OwnedElement>> {
        let mut finder = Finder::new(self, layout.table, elements.len());
        let mut absent = vec![];
        for element in elements {
            if finder.find(element.set, &element.key)?.is_none() {
                absent.push(element);
            }
        }
        Ok(absent)
    }

    /// Plans the removal of the owner's elements.
    pub(super) fn plan_release(
        &self,
        batch: &mut Batch,
        layout: &Layout,
        owner: &Owner,
    ) -> Result<Plan> {
        let (table, entries) = (layout.table, self.entries(layout.table, owner)?);
        let mut plan = Plan::default();
        let mut finder = Finder::new(self, table, entries.len());
        for (number, entry) in &entries {
            batch.delete_element(table, LEDGER.name, &ledger_key(owner, *number));
            let Some((set, key)) = read_entry(entry) else { continue };
            let Some(found) = finder.find(&set, &key)? else { continue };
            let is_his = match found.comment == SHARED {
                true => !self.is_another_s(table, owner, entry)?,
                false => is_of(&found.comment, owner),
            };
            plan.released.extend(is_his.then(|| Released::new(&set, found)));
        }
        if self.is_lost(table, &entries)? {
            plan.released = self.all_of(layout, owner)?;
        }
        plan.keys = plan
            .released
            .iter()
            .map(|element| (element.set.clone(), element.key.clone()))
            .collect();
        let mut leading: BTreeMap<&str, u32> = BTreeMap::new();
        for element in &plan.released {
            batch.delete_element(table, &element.set, &element.key);
            if let Some(chain) = &element.chain {
                *leading.entry(chain).or_default() += 1;
            }
        }
        for (chain, ours) in leading {
            let Some(info) = self.chain(table.family, table.name, chain)? else { continue };
            let rules = self.rules(table.family, table.name, chain)?.len();
            // A transaction between the two reads changes the generation: the plan is then made
            // again.
            match info
                .uses
                .checked_sub(ours)
                .is_some_and(|others| usize::try_from(others) == Ok(rules))
            {
                true => plan.unused.push(chain.to_owned()),
                false => plan.is_any_shared = true,
            }
        }
        Ok(plan)
    }

    /// The elements of all sets that say that they are the owner's.
    pub(super) fn all_of(&self, layout: &Layout, owner: &Owner) -> Result<Vec<Released>> {
        let mut all = vec![];
        for set in layout.sets {
            let elements = self.elements(layout.table, set.name)?;
            let his = elements.into_iter().filter(|element| is_of(&element.comment, owner));
            all.extend(his.map(|element| Released::new(set.name, element)));
        }
        Ok(all)
    }
}

/// What an owner has.
#[derive(Clone, Debug)]
pub struct Owned {
    /// The owner's id.
    pub id: [u8; 16],
    /// The comment of its elements; empty where it only has shared ones.
    pub comment: String,
    /// The elements that are its alone.
    pub elements: Vec<Released>,
}

impl Owned {
    fn new(id: [u8; 16]) -> Owned {
        Owned { id, comment: String::new(), elements: vec![] }
    }
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

/// What goes with an owner's elements.
#[derive(Default)]
pub(super) struct Plan {
    /// The elements.
    pub released: Vec<Released>,
    /// Their sets and keys.
    pub keys: HashSet<(String, Vec<u8>)>,
    /// Chains that no other element leads to.
    pub unused: Vec<String>,
    /// To one at least another owner's element leads: so he is not the last, and the ledger need
    /// not be asked.
    pub is_any_shared: bool,
}

impl Plan {
    /// Whether the element goes.
    pub fn has(&self, element: &OwnedElement) -> bool {
        self.keys.contains(&(element.set.to_owned(), element.key.clone()))
    }

    /// Deletes the chains that none of the elements leads to that come in place of these.
    pub fn delete_unused(&self, batch: &mut Batch, table: Table, elements: &[OwnedElement]) {
        let is_wanted = |name: &str| chains_of(elements).any(|chain| chain.name == name);
        for chain in self.unused.iter().filter(|chain| !is_wanted(chain)) {
            batch.delete_chain(table, chain);
        }
    }
}
