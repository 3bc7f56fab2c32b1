//! `"scope": "machine"`: the store of host-local, with a directory for each realm instead of one for
//! each network.
//!
//! A lease is named after its address, so the networks of a realm exclude each other's addresses.
//! The third line of each lease tells whose it is. The directories are
//! `<dataDir>/.machine/<realm>`: no network's name begins with a dot.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::add::require_no_other_holder;
use super::client::NAMES_FULL;
use super::conf::{self, DEFAULT_DATA_DIR};
use super::name::Name;
use super::need::Wish;
use super::pool::{Pool, candidates};
use super::realm_names::RealmNames;
use crate::cni::attachment::NetworkName;
use crate::cni::result::IpConfig;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result, warn};
use crate::plain_file;
use crate::plugin::Context;
use crate::rollback::{Rollback, transaction};
use crate::steps::allocation::files::{FileStore, Place, lease};
use crate::steps::allocation::ranges::RangeSet;
use crate::steps::allocation::{self, Need, Owner, Store, first_free, full_set};

/// The parent of the realms' directories, in that of the networks' directories.
pub const REALMS: &str = ".machine";

/// The network's leases in a realm.
pub fn place(cx: &Context<'_>, realm: &Name) -> Place {
    let parent = conf::directory(cx).join(REALMS);
    Place::shared(&parent, realm.as_str(), &cx.config.name, cx.deadline()).of_this_boot()
}

/// The network's leases in every realm that has a directory. DEL and GC look into all of them, since
/// the configuration may have named another realm at ADD.
pub fn places(cx: &Context<'_>) -> Result<Vec<Place>> {
    Ok(realms(&conf::directory(cx))?.iter().map(|realm| place(cx, realm)).collect())
}

/// The realms with a directory.
pub fn realms(data_dir: &Path) -> Result<Vec<Name>> {
    let parent = data_dir.join(REALMS);
    let paths = plain_file::entries(&parent).map_err(Error::at_path("open", &parent))?;
    let name = |path: &PathBuf| path.file_name()?.to_str()?.parse().ok();
    Ok(paths.iter().filter_map(name).collect())
}

/// The networks with leases in a realm of the default directory.
pub fn networks() -> Result<Vec<NetworkName>> {
    let data_dir = Path::new(DEFAULT_DATA_DIR);
    let mut found = BTreeSet::new();
    for realm in realms(data_dir)? {
        let name = NetworkName::parse(realm.as_str())?;
        let place = Place::new(&data_dir.join(REALMS), &name, Deadline::default()).of_this_boot();
        let leases = place.leases()?.unwrap_or_default();
        found.extend(leases.into_iter().filter_map(|lease| lease.owner.network));
    }
    found.iter().map(|name| NetworkName::parse(name)).collect()
}

/// Reserves the addresses of an attachment: all of them or none.
pub fn addresses(wish: &Wish<'_>) -> Result<Vec<IpConfig>> {
    let files = FileStore::create(wish.place, wish.owner)?;
    let dir = wish.place.dir();
    let found = RealmNames::read(dir)?;
    let mut store = RealmStore { files, names: found.clone(), wish };
    let requested = store.requested()?;
    require_no_other_holder(&requested, wish)?;
    let need = Need { sets: &wish.conf.sets, requested: &requested, owner: wish.owner };
    let allocated = transaction(|rb| {
        let ips = allocation::allocate(&need, &mut store, rb)?;
        if store.names == found { Ok(ips) } else { store.names.write(dir).map(|()| ips) }
    });
    allocated.inspect_err(|_| store.files.forget_what_is_gone())
}

/// A range set without a free address is a warning: kubelet evicts the pods of a node that is not
/// ready, and the next DEL frees an address.
pub fn status(place: &Place, conf: &conf::Conf) -> Result<()> {
    place.require_usable()?;
    for (set, pool) in conf.sets.iter().zip(&conf.terms.pools) {
        let all = candidates(pool.spans(), None);
        let is_full = first_free(all, &mut &*place)?.is_none();
        // A torn lease counts as free: the next ADD frees it.
        if is_full && !place.has_torn(|ip| set.contains(ip))? {
            warn(format_args!("cluster-local: {}", full_set(set)));
        }
    }
    Ok(())
}

/// The leases of a realm, of which only those addresses are given that the network may allocate.
struct RealmStore<'a> {
    files: FileStore,
    names: RealmNames,
    wish: &'a Wish<'a>,
}

impl RealmStore<'_> {
    /// The addresses to take where a set contains any: those requested, and those of the
    /// attachment's name.
    fn requested(&mut self) -> Result<Vec<IpAddr>> {
        let wish = self.wish;
        let mut requested = wish.conf.requested.clone();
        for (number, _) in wish.sets() {
            let pool = wish.conf.terms.names.get(number);
            let Some((pool, name)) = pool.zip(wish.name_in(number)) else { continue };
            let taken = self.files.taken()?;
            let ip = self.names.assign(wish.owner, name, pool, &taken);
            requested.push(ip.ok_or_else(|| {
                let msg = format!("no address is free for {name:?}");
                Error::new(Code::ADDRESS_UNAVAILABLE, msg).with_details(NAMES_FULL)
            })?);
        }
        Ok(requested)
    }

    fn pool(&self, set: &RangeSet) -> Option<&Pool> {
        let conf = self.wish.conf;
        conf.sets.iter().zip(&conf.terms.pools).find(|(of, _)| *of == set).map(|(_, pool)| pool)
    }

    /// What the file of the round robin is named after: the networks with a set have one turn.
    fn turn_of(&self, range_set: usize) -> String {
        let first = self.wish.conf.sets.get(range_set).and_then(|set| set.ranges().first());
        first.map(|range| range.start.to_string()).unwrap_or_default()
    }
}

impl<'a> Store for RealmStore<'a> {
    fn candidates<'s>(
        &self,
        set: &'s RangeSet,
        last: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> + use<'s, 'a> {
        candidates(self.pool(set).map(Pool::spans).unwrap_or_default(), last)
    }

    fn held_by(&self, owner: &Owner) -> Result<Vec<IpAddr>> {
        self.files.held_by(owner)
    }

    fn taken(&self) -> Result<HashSet<IpAddr>> {
        self.files.taken()
    }

    fn reserve(&mut self, ip: IpAddr, owner: &Owner) -> Result<bool> {
        let is_of_other = self.names.is_of_other(ip, owner, &self.wish.names);
        let may_have = self.wish.pool_of(ip).is_some() && !is_of_other;
        if may_have { self.files.reserve(ip, owner) } else { Ok(false) }
    }

    fn release_on_failure(&self, ip: IpAddr, rb: &mut Rollback<'_>) {
        self.files.release_on_failure(ip, rb);
    }

    fn release(&mut self, ip: IpAddr) -> Result<()> {
        self.files.release(ip)
    }

    fn last_reserved(&self, range_set: usize) -> Option<IpAddr> {
        lease::last_reserved(self.wish.place.dir(), self.turn_of(range_set))
    }

    fn set_last_reserved(&mut self, range_set: usize, ip: IpAddr) -> Result<()> {
        self.files.set_last_reserved_of(self.turn_of(range_set), ip)
    }
}
