//! What an ADD of the model needs.

use std::net::IpAddr;

use super::super::sticky;

/// The address that an ADD needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    Any,
    Address(IpAddr),
    Name(String),
}

/// What an ADD needs, and of which range set of which network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub net: usize,
    pub set: usize,
    pub ask: Ask,
}

/// A name as the plugin asks for it in a range set.
pub fn name_of(set: usize, name: &str) -> String {
    sticky::of_sets(Some(name), set + 1).swap_remove(set)
}
