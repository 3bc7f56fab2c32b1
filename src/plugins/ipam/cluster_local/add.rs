//! ADD: an address of a block that the network holds, by local files alone; else of one that the daemon
//! claims for it.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::announced::{announced, is_moving};
use super::client;
use super::held_store::HeldStore;
use super::need::{Lack, Wish};
use super::node;
use super::sticky;
use crate::cni::result::IpConfig;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::rollback::transaction;
use crate::steps::allocation::files::lease::{self, Content};
use crate::steps::allocation::{self, Need};

/// The pause before an ADD looks again for what the daemon has claimed.
const PAUSE: Duration = Duration::from_millis(50);
/// The code of blocks that the daemon has to confirm.
const UNCONFIRMED: Code = Code::TRY_AGAIN;

/// Reserves the addresses of an attachment: all of them or none.
pub fn addresses(wish: &Wish<'_>) -> Result<Vec<IpConfig>> {
    match of_held_blocks(wish)? {
        Some(ips) => Ok(ips),
        None => of_cluster(wish),
    }
}

/// The addresses, if the network's own blocks have them.
fn of_held_blocks(wish: &Wish<'_>) -> Result<Option<Vec<IpConfig>>> {
    let mut store = HeldStore::open(wish)?;
    if !store.is_ready() {
        return Ok(None);
    }
    match allocate(&mut store, wish) {
        Err(e) if e.code == Code::ADDRESS_UNAVAILABLE => Ok(None),
        allocated => allocated.map(Some),
    }
}

/// The addresses, once the daemon has claimed what the network lacks.
fn of_cluster(wish: &Wish<'_>) -> Result<Vec<IpConfig>> {
    let patience = wish.deadline.limit(wish.conf.patience);
    let end = Instant::now() + patience;
    loop {
        ask_for_lacks(wish, Deadline::after(patience))?;
        let mut store = HeldStore::open(wish)?;
        match require_usable(&store, wish).and_then(|()| allocate(&mut store, wish)) {
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
fn ask_for_lacks(wish: &Wish<'_>, deadline: Deadline) -> Result<()> {
    let lacks = lacks(wish)?;
    if lacks.is_empty() {
        client::standing(deadline)?; // a daemon that verifies is about to confirm the blocks
    }
    lacks.iter().try_for_each(|(set, lack)| client::ask_for(wish.network, *set, lack, deadline))
}

/// What the network lacks. Writes what is configured into the file of its blocks, where the daemon
/// reads it.
fn lacks(wish: &Wish<'_>) -> Result<Vec<(usize, Lack)>> {
    let store = HeldStore::open(wish)?;
    let terms = &wish.conf.terms;
    let own = announced(store.own.clone(), terms, &store.taken)?;
    if store.own.as_ref() != Some(&own) {
        own.write(wish.place.dir())?;
    }
    if is_moving(&own, terms) {
        return Ok(vec![(0, Lack::Any)]); // the daemon reads the file for it, and gives blocks back
    }
    let lack = |(number, _)| {
        let pool = own.pools.iter().position(|pool| *pool == terms.pools[number])?;
        Some((pool, wish.lack(number, &own, &store.taken)?))
    };
    Ok(wish.sets().filter_map(lack).collect())
}

/// Fails if the blocks are in another realm, if they may have become another node's while this one
/// was off, and if the address of a name has just become another's.
fn require_usable(store: &HeldStore<'_>, wish: &Wish<'_>) -> Result<()> {
    if let Some(own) = store.own.as_ref().filter(|own| is_moving(own, &wish.conf.terms)) {
        let msg = format!("the blocks of realm {:?} are being given back", own.realm.as_str());
        return Err(Error::new(Code::TRY_AGAIN, msg)
            .with_details("the network changes its realm once it has none: try again"));
    }
    if !node::is_confirmed(wish.data_dir) {
        let msg = "the daemon has not confirmed the blocks of this node in this boot";
        return Err(Error::new(UNCONFIRMED, msg)
            .with_details("the daemon confirms them once it reaches the cluster: see its log"));
    }
    if !store.has_names() {
        return Err(Error::new(Code::ADDRESS_UNAVAILABLE, "the address of the name has moved"));
    }
    Ok(())
}

fn allocate(store: &mut HeldStore<'_>, wish: &Wish<'_>) -> Result<Vec<IpConfig>> {
    let requested = store.wanted();
    require_no_other_holder(&requested, wish)?;
    let need = Need { sets: &wish.conf.sets, requested: &requested, owner: wish.owner };
    let allocated = transaction(|rb| allocation::allocate(&need, store, rb));
    allocated.inspect_err(|_| store.forget_what_is_gone())
}

/// Fails if another attachment has the address of the name.
pub fn require_no_other_holder(wanted: &[IpAddr], wish: &Wish<'_>) -> Result<()> {
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
