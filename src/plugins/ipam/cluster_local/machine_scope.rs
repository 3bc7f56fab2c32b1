//! `"scope": "machine"`: the store of host-local, with a directory for each realm instead of one for
//! each network.
//!
//! A lease is named after its address, so the networks of a realm exclude each other's addresses.
//! The third line of each lease tells whose it is. The directories are
//! `<dataDir>/.machine/<realm>`: no network's name begins with a dot.

use std::net::IpAddr;
use std::path::Path;

use super::add::{Wish, allocate};
use super::client::no_address_for;
use super::conf;
use super::name::Name;
use super::pool::candidates;
use super::realm_names::RealmNames;
use crate::cni::result::IpConfig;
use crate::error::Result;
use crate::plugin::Context;
use crate::steps::allocation::Policy;
use crate::steps::allocation::files::{FileStore, Place};
use crate::steps::allocation::ranges::RangeSet;

/// The parent of the realms' directories, in that of the networks' directories.
pub const REALMS: &str = ".machine";

/// The network's leases in a realm.
pub fn place(cx: &Context<'_>, realm: &Name) -> Place {
    let parent = conf::directory(cx).join(REALMS);
    Place::shared(&parent, realm.as_str(), &cx.config.name, cx.deadline()).of_this_boot()
}

/// The realms with a directory.
pub fn realms(data_dir: &Path) -> Result<Vec<Name>> {
    let names = conf::names_in(&data_dir.join(REALMS))?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// Reserves the addresses of an attachment: all of them or none.
pub fn addresses(wish: &Wish<'_>) -> Result<Vec<IpConfig>> {
    let mut files = FileStore::create(&wish.place, &wish.owner)?;
    let dir = wish.place.dir();
    let found = RealmNames::read(dir)?;
    let (mut names, mut wanted) = (found.clone(), wish.conf.allocation.requested.clone());
    for ((number, set), pool) in wish.sets().zip(&wish.conf.terms.names) {
        let Some(name) = wish.name_in(number, set) else { continue };
        let ip = names.assign(&wish.owner, name, pool, &files.taken()?);
        wanted.push(ip.ok_or_else(|| no_address_for(name))?);
    }
    let realm = Realm { names, wish };
    let write_names = || if realm.names == found { Ok(()) } else { realm.names.write(dir) };
    allocate(wish, &mut files, &realm, &wanted, write_names)
}

/// What a network may have of the addresses of a realm.
struct Realm<'a> {
    names: RealmNames,
    wish: &'a Wish<'a>,
}

impl<'w> Policy for Realm<'w> {
    fn candidates<'s>(
        &self,
        set: &'s RangeSet,
        last: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> + use<'s, 'w> {
        candidates(&self.wish.spans_of(set), last)
    }

    fn allows(&self, ip: IpAddr) -> bool {
        let Wish { owner, names, .. } = self.wish;
        self.wish.allocates(ip) && !self.names.is_of_other(ip, owner, names)
    }

    /// The networks with a set have one turn.
    fn turn_of(&self, range_set: usize) -> String {
        let first = self.wish.conf.allocation.sets[range_set].ranges().first();
        first.map(|range| range.start.to_string()).unwrap_or_default()
    }
}
