//! What several containers have, although only one may.

use std::collections::BTreeMap;

use super::finding::{Finding, Object};
use super::wiring::{Wiring, attach_again};
use crate::commands::fault::Fault;

/// The containers that have each thing.
pub struct Owners<'w, 'a, K> {
    /// How many of the containers were asked for; the others follow them.
    asked: usize,
    by_key: BTreeMap<K, Vec<Owner<'w, 'a>>>,
}

#[derive(Clone, Copy)]
struct Owner<'w, 'a> {
    number: usize,
    wiring: &'w Wiring<'a>,
    is_recorded: bool,
}

impl<'w, 'a, K: Ord> Owners<'w, 'a, K> {
    /// Nothing has an owner. The first `asked` containers were asked for.
    pub fn new(asked: usize) -> Owners<'w, 'a, K> {
        Owners { asked, by_key: BTreeMap::new() }
    }

    /// The container with this number has it; whether by its record.
    pub fn insert(&mut self, key: K, (number, wiring): (usize, &'w Wiring<'a>), is_recorded: bool) {
        self.by_key.entry(key).or_default().push(Owner { number, wiring, is_recorded });
    }

    /// A finding for each thing that several containers have, one of which was asked for.
    pub fn findings(
        &self,
        fault: &'static Fault,
        text: impl Fn(&K) -> String,
    ) -> impl Iterator<Item = Finding> {
        let is_conflict =
            |all: &[Owner<'_, '_>]| all.len() > 1 && all.iter().any(|it| it.number < self.asked);
        let shared = self.by_key.iter().filter(move |(_, owners)| is_conflict(owners));
        shared.filter_map(move |(key, owners)| finding(fault, owners, &text(key)))
    }
}

/// The fix is for a container that has it without a record, if there is one.
fn finding(fault: &'static Fault, owners: &[Owner<'_, '_>], what: &str) -> Option<Finding> {
    let names: Vec<String> =
        owners.iter().map(|owner| owner.wiring.attachment.at().name()).collect();
    let evidence = format!("{} have {what}", names.join(" and "));
    let wrong = owners.iter().find(|owner| !owner.is_recorded).or(owners.last())?.wiring;
    let object = Object::Network(wrong.network().to_owned());
    Some(Finding::new(fault, object, evidence).fix(attach_again(wrong.attachment)))
}
