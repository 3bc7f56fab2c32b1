//! The leases for operators: listed, freed one by one, and taken over from another machine.
//! A list is read without the network's lock, for display: it may be stale at once.

use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;

use super::lease::{self, Content};
use super::{FileStore, Place};
use crate::cni::attachment::NetworkName;
use crate::error::{Code, Error, Result};
use crate::plain_file;
use crate::plugin::leases::{Holding, Holdings, Incoming, RangeUse};
use crate::rollback::transaction;
use crate::steps::allocation::ranges::{Range, RangeSet};
use crate::steps::allocation::{Lease, Owner, Store as _};

/// The leases at a place, and how many addresses of each range they take.
pub fn holdings(place: &Place, sets: &[RangeSet]) -> Result<Holdings> {
    let listed = place.list()?;
    let range_use = |range: &Range| {
        let held = listed.iter().filter(|listed| range.allocates(listed.ip)).count() as u64;
        RangeUse { range: range.to_string(), held, size: range.size() }
    };
    let ranges = sets.iter().flat_map(RangeSet::ranges).map(range_use).collect();
    // An address of another network counts in the ranges, and is not listed.
    let is_listed =
        |listed: &Listed| listed.owner.as_ref().is_none_or(|of| place.is_of_network(of));
    let holding = |Listed { ip, owner, since }: Listed| {
        let (container_id, ifname) =
            owner.map(|owner| (owner.container_id, owner.ifname)).unwrap_or_default();
        let (ifname, netns_path) = (ifname.unwrap_or_default(), String::new());
        Holding { address: ip, container_id, ifname, since, netns_path }
    };
    let held = listed.into_iter().filter(is_listed).map(holding).collect();
    Ok(Holdings { held, ranges })
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
    let Some(mut store) = FileStore::open(place, &place.owner_of(held))? else { return Ok(false) };
    match lease::read(place.dir(), held.address)? {
        Some(Content::Owned(owner)) if place.is_of_network(&owner) && is_same(&owner, held) => {
            store.release(held.address).map(|()| true)
        }
        _ => Ok(false),
    }
}

fn is_same(owner: &Owner, held: &Holding) -> bool {
    let ifname = owner.ifname.as_deref().unwrap_or_default();
    (owner.container_id.as_str(), ifname) == (held.container_id.as_str(), held.ifname.as_str())
}

/// How many of the leases are missing. Fails if one is outside of the sets, or its address has
/// another owner.
pub fn preview(place: &Place, sets: &[RangeSet], leases: &[Holding]) -> Result<usize> {
    require_in_ranges(leases, sets)?;
    Ok(missing(leases, place)?.len())
}

/// Writes the missing leases, which have to be in the sets, as [`write`] does.
pub fn import(
    place: &Place,
    sets: &[RangeSet],
    incoming: &Incoming<'_>,
    then: &mut dyn FnMut() -> Result<()>,
) -> Result<usize> {
    require_in_ranges(incoming.leases, sets)?;
    write(place, incoming, then)
}

/// Writes the missing leases and calls `then`, under the lock of ADD; returns how many were missing.
/// Any failure leaves the store as it was.
pub fn write(
    place: &Place,
    incoming: &Incoming<'_>,
    then: &mut dyn FnMut() -> Result<()>,
) -> Result<usize> {
    let mut store = FileStore::create_whole(place)?;
    store.require_all_read()?;
    let missing = missing(incoming.leases, place)?;
    let written = transaction(|rb| {
        for (number, lease) in missing.iter().enumerate() {
            (incoming.tell)(number, missing.len());
            if !store.insert(lease)? {
                // A program without the lock was quicker.
                let dir = place.dir().display();
                return Err(Error::new(Code::CONFLICT, format!("{} appeared in {dir}", lease.ip)));
            }
            store.release_on_failure(lease.ip, rb);
        }
        then()
    });
    written.inspect_err(|_| store.forget_what_is_gone())?;
    Ok(missing.len())
}

fn require_in_ranges(leases: &[Holding], sets: &[RangeSet]) -> Result<()> {
    let mut problems = vec![];
    for ip in leases.iter().map(|lease| lease.address) {
        if !sets.iter().flat_map(RangeSet::ranges).any(|range| range.allocates(ip)) {
            let sets: Vec<String> = sets.iter().map(RangeSet::to_string).collect();
            let msg = format!("{ip} is not in the ranges of the network");
            problems.push(
                Error::new(Code::CONFLICT, msg)
                    .with_details(format_args!("they are {}", sets.join(", "))),
            );
        }
    }
    refuse(problems)
}

/// The leases whose addresses are free here.
fn missing(leases: &[Holding], place: &Place) -> Result<Vec<Lease>> {
    let here: HashMap<IpAddr, Option<Owner>> =
        place.list()?.into_iter().map(|listed| (listed.ip, listed.owner)).collect();
    let (mut missing, mut problems) = (vec![], vec![]);
    for lease in leases {
        let wanted = Lease { ip: lease.address, owner: place.owner_of(lease) };
        match here.get(&lease.address) {
            None => missing.push(wanted),
            Some(Some(owner)) if *owner == wanted.owner => (),
            Some(owner) => {
                let here = owner.as_ref().map_or("something else", |owner| &owner.container_id);
                let Lease { ip, owner: Owner { container_id: there, .. } } = wanted;
                let msg = format!("{ip} is held by {here} here, and by {there} there");
                problems.push(Error::new(Code::CONFLICT, msg));
            }
        }
    }
    refuse(problems).map(|()| missing)
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

/// A file that takes an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The address.
    pub ip: IpAddr,
    /// The owner; None if the content is of another program.
    pub owner: Option<Owner>,
    /// When the file was written.
    pub since: Option<SystemTime>,
}

impl Place {
    fn owner_of(&self, held: &Holding) -> Owner {
        let ifname = Some(held.ifname.clone()).filter(|ifname| !ifname.is_empty());
        let network = self.shared_by.clone();
        Owner { container_id: held.container_id.clone(), ifname, network }
    }

    /// Every address that a file takes, sorted; empty without a directory. A torn file takes none.
    pub fn list(&self) -> Result<Vec<Listed>> {
        if self.is_of_earlier_boot() {
            return Ok(vec![]);
        }
        let mut ips = match lease::addresses(self.dir()) {
            Err(e) if plain_file::is_nowhere(&e) => vec![],
            ips => ips.map_err(Error::at_path("open", self.dir()))?,
        };
        ips.sort_unstable();
        let mut all = vec![];
        for ip in ips {
            let owner = match lease::read(self.dir(), ip)? {
                None | Some(Content::Torn) => continue,
                Some(Content::Owned(owner)) => Some(owner),
                Some(Content::Foreign) => None,
            };
            let metadata = fs::symlink_metadata(lease::path(self.dir(), ip)).ok();
            let since = metadata.and_then(|metadata| metadata.modified().ok());
            all.push(Listed { ip, owner, since });
        }
        Ok(all)
    }
}
