//! The ledger, the set that records which owner has which element: its keys are an owner's id and a
//! number, its comments name an element.

use std::collections::{HashMap, HashSet};

use super::claims::{Claims, OurTable};
use super::layout::{LEDGER, Owner, SHARED, entry_of};
use crate::error::Result;
use crate::hex;
use crate::net::nft::ElementInfo;
use crate::net::nft::batch::{Batch, Element, Holding};

/// The id of no owner. Its first entry is made with the table and means that no entry has been lost
/// since; the following entries are those of shared elements that have lost their owners.
pub(super) const NO_OWNER: [u8; 16] = [0; 16];
const WHOLE: &str = "no entry was lost while this one is here";

impl OurTable<'_> {
    /// Plans an entry of the ledger.
    pub(super) fn enter(&self, batch: &mut Batch, key: &[u8], entry: &str) {
        let element = Element { set: LEDGER.name, key, holding: Holding::Key, comment: entry };
        batch.element(self.table(), &element);
    }

    /// Whether the ledger has lost nothing to a flush.
    pub(super) fn is_ledger_whole(&self) -> Result<bool> {
        Ok(self.element(LEDGER.name, &key_of(&NO_OWNER, 0))?.is_some())
    }

    /// Whether the owner, whose ledger entries these are, may have lost some, so that only the
    /// elements themselves show which of them it has.
    pub(super) fn is_lost(&self, entries: &[(u32, String)]) -> Result<bool> {
        if !entries.is_empty() {
            let has_gap = (0..).zip(entries).any(|(place, (number, _))| place != *number);
            return Ok(has_gap);
        }
        Ok(!self.is_ledger_whole()? && self.nft.has_table(self.table())?)
    }
}

impl Claims<'_> {
    /// Restores the entries of a ledger that was flushed from the elements of owners other than
    /// this one, and marks the ledger as whole.
    pub(super) fn restore_ledger(&self, batch: &mut Batch) -> Result<()> {
        if self.ours.is_ledger_whole()? {
            return Ok(());
        }
        let listed = self.ours.elements(LEDGER.name)?;
        // The number of each owner's next entry.
        let mut next = HashMap::from([(NO_OWNER, 1)]);
        for entry in &listed {
            let number = entry.key.get(16..20).and_then(|number| number.try_into().ok());
            if let (Some(id), Some(number)) = (owner_of(&entry.key), number) {
                let next = next.entry(id).or_default();
                *next = (*next).max(u32::from_ne_bytes(number) + 1);
            }
        }
        let known = Known::of(&listed);
        for set in self.ours.layout.sets {
            for element in self.ours.elements(set.name)? {
                let entry = entry_of(set.name, &element.key);
                let lost = known.lost_by(&entry, &element.comment);
                let Some(id) = lost.filter(|id| *id != self.owner.id) else { continue };
                let number = next.entry(id).or_default();
                self.ours.enter(batch, &key_of(&id, *number), &entry);
                *number += 1;
            }
        }
        self.ours.enter(batch, &key_of(&NO_OWNER, 0), WHOLE);
        Ok(())
    }

    /// The owner's ledger entries, with their numbers. A single missing entry does not hide those
    /// after it; an owner without entries costs two lookups.
    pub(super) fn entries(&self) -> Result<Vec<(u32, String)>> {
        let mut entries = vec![];
        let mut number = 0;
        loop {
            match self.ledger_entry(number)? {
                Some(entry) => entries.push((number, entry)),
                None => match self.ledger_entry(number + 1)? {
                    Some(_) => (),
                    None => return Ok(entries),
                },
            }
            number += 1;
        }
    }

    /// Whether the owner has any entry, as far as two lookups show.
    pub(super) fn has_entry(&self) -> Result<bool> {
        Ok(self.ledger_entry(0)?.is_some() || self.ledger_entry(1)?.is_some())
    }

    /// Whether another owner has a shared element as well. Such an owner adds its entry without
    /// checking ours; but that changes the generation, which our removal is bound to.
    pub(super) fn is_another_s(&self, entry: &str) -> Result<bool> {
        let names_it = |found: &ElementInfo| {
            found.comment == entry && owner_of(&found.key) != Some(self.owner.id)
        };
        self.ours.has_element(LEDGER.name, names_it)
    }

    pub(super) fn ledger_entry(&self, number: u32) -> Result<Option<String>> {
        let found = self.ours.element(LEDGER.name, &ledger_key(self.owner, number))?;
        Ok(found.map(|element| element.comment))
    }
}

/// The entries left in a flushed ledger.
struct Known<'l> {
    of_owners: HashSet<(Option<[u8; 16]>, &'l str)>,
    of_any: HashSet<&'l str>,
}

impl<'l> Known<'l> {
    fn of(listed: &'l [ElementInfo]) -> Known<'l> {
        let entries = listed.iter().map(|entry| (owner_of(&entry.key), entry.comment.as_str()));
        Known {
            of_owners: entries.collect(),
            of_any: listed.iter().map(|entry| entry.comment.as_str()).collect(),
        }
    }

    /// The owner that has lost its entry for an element with this comment.
    fn lost_by(&self, entry: &str, comment: &str) -> Option<[u8; 16]> {
        match named_in(comment) {
            Some(id) => (!self.of_owners.contains(&(Some(id), entry))).then_some(id),
            None => (comment == SHARED && !self.of_any.contains(entry)).then_some(NO_OWNER),
        }
    }
}

pub(super) fn ledger_key(owner: &Owner, number: u32) -> Vec<u8> {
    key_of(&owner.id, number)
}

fn key_of(id: &[u8; 16], number: u32) -> Vec<u8> {
    [&as_marks(*id)[..], &number.to_ne_bytes()].concat()
}

/// Whether a ledger entry is another owner's.
pub(super) fn is_entry_of_other(key: &[u8], owner: &Owner) -> bool {
    owner_of(key).is_some_and(|id| id != owner.id && id != NO_OWNER)
}

/// Converts an id so that nft(8) shows it in hex: marks are in the machine's byte order.
pub(super) fn as_marks(mut id: [u8; 16]) -> [u8; 16] {
    if cfg!(target_endian = "little") {
        id.chunks_exact_mut(4).for_each(<[u8]>::reverse);
    }
    id
}

/// The owner's id in a ledger key.
pub(super) fn owner_of(key: &[u8]) -> Option<[u8; 16]> {
    key.get(..16)?.try_into().ok().map(as_marks)
}

/// The owner's id that a comment begins with.
pub(super) fn named_in(comment: &str) -> Option<[u8; 16]> {
    hex::decode(&comment.get(..33)?.replace('-', ""))?.try_into().ok()
}

/// Whether the comment names the owner. A removal by id alone does not know the whole comment;
/// every comment begins with the id in hex.
pub(super) fn is_of(comment: &str, owner: &Owner) -> bool {
    let (first, second) = owner.id.split_at(8);
    comment.starts_with(&format!("{}-{}", hex::encode(first), hex::encode(second)))
}

pub(super) fn read_entry(entry: &str) -> Option<(String, Vec<u8>)> {
    let (set, key) = entry.split_once(' ')?;
    Some((set.to_owned(), hex::decode(key)?))
}

#[cfg(test)]
mod tests {
    use super::super::layout::OwnedElement;
    use super::*;

    #[test]
    fn a_ledger_entry_names_its_element() {
        let element =
            OwnedElement { set: "masq4", key: vec![10, 1, 0, 255], ..OwnedElement::default() };
        assert_eq!(element.entry(), "masq4 0a0100ff");
        assert_eq!(read_entry("masq4 0a0100ff"), Some(("masq4".into(), vec![10, 1, 0, 255])));
        for bad in ["", "masq4", "masq4 0", "masq4 zz", "masq4 ä0"] {
            assert_eq!(read_entry(bad), None, "{bad}");
        }
    }
}
