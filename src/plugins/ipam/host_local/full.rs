//! Range sets without a free address: STATUS warns of them, and the error of ADD says how many of
//! their leases GC would release.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::cni::attachment::NetworkName;
use crate::error::{Result, warn};
use crate::steps::allocation::files::{Place, lease};
use crate::steps::allocation::ranges::RangeSet;
use crate::steps::allocation::search::{Pool, first_free};
use crate::steps::allocation::{advice, full_set};

/// Prints a warning for each full set.
pub fn warn_of_full_sets(place: &Place, sets: &[RangeSet]) -> Result<()> {
    for set in full_sets(place, sets)? {
        warn(format_args!("host-local: {}", full_set(set)));
    }
    Ok(())
}

/// What the reader of a failed ADD can do about full sets; None if no set is full. Looks into every
/// namespace of the machine, so it is for failures only.
pub fn advice(place: &Place, sets: &[RangeSet], network: &NetworkName) -> Option<String> {
    let full = full_sets(place, sets).ok().filter(|full| !full.is_empty())?;
    let taken = place.taken().ok()?;
    let held: Vec<IpAddr> =
        taken.into_iter().filter(|ip| full.iter().any(|set| set.contains(*ip))).collect();
    Some(advice::on_full(&held, network))
}

fn full_sets<'s>(place: &Place, sets: &'s [RangeSet]) -> Result<Vec<&'s RangeSet>> {
    let mut full = vec![];
    for (number, set) in sets.iter().enumerate() {
        if is_full(place, set, number)? {
            full.push(set);
        }
    }
    Ok(full)
}

/// Whether the set has no free address. Runtimes call STATUS every few seconds, so the search ends
/// at the first free address and takes no lock. A torn lease counts as free: the next ADD frees it.
fn is_full(place: &Place, set: &RangeSet, number: usize) -> Result<bool> {
    let last = lease::last_reserved(place.dir(), number);
    let free = first_free(set.candidates(last), &mut Looking { place })?;
    Ok(free.is_none() && !place.has_torn(|ip| set.contains(ip))?)
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
