//! The set that says which elements are whose: its keys are an owner's id and a number, its comments name an element.

use super::{OwnedElement, Owner};
use crate::error::Result;
use crate::net::nft::batch::{Holds, KeyType, Set, Table};
use crate::net::nft::{ElementInfo, Nft};

/// Says which elements belong to whom.
pub(super) const LEDGER: Set = Set { name: "attachments", key: &[KeyType::Mark; 5], holds: Holds::Keys };

impl Nft {
    /// The owner's entries of the ledger, with their numbers. One that is missing does not hide those behind it; where
    /// there is none, two questions show it.
    pub(super) fn entries(&self, table: Table, owner: &Owner) -> Result<Vec<(u32, String)>> {
        let mut entries = vec![];
        let mut number = 0;
        loop {
            match self.ledger_entry(table, owner, number)? {
                Some(entry) => entries.push((number, entry)),
                None => match self.ledger_entry(table, owner, number + 1)? {
                    Some(_) => (),
                    None => return Ok(entries),
                },
            }
            number += 1;
        }
    }

    /// Whether a shared element is another owner's as well. He adds his entry without a look at ours; but that changes the
    /// generation, which our removal is bound to.
    pub(super) fn is_another_s(&self, table: Table, owner: &Owner, entry: &str) -> Result<bool> {
        let names_it = |found: &ElementInfo| found.comment == entry && owner_of(&found.key) != Some(owner.id);
        self.has_element(table, LEDGER.name, names_it)
    }

    pub(super) fn ledger_entry(&self, table: Table, owner: &Owner, number: u32) -> Result<Option<String>> {
        Ok(self.element(table, LEDGER.name, &ledger_key(owner, number))?.map(|element| element.comment))
    }
}

pub(super) fn ledger_key(owner: &Owner, number: u32) -> Vec<u8> {
    [&as_marks(owner.id)[..], &number.to_ne_bytes()].concat()
}

/// The id as nft(8) shows it in hex: marks are in the machine's byte order.
pub(super) fn as_marks(mut id: [u8; 16]) -> [u8; 16] {
    if cfg!(target_endian = "little") {
        id.chunks_exact_mut(4).for_each(<[u8]>::reverse);
    }
    id
}

/// The owner's id in a key of the ledger.
pub(super) fn owner_of(key: &[u8]) -> Option<[u8; 16]> {
    key.get(..16)?.try_into().ok().map(as_marks)
}

/// The owner's id that a comment begins with.
pub(super) fn named_in(comment: &str) -> Option<[u8; 16]> {
    let digits: String = comment.get(..33)?.replace('-', "");
    let byte = |at: usize| u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok();
    (0..16).map(byte).collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// A removal by id alone does not know the whole comment; every comment begins with the id in hex.
pub(super) fn is_of(comment: &str, owner: &Owner) -> bool {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    comment.starts_with(&format!("{}-{}", hex(&owner.id[..8]), hex(&owner.id[8..])))
}

/// `<set> <key in hex>`, which a person can read in `nft list` as well.
pub(super) fn write_entry(element: &OwnedElement) -> String {
    let key: String = element.key.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} {key}", element.set)
}

pub(super) fn read_entry(entry: &str) -> Option<(String, Vec<u8>)> {
    let (set, hex) = entry.split_once(' ')?;
    let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    let key = (0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
    Some((set.to_owned(), key))
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use crate::error::{Code, Error};

    #[test]
    fn whom_others_always_forestall_is_told_to_try_again() {
        let forestalled = || Err::<(), _>(Error::kernel("commit", Errno::ERESTART));
        let error = Nft::open().unwrap().again("delete elements", forestalled).unwrap_err();
        let told = "delete elements; the rules changed during each of 1000 tries";
        assert_eq!((error.code, error.to_string().as_str()), (Code::TRY_AGAIN, told));
    }

    #[test]
    fn a_ledger_entry_names_its_element() {
        let element = OwnedElement { set: "masq4", key: vec![10, 1, 0, 255], ..OwnedElement::default() };
        assert_eq!(write_entry(&element), "masq4 0a0100ff");
        assert_eq!(read_entry("masq4 0a0100ff"), Some(("masq4".into(), vec![10, 1, 0, 255])));
        for bad in ["", "masq4", "masq4 0", "masq4 zz", "masq4 ä0"] {
            assert_eq!(read_entry(bad), None, "{bad}");
        }
    }
}
