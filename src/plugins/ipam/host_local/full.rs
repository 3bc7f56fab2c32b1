//! Range sets without a free address: STATUS warns of them, and the error of ADD says how many of
//! their leases GC would release.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::cni::attachment::NetworkName;
use crate::error::Result;
use crate::steps::allocation;
use crate::steps::allocation::files::{Place, lease};
use crate::steps::allocation::ranges::RangeSet;
use crate::steps::allocation::{Pool, first_free};

/// What the reader of a failed ADD can do about full sets; None if no set is full. Looks into every
/// namespace of the machine, so it is for failures only.
pub fn advice(place: &Place, sets: &[RangeSet], network: &NetworkName) -> Option<String> {
    let full = full_sets(place, sets).ok().filter(|full| !full.is_empty())?;
    let taken = place.taken().ok()?;
    let held: Vec<IpAddr> =
        taken.into_iter().filter(|ip| full.iter().any(|set| set.contains(*ip))).collect();
    Some(allocation::advice_on_full_sets(&held, network))
}

/// The sets without a free address. Runtimes call STATUS every few seconds, so the search ends at the
/// first free address and takes no lock. A torn lease counts as free: the next ADD frees it.
pub fn full_sets<'s>(place: &Place, sets: &'s [RangeSet]) -> Result<Vec<&'s RangeSet>> {
    let mut full = vec![];
    for (number, set) in sets.iter().enumerate() {
        let last = lease::last_reserved(place.dir(), number);
        let free = first_free(set.candidates(last), &mut Looking { place })?;
        if free.is_none() && !place.has_torn(|ip| set.contains(ip))? {
            full.push(set);
        }
    }
    Ok(full)
}

struct Looking<'a> {
    place: &'a Place,
}

impl Pool for Looking<'_> {
    fn attempt(&mut self, ip: IpAddr) -> Result<bool> {
        Ok(!self.place.is_taken(ip))
    }

    fn taken(&self) -> Result<HashSet<IpAddr>> {
        self.place.taken()
    }
}
