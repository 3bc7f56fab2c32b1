//! ADD: an address of a block that the network holds, by local files alone; else of one that it
//! claims, or that the daemon claims for it.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::alone::{Turn, adopted};
use super::claims::{Claims, Scope};
use super::client;
use super::conf::Conf;
use super::held::{Blocks, Confirmation};
use super::need::{Lack, Wish};
use super::node;
use super::sticky;
use super::store::BlockStore;
use crate::cni::attachment::NetworkName;
use crate::cni::result::IpConfig;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::rollback::transaction;
use crate::steps::allocation::Owner;
use crate::steps::allocation::files::Place;
use crate::steps::allocation::files::lease::{self, Content};
use crate::steps::allocation::{self, Need, Store as _};

/// The pause before an ADD looks again for what the daemon has claimed.
const PAUSE: Duration = Duration::from_millis(50);
/// The code of blocks that the daemon has to confirm.
const UNCONFIRMED: Code = Code::TRY_AGAIN;

/// Where the claims of an ADD are made.
pub struct Site<'a> {
    /// The parent of the networks' directories.
    pub data_dir: &'a Path,
    /// The network.
    pub network: &'a NetworkName,
    /// The operation's deadline.
    pub deadline: Deadline,
}

/// Reserves the addresses of an attachment: all of them or none.
pub fn addresses(wish: &Wish<'_>, site: &Site<'_>) -> Result<Vec<IpConfig>> {
    if let Some(ips) = of_held_blocks(wish)? {
        return Ok(ips);
    }
    if node::is_of_cluster() { of_cluster(wish, site) } else { of_this_machine(wish, site) }
}

/// The addresses, if the network's own blocks have them.
fn of_held_blocks(wish: &Wish<'_>) -> Result<Option<Vec<IpConfig>>> {
    let mut store = BlockStore::open(wish)?;
    // In a cluster it is the daemon that gives names back.
    if !store.is_ready() || !node::is_of_cluster() && store.has_forgettable()? {
        return Ok(None);
    }
    match allocate(&mut store, wish) {
        Err(e) if e.code == Code::ADDRESS_UNAVAILABLE => Ok(None),
        allocated => allocated.map(Some),
    }
}

/// The addresses, after the plugin has claimed what it lacks.
fn of_this_machine(wish: &Wish<'_>, site: &Site<'_>) -> Result<Vec<IpConfig>> {
    let claims = Claims::lock(&scope(wish.conf, site)?)?;
    let mut store = BlockStore::open(wish)?;
    let taken = store.taken()?;
    let found = store.own.take();
    let own = adopted(found.clone(), &wish.conf.terms, &taken)?;
    let mut turn = Turn { claims, own, taken, wish };
    turn.provide()?;
    if found.as_ref() != Some(&turn.own) {
        turn.own.write(wish.place.dir())?;
    }
    store.own = Some(turn.own);
    allocate(&mut store, wish) // `claims` are locked until here
}

/// Claims the blocks of these addresses. Fails if another network has one.
pub fn claim_for(ips: &[IpAddr], place: &Place, conf: &Conf, site: &Site<'_>) -> Result<()> {
    let claims = Claims::lock(&scope(conf, site)?)?;
    let owner = Owner::new("", "");
    let wish = Wish { place, conf, owner: &owner, names: vec![] };
    let mut store = BlockStore::open(&wish)?;
    let taken = store.taken()?;
    let own = adopted(store.own.take(), &conf.terms, &taken)?;
    let mut turn = Turn { claims, own, taken, wish: &wish };
    turn.provide_all(ips)?;
    turn.own.write(place.dir())
}

/// The claims of the network's realm.
fn scope<'a>(conf: &'a Conf, site: &Site<'a>) -> Result<Scope<'a>> {
    let Site { data_dir, network, deadline } = *site;
    let realm = conf.terms.realm.as_ref();
    let realm = realm.ok_or_else(|| Error::new(Code::BUG, "a configuration without a realm"))?;
    Ok(Scope { data_dir, network, realm, deadline })
}

/// The addresses, once the daemon has claimed what the network lacks.
fn of_cluster(wish: &Wish<'_>, site: &Site<'_>) -> Result<Vec<IpConfig>> {
    let patience = site.deadline.limit(wish.conf.patience);
    let end = Instant::now() + patience;
    loop {
        ask_for_lacks(wish, site.network, Deadline::after(patience))?;
        let mut store = BlockStore::open(wish)?;
        let tried = require_usable(&store).and_then(|()| allocate(&mut store, wish));
        match tried {
            // Another ADD was faster, or the daemon is about to confirm the blocks.
            Err(e) if may_pass(&e) && Instant::now() < end => (),
            tried => return tried,
        }
        drop(store);
        thread::sleep(PAUSE);
    }
}

fn may_pass(error: &Error) -> bool {
    error.code == Code::ADDRESS_UNAVAILABLE || error.code == UNCONFIRMED
}

/// Asks the daemon for all that the network lacks.
fn ask_for_lacks(wish: &Wish<'_>, network: &NetworkName, deadline: Deadline) -> Result<()> {
    let lacks = lacks(wish)?;
    if lacks.is_empty() {
        client::standing(deadline)?; // a daemon that verifies is about to confirm the blocks
        return Ok(());
    }
    lacks.iter().try_for_each(|(set, lack)| client::ask_for(network, *set, lack, deadline))
}

/// What the network lacks.
fn lacks(wish: &Wish<'_>) -> Result<Vec<(usize, Lack)>> {
    let (own, taken) = announced(wish)?;
    let lack = |(number, _)| Some((number, wish.lack(number, &own, &taken)?));
    Ok(wish.sets().filter_map(lack).collect())
}

/// The network's blocks, and its addresses with leases. Writes the network's pools into the file of its
/// blocks, where the daemon reads them.
pub fn announced(wish: &Wish<'_>) -> Result<(Blocks, HashSet<IpAddr>)> {
    let mut store = BlockStore::open(wish)?;
    let taken = store.taken()?;
    let found = store.own.take();
    let new = adopted(found.clone(), &wish.conf.terms, &taken)?;
    let own = match &found {
        // The daemon gives blocks back, and confirms them.
        Some(found) if found.realm == new.realm => {
            Blocks { pools: new.pools, names: new.names, spare: new.spare, ..found.clone() }
        }
        _ => new,
    };
    if found.as_ref() != Some(&own) {
        own.write(wish.place.dir())?;
    }
    Ok((own, taken))
}

/// Fails if the blocks may have become another node's while this one was off, and if the address of
/// a name has just become another's.
fn require_usable(store: &BlockStore<'_>) -> Result<()> {
    let msg = match store.confirmation() {
        Confirmation::Valid => {
            let moved =
                || Error::new(Code::ADDRESS_UNAVAILABLE, "the address of the name has moved");
            return if store.has_names() { Ok(()) } else { Err(moved()) };
        }
        Confirmation::OfEarlierBoot => {
            "the daemon has not confirmed the blocks of this node since it was started"
        }
        Confirmation::Ended => {
            "etcd has accepted no heartbeat of this node for so long that other nodes may soon reclaim its blocks"
        }
    };
    Err(Error::new(UNCONFIRMED, msg)
        .with_details("the daemon confirms them once it reaches the cluster: see its log"))
}

fn allocate(store: &mut BlockStore<'_>, wish: &Wish<'_>) -> Result<Vec<IpConfig>> {
    let requested = store.wanted();
    require_no_other_holder(&requested, wish)?;
    let need = Need { sets: &wish.conf.sets, requested: &requested, owner: wish.owner };
    let allocated = transaction(|rb| allocation::allocate(&need, store, rb));
    allocated.inspect_err(|_| store.forget_what_is_gone())
}

/// Fails if another attachment has the address of the name.
fn require_no_other_holder(wanted: &[IpAddr], wish: &Wish<'_>) -> Result<()> {
    let Some(name) = wish.names.first() else { return Ok(()) };
    for ip in wanted.iter().filter(|ip| !wish.conf.requested.contains(ip)) {
        match lease::read(wish.place.dir(), *ip)? {
            Some(Content::Owned(owner)) if owner != *wish.owner => {
                return Err(sticky::held(name, &owner.container_id, *ip));
            }
            _ => (), // free, the attachment's own, or no lease of ours
        }
    }
    Ok(())
}
