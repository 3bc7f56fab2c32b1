//! Finds elements by their keys: by a lookup each, or if there are many to find, by one dump of the
//! set.

use std::collections::HashMap;
use std::ops::Range;

use super::claims::OurTable;
use super::element::OwnedElement;
use crate::error::Result;
use crate::net::nft::ElementInfo;

/// The numbers of lookups for which one dump of the set takes less time. For each page of a dump
/// the kernel begins at the set's first element again, so for even more elements a dump takes
/// longer.
const MANY: Range<usize> = 1000..20_000;

/// Finds elements of one table.
pub(super) struct Finder<'n> {
    ours: OurTable<'n>,
    are_many: bool,
    listed: HashMap<String, HashMap<Vec<u8>, ElementInfo>>,
}

impl<'n> Finder<'n> {
    /// A finder for about `count` lookups.
    pub fn new(ours: OurTable<'n>, count: usize) -> Finder<'n> {
        Finder { ours, are_many: MANY.contains(&count), listed: HashMap::new() }
    }

    /// The element with this key, if it exists.
    pub fn find(&mut self, set: &str, key: &[u8]) -> Result<Option<ElementInfo>> {
        if !self.are_many {
            return self.ours.element(set, key);
        }
        if !self.listed.contains_key(set) {
            let elements = self.ours.elements(set)?.into_iter();
            let listed = elements.map(|element| (element.key.clone(), element)).collect();
            self.listed.insert(set.to_owned(), listed);
        }
        Ok(self.listed.get(set).and_then(|listed| listed.get(key)).cloned())
    }

    /// Whether the element exists.
    pub fn has(&mut self, element: &OwnedElement) -> Result<bool> {
        Ok(self.find(element.set, &element.key)?.is_some())
    }
}
