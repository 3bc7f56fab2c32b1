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
    if held.is_empty() { Err(nothing_held(plugin, key)) } else { Ok(held) }
}

fn nothing_held(plugin: &str, key: &Key) -> Error {
    let msg = format!("{plugin}: Failed to find address added by container {}", key.container_id);
    let details = format!(
        "no address of network {:?} is held for its {:?}",
        key.network.as_str(),
        key.ifname.as_str()
    );
    Error::check(msg).with_details(details).about(&Aspect::Lease)
}

/// Verifies that the container holds the addresses of its result.
pub fn verify(result: &AddResult, sets: &[RangeSet], held: &[IpAddr]) -> Result<()> {
    result.ips.iter().try_for_each(|ip| verify_held(ip.address.addr(), sets, held))
}

/// Verifies that the container holds the address. An address of another plugin, or of a range that
/// is no longer configured, is not ours to verify.
fn verify_held(ip: IpAddr, sets: &[RangeSet], held: &[IpAddr]) -> Result<()> {
    let is_ours = sets.iter().any(|set| set.contains(ip));
    if held.contains(&ip) || !is_ours { Ok(()) } else { Err(not_held(ip, held)) }
}

fn not_held(ip: IpAddr, held: &[IpAddr]) -> Error {
    Error::check(format!("address {ip} of prevResult is not held by this container"))
        .with_details(format_args!("it holds {}", joined(held, ", ")))
        .about(&Aspect::Lease)
}
