//! Elements found by their keys: asked for one by one, or where there are many to ask for, listed
//! once.

use std::collections::HashMap;
use std::ops::Range;

use super::claims::OurTable;
use crate::error::Result;
use crate::net::nft::ElementInfo;

/// For so many, reading a whole set takes less time than to ask for each. The kernel begins at the
/// set's first element again for each page of a list, so for more it takes longer.
const MANY: Range<usize> = 1000..20_000;

/// Finds elements of one table.
pub(super) struct Finder<'n> {
    ours: OurTable<'n>,
    are_many: bool,
    listed: HashMap<String, HashMap<Vec<u8>, ElementInfo>>,
}

impl<'n> Finder<'n> {
    /// One that will be asked for about so many.
    pub fn new(ours: OurTable<'n>, count: usize) -> Finder<'n> {
        Finder { ours, are_many: MANY.contains(&count), listed: HashMap::new() }
    }

    /// The element with this key, if there is one.
    pub fn find(&mut self, set: &str, key: &[u8]) -> Result<Option<ElementInfo>> {
        if !self.are_many {
            return self.ours.element(set, key);
        }
        if !self.listed.contains_key(set) {
            let elements = self.ours.elements(set)?;
            let by_key =
                elements.into_iter().map(|element| (element.key.clone(), element)).collect();
            self.listed.insert(set.to_owned(), by_key);
        }
        Ok(self.listed.get(set).and_then(|listed| listed.get(key)).cloned())
    }
}
