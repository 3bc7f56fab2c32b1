//! Whether a condition of a rule holds.

use super::packet::{Loaded, is_wide};
use super::set::Set;
use crate::net::nft::uapi::*;

/// Whether the rule's conditions hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Matches {
    Yes,
    No,
    Maybe,
}

impl Matches {
    pub(super) fn of(holds: bool) -> Matches {
        if holds { Matches::Yes } else { Matches::No }
    }

    pub(super) fn inverted_if(self, is_inverted: bool) -> Matches {
        match self {
            Matches::Yes if is_inverted => Matches::No,
            Matches::No if is_inverted => Matches::Yes,
            condition => condition,
        }
    }

    /// Whether both hold.
    pub(super) fn and(self, other: Matches) -> Matches {
        match (self, other) {
            (Matches::No, _) | (_, Matches::No) => Matches::No,
            (Matches::Maybe, _) | (_, Matches::Maybe) => Matches::Maybe,
            (Matches::Yes, Matches::Yes) => Matches::Yes,
        }
    }
}

/// Whether a comparison with a value holds. A shorter value is the beginning of a link's name.
pub(super) fn compared(loaded: &Loaded, how: u32, value: &[u8]) -> Matches {
    match (loaded, how) {
        (Loaded::Known(bytes, _), _) if bytes.len() < value.len() => Matches::Maybe,
        (Loaded::Known(bytes, _), how) => {
            let bytes = &bytes[..value.len()];
            match how {
                NFT_CMP_EQ => Matches::of(bytes == value),
                NFT_CMP_NEQ => Matches::of(bytes != value),
                NFT_CMP_LT => Matches::of(bytes < value),
                NFT_CMP_LTE => Matches::of(bytes <= value),
                NFT_CMP_GT => Matches::of(bytes > value),
                NFT_CMP_GTE => Matches::of(bytes >= value),
                _ => Matches::Maybe,
            }
        }
        (Loaded::Unnamed(_), NFT_CMP_EQ) => Matches::No,
        (Loaded::Unnamed(_), NFT_CMP_NEQ) => Matches::Yes,
        (Loaded::Unnamed(_) | Loaded::Unknown, _) => Matches::Maybe,
    }
}

/// Whether the value is in a range.
pub(super) fn is_within(loaded: &Loaded, from: &[u8], to: &[u8]) -> Matches {
    match loaded {
        Loaded::Known(bytes, _) if bytes.len() == from.len() => {
            Matches::of(from <= &bytes[..] && &bytes[..] <= to)
        }
        Loaded::Unnamed(_) if !is_wide(from, to) => Matches::No,
        _ => Matches::Maybe,
    }
}

impl Set {
    /// Whether the set has the key, and the data of its element.
    pub(super) fn find(&self, key: &Loaded) -> (Matches, Option<Vec<u8>>) {
        let found = match key {
            Loaded::Unnamed(_) if self.is_wide => None,
            Loaded::Unnamed(_) => self.data_of_others(),
            Loaded::Known(key, _) => self.data_of(key),
            Loaded::Unknown => None,
        };
        match found {
            None => (Matches::Maybe, None),
            Some(data) => (Matches::of(data.is_some()), data),
        }
    }
}
