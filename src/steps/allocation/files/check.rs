//! Compares the leases of an attachment with its result.

use std::net::IpAddr;

use super::{FileStore, Place};
use crate::cni::attachment::Key;
use crate::cni::result::AddResult;
use crate::error::{Aspect, Error, Result};
use crate::steps::allocation::owner::Owner;
use crate::steps::allocation::ranges::RangeSet;
use crate::steps::allocation::{held_by_attachment, joined};

/// The addresses that the attachment holds, at least one. `plugin` begins the error message.
pub fn held(place: &Place, key: &Key, plugin: &str) -> Result<Vec<IpAddr>> {
    let owner = Owner::of(key);
    let store = FileStore::open(place, &owner)?;
    let held = store.map_or(Ok(vec![]), |store| held_by_attachment(&store, &owner))?;
    if !held.is_empty() {
        return Ok(held);
    }
    let Key { network, container_id, ifname } = key;
    let msg = format!("{plugin}: Failed to find address added by container {container_id}");
    let (network, ifname) = (network.as_str(), ifname.as_str());
    let details = format!("no address of network {network:?} is held for its {ifname:?}");
    Err(Error::check(msg).with_details(details).about(&Aspect::Lease))
}

/// Verifies that the container holds the addresses of its result. An address of another plugin, or of
/// a range that is no longer configured, is not ours to verify.
pub fn verify(result: &AddResult, sets: &[RangeSet], held: &[IpAddr]) -> Result<()> {
    for ip in result.ips.iter().map(|ip| ip.address.addr()) {
        if !held.contains(&ip) && sets.iter().any(|set| set.contains(ip)) {
            let problem = format!("address {ip} of prevResult is not held by this container");
            return Err(Error::check(problem)
                .with_details(format_args!("it holds {}", joined(held, ", ")))
                .about(&Aspect::Lease));
        }
    }
    Ok(())
}
