//! The leases for operators: listed, freed one by one, and taken over from another machine.

use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use super::listing::Listed;
use super::{FileStore, Place};
use crate::cni::attachment::NetworkName;
use crate::error::{Code, Error, Result};
use crate::plugin::leases::{Holding, Holdings, Incoming, RangeUse};
use crate::rollback::{Rollback, transaction};
use crate::steps::allocation::Store as _;
use crate::steps::allocation::owner::{Lease, Owner};
use crate::steps::allocation::ranges::{Range, RangeSet};

/// The leases at a place, and how many addresses of each range they take.
pub fn holdings(place: &Place, sets: &[RangeSet]) -> Result<Holdings> {
    let listed = place.list()?;
    let ranges = sets.iter().flat_map(RangeSet::ranges);
    let ranges = ranges.map(|range| range_use(range, &listed)).collect();
    Ok(Holdings { held: listed.into_iter().map(holding).collect(), ranges })
}

/// The networks with a directory in `data_dir`.
pub fn networks(data_dir: &Path) -> Vec<NetworkName> {
    let mut names = vec![];
    for entry in fs::read_dir(data_dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        names.extend(NetworkName::parse(&name).ok().filter(|_| entry.path().is_dir()));
    }
    names
}

/// Frees the address if it is still held so; returns whether it was.
pub fn free(place: &Place, held: &Holding) -> Result<bool> {
    let owner = owner(held);
    let Some(mut store) = FileStore::open(place, &owner)? else { return Ok(false) };
    if !store.held_by(&owner)?.contains(&held.address) {
        return Ok(false);
    }
    store.release(held.address).map(|()| true)
}

/// How many of the leases are missing. Fails if one is outside of the sets, or its address has
/// another owner.
pub fn preview(place: &Place, sets: &[RangeSet], leases: &[Holding]) -> Result<usize> {
    require_in_ranges(leases, sets)?;
    Ok(missing(leases, place.list()?)?.len())
}

/// The store and the conditions of an import.
pub struct Target<'a> {
    /// The network's directory.
    pub place: &'a Place,
    /// The range sets that contain the addresses.
    pub sets: &'a [RangeSet],
    /// Called under the lock with the missing leases, before the first one is written. Its failure ends
    /// the import.
    pub require: &'a dyn Fn(&[Lease]) -> Result<()>,
}

/// Writes the missing leases and calls `then`, under the lock of ADD. Any failure leaves the store
/// as it was.
pub fn import(
    target: &Target<'_>,
    incoming: &Incoming<'_>,
    then: &mut dyn FnMut() -> Result<()>,
) -> Result<usize> {
    let place = target.place;
    require_in_ranges(incoming.leases, target.sets)?;
    let mut store = FileStore::create_whole(place)?;
    store.require_all_read()?;
    let missing = missing(incoming.leases, place.list()?)?;
    (target.require)(&missing)?;
    let written = transaction(|rb| {
        for (number, lease) in missing.iter().enumerate() {
            (incoming.tell)(number, missing.len());
            write(&mut store, lease, place, rb)?;
        }
        then()
    });
    written.inspect_err(|_| store.forget_what_is_gone())?;
    Ok(missing.len())
}

fn range_use(range: &Range, listed: &[Listed]) -> RangeUse {
    let held = listed.iter().filter(|listed| range.allocates(listed.ip)).count() as u64;
    RangeUse { range: range.to_string(), held, size: range.size() }
}

fn holding(listed: Listed) -> Holding {
    let Listed { ip, owner, since } = listed;
    let (container_id, ifname) =
        owner.map(|owner| (owner.container_id, owner.ifname)).unwrap_or_default();
    let ifname = ifname.unwrap_or_default();
    Holding { address: ip, container_id, ifname, since, netns_path: String::new() }
}

fn owner(held: &Holding) -> Owner {
    let ifname = Some(held.ifname.clone()).filter(|ifname| !ifname.is_empty());
    Owner { container_id: held.container_id.clone(), ifname }
}

fn require_in_ranges(leases: &[Holding], sets: &[RangeSet]) -> Result<()> {
    let may_be_held =
        |ip: IpAddr| sets.iter().flat_map(RangeSet::ranges).any(|range| range.allocates(ip));
    let outside = leases.iter().filter(|lease| !may_be_held(lease.address));
    refuse(outside.map(|lease| not_in_ranges(lease.address, sets)).collect())
}

fn not_in_ranges(ip: IpAddr, sets: &[RangeSet]) -> Error {
    let sets: Vec<String> = sets.iter().map(RangeSet::to_string).collect();
    Error::new(Code::CONFLICT, format!("{ip} is not in the ranges of the network"))
        .with_details(format_args!("they are {}", sets.join(", ")))
}

/// The leases whose addresses are free here.
fn missing(leases: &[Holding], listed: Vec<Listed>) -> Result<Vec<Lease>> {
    let here: HashMap<IpAddr, Option<Owner>> =
        listed.into_iter().map(|listed| (listed.ip, listed.owner)).collect();
    let (mut missing, mut problems) = (vec![], vec![]);
    for lease in leases {
        let wanted = Lease { ip: lease.address, owner: owner(lease) };
        match here.get(&lease.address) {
            None => missing.push(wanted),
            Some(Some(owner)) if *owner == wanted.owner => (),
            Some(owner) => problems.push(conflict(&wanted, owner.as_ref())),
        }
    }
    refuse(problems).map(|()| missing)
}

fn conflict(wanted: &Lease, owner: Option<&Owner>) -> Error {
    let here = owner.map_or("something else", |owner| &owner.container_id);
    let Lease { ip, owner: Owner { container_id, .. } } = wanted;
    Error::new(Code::CONFLICT, format!("{ip} is held by {here} here, and by {container_id} there"))
}

/// Fails with the first problem, and the number of the others.
fn refuse(problems: Vec<Error>) -> Result<()> {
    let others = problems.len().saturating_sub(1);
    match problems.into_iter().next() {
        None => Ok(()),
        Some(first) if others == 0 => Err(first),
        Some(first) => Err(first.with_details(format_args!("{others} more are refused"))),
    }
}

fn write(store: &mut FileStore, lease: &Lease, place: &Place, rb: &mut Rollback<'_>) -> Result<()> {
    if !store.insert(lease)? {
        // A program without the lock was quicker.
        let dir = place.dir().display();
        return Err(Error::new(Code::CONFLICT, format!("{} appeared in {dir}", lease.ip)));
    }
    store.release_on_failure(lease.ip, rb);
    Ok(())
}
