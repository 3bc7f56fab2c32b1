//! The elements of sets that rules look keys up in, each read once.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::TableName;
use super::packet::is_wide;
use crate::error::Result;
use crate::net::netlink::attr::Attrs;
use crate::net::nfnetlink::NfFamily;
use crate::net::nft::socket::{Nft, Query};
use crate::net::nft::uapi::*;
use crate::net::nft::wire::Attributes;

/// How many bits nft(8) numbers the type of one field with (TYPE_BITS).
const TYPE_BITS: u32 = 6;

/// The sets that were read.
pub(super) type Sets = HashMap<(TableName, String), Rc<Set>>;

/// A set, or a map to verdicts.
#[derive(Debug)]
pub(super) struct Set {
    /// The length of its keys, with every field of a concatenation in whole words.
    pub(super) key_length: usize,
    /// Whether one of its ranges covers so much that any key may be in it.
    pub(super) is_wide: bool,
    shape: Shape,
    /// The elements in the order of their keys.
    elements: BTreeMap<Vec<u8>, Element>,
    /// The data of the element `*`, which has all keys that no other has.
    catch_all: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Each element is one key.
    Keys,
    /// An element begins a range, or ends the one before it.
    Ranges,
    /// Ranges of several fields, which are not decoded.
    Undecoded,
}

#[derive(Debug)]
struct Element {
    ends_range: bool,
    data: Vec<u8>,
}

impl Set {
    /// The data of the element that has the key, or None if no element does. The outer None means
    /// that the set cannot be decoded.
    #[expect(clippy::option_option, reason = "not decoded, and not found, are two answers")]
    pub(super) fn data_of(&self, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let found = match self.shape {
            Shape::Undecoded => return None,
            Shape::Keys => self.elements.get(key),
            Shape::Ranges => self.elements.range(..=key.to_vec()).next_back().map(|(_, last)| last),
        };
        let found = found.filter(|element| !element.ends_range);
        Some(found.map(|element| element.data.clone()).or(self.catch_all.clone()))
    }

    /// As [`Set::data_of`], for a key that no element has.
    #[expect(clippy::option_option, reason = "not decoded, and not found, are two answers")]
    pub(super) fn data_of_others(&self) -> Option<Option<Vec<u8>>> {
        (self.shape != Shape::Undecoded).then(|| self.catch_all.clone())
    }
}

/// Reads a set by its name; None if it does not exist.
pub(super) fn read(nft: &Nft, table: (NfFamily, &str), name: &str) -> Result<Option<Set>> {
    let (family, table_name) = table;
    let what = format_args!("find set {name:?} of table {table_name:?}");
    let names = |body: &mut Attributes| {
        body.text(NFTA_SET_TABLE, table_name).text(NFTA_SET_NAME, name);
    };
    let query = Query::new(NFT_MSG_GETSET, family, what, names);
    let head =
        nft.get(&query, |attrs| Some((shape(attrs), attrs.be32(NFTA_SET_KEY_LEN)? as usize)))?;
    let Some((shape, key_length)) = head else { return Ok(None) };
    let mut set =
        Set { key_length, is_wide: false, shape, elements: BTreeMap::new(), catch_all: None };
    if shape != Shape::Undecoded {
        elements(nft, table, name)?.into_iter().for_each(|element| set.add(element));
        set.is_wide = shape == Shape::Ranges && set.has_wide_range();
    }
    Ok(Some(set))
}

fn shape(attrs: Attrs<'_>) -> Shape {
    let flags = attrs.be32(NFTA_SET_FLAGS).unwrap_or_default();
    let has_fields = attrs.be32(NFTA_SET_KEY_TYPE).unwrap_or_default() >> TYPE_BITS != 0;
    match (flags & NFT_SET_INTERVAL != 0, has_fields) {
        (false, _) => Shape::Keys,
        (true, false) => Shape::Ranges,
        (true, true) => Shape::Undecoded,
    }
}

fn elements(nft: &Nft, (family, table): (NfFamily, &str), name: &str) -> Result<Vec<Read>> {
    let what = format_args!("list set {name:?} of table {table:?}");
    let names = |body: &mut Attributes| {
        body.text(NFTA_SET_ELEM_LIST_TABLE, table).text(NFTA_SET_ELEM_LIST_SET, name);
    };
    nft.dump(&Query::new(NFT_MSG_GETSETELEM, family, what, names), |attrs, list| {
        for (_, element) in attrs.within(NFTA_SET_ELEM_LIST_ELEMENTS).iter() {
            list.push(read_element(Attrs::of(element)));
        }
    })
}

/// An element, with its key; the catch-all element has none.
type Read = (Option<Vec<u8>>, Element);

fn read_element(attrs: Attrs<'_>) -> Read {
    let flags = attrs.be32(NFTA_SET_ELEM_FLAGS).unwrap_or_default();
    let data = attrs.bytes(NFTA_SET_ELEM_DATA).unwrap_or_default().to_vec();
    let element = Element { ends_range: flags & NFT_SET_ELEM_INTERVAL_END != 0, data };
    (attrs.value(NFTA_SET_ELEM_KEY).map(<[u8]>::to_vec), element)
}

impl Set {
    fn add(&mut self, (key, element): Read) {
        let Some(key) = key else {
            self.catch_all = Some(element.data);
            return;
        };
        // Where one range ends and the next one begins, the key is in the second.
        if !element.ends_range || !self.elements.contains_key(&key) {
            self.elements.insert(key, element);
        }
    }

    /// Whether one of the ranges is wide. A range without an end reaches to the last key.
    fn has_wide_range(&self) -> bool {
        let last = vec![u8::MAX; self.key_length];
        let mut ends = self.elements.keys().skip(1).chain([&last]);
        self.elements.iter().any(|(begin, element)| {
            let end = ends.next().unwrap_or(&last);
            !element.ends_range && is_wide(begin, end)
        })
    }
}
