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
use crate::plugin::Context;
use crate::plugin::leases::{Holding, Holdings, Incoming, LeaseImporter, LeaseStore, RangeUse};
use crate::rollback::transaction;
use crate::steps::allocation::ranges::{Range, RangeSet};
use crate::steps::allocation::{Lease, Owner};

/// What a plugin with lease files says of them, which makes it a [`LeaseStore`].
pub trait FileLeases: Sync {
    /// The place of each part of the configuration, with its sets; fails if the configuration is invalid.
    fn configured(&self, cx: &Context<'_>) -> Result<Vec<(Place, Vec<RangeSet>)>>;

    /// Every place where the network may have leases, whatever the configuration is.
    fn places(&self, cx: &Context<'_>) -> Vec<Result<Place>>;

    /// The networks with leases in the usual directory.
    fn networks(&self) -> Result<Vec<NetworkName>>;

    /// See [`LeaseStore::shares_place_of`].
    fn shares_place_of(&self) -> Option<&'static str> {
        None
    }

    /// Called when leases are written to a place, under its lock.
    fn claim(&self, _: &Context<'_>, _: &Place, _: &[Holding]) -> Result<()> {
        Ok(())
    }
}

impl<F: FileLeases> LeaseStore for F {
    fn holdings(&self, cx: &Context<'_>) -> Result<Holdings> {
        let mut places = self.configured(cx).unwrap_or_default(); // leases are listed whatever the ranges are
        for place in self.places(cx) {
            let place = place?;
            if places.iter().all(|(configured, _)| configured.dir() != place.dir()) {
                places.push((place, vec![]));
            }
        }
        let mut all = Holdings::default();
        for (place, sets) in places {
            let Holdings { held, ranges } = holdings(&place, &sets)?;
            all.held.extend(held);
            all.ranges.extend(ranges);
        }
        Ok(all)
    }

    fn networks(&self) -> Result<Vec<NetworkName>> {
        FileLeases::networks(self)
    }

    fn shares_place_of(&self) -> Option<&'static str> {
        FileLeases::shares_place_of(self)
    }

    fn free(&self, cx: &Context<'_>, held: &Holding) -> Result<bool> {
        for place in self.places(cx) {
            if free(&place?, held)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn importer(&self) -> Option<&dyn LeaseImporter> {
        Some(self)
    }
}

impl<F: FileLeases> LeaseImporter for F {
    fn preview(&self, cx: &Context<'_>, leases: &[Holding]) -> Result<usize> {
        let (mut places, mut rest, mut count) = (self.configured(cx)?, leases.to_vec(), 0);
        while let Some((place, sets)) = places.pop() {
            let own = own(&mut rest, &places);
            require_in_ranges(&own, &sets)?;
            count += missing(&own, &place)?.len();
        }
        Ok(count)
    }

    fn import(
        &self,
        cx: &Context<'_>,
        incoming: &Incoming<'_>,
        then: &mut dyn FnMut() -> Result<()>,
    ) -> Result<usize> {
        import(self, cx, self.configured(cx)?, incoming, then)
    }
}

/// Writes the missing leases, each to the place whose sets have it, and calls `then`: all or none.
fn import<F: FileLeases>(
    of: &F,
    cx: &Context<'_>,
    mut places: Vec<(Place, Vec<RangeSet>)>,
    incoming: &Incoming<'_>,
    then: &mut dyn FnMut() -> Result<()>,
) -> Result<usize> {
    let Some((place, sets)) = places.pop() else { return then().map(|()| 0) };
    let (mut rest, tell) = (incoming.leases.to_vec(), incoming.tell);
    let own = own(&mut rest, &places);
    require_in_ranges(&own, &sets)?;
    let mut others = 0;
    let mut claim_and_go_on = || {
        of.claim(cx, &place, &own)?;
        let incoming = Incoming { leases: &rest, tell };
        others = import(of, cx, std::mem::take(&mut places), &incoming, then)?;
        Ok(())
    };
    let written = write(&place, &Incoming { leases: &own, tell }, &mut claim_and_go_on)?;
    Ok(written + others)
}

/// Takes the leases that are in the sets of none of the others.
fn own(leases: &mut Vec<Holding>, others: &[(Place, Vec<RangeSet>)]) -> Vec<Holding> {
    let sets = || others.iter().flat_map(|(_, sets)| sets);
    leases.extract_if(.., |lease| !sets().any(|set| set.contains(lease.address))).collect()
}

/// The leases at a place, and how many addresses of each range they take.
fn holdings(place: &Place, sets: &[RangeSet]) -> Result<Holdings> {
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
fn free(place: &Place, held: &Holding) -> Result<bool> {
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
