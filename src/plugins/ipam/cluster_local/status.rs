//! STATUS: whether an ADD would find an address.

use std::collections::HashSet;
use std::net::IpAddr;

use super::claims::{Claims, Scope};
use super::client;
use super::conf::Conf;
use super::held::Blocks;
use super::need::spans;
use super::node;
use super::pool::Pool;
use super::room::{candidates, unclaimed};
use crate::deadline::Deadline;
use crate::error::{Code, Result, warn};
use crate::steps::allocation::files::Place;
use crate::steps::allocation::files::lock::boot_id;
use crate::steps::allocation::full_set;
use crate::steps::allocation::{self, first_free};
use crate::sys::clock::since_boot;

/// Fails if no ADD can be served; prints a warning about what an operator should know.
pub fn of(place: &Place, conf: &Conf, scope: &Scope<'_>) -> Result<()> {
    place.require_usable()?;
    let own = Blocks::read(place.dir())?;
    let full = full_sets(place, conf, own.as_ref())?;
    if let Some(node) = own.as_ref().and_then(|own| own.differs.as_ref()) {
        warn(format_args!(
            "cluster-local: node {:?} has other ranges or another block size for this network",
            node.as_str()
        ));
    }
    if node::is_of_cluster() {
        let is_usable = full.is_empty() && own.as_ref().is_none_or(is_confirmed);
        return if is_usable { Ok(()) } else { ask_daemon(scope.deadline) };
    }
    warn(format_args!("cluster-local: {}", node::ALONE));
    let claims = Claims::look(scope)?;
    for number in full {
        if is_used_up(&conf.terms.pools[number], own.as_ref(), &claims) {
            warn(format_args!("cluster-local: {}", full_set(&conf.sets[number])));
        }
    }
    Ok(())
}

fn is_confirmed(own: &Blocks) -> bool {
    own.is_confirmed(boot_id().trim(), since_boot())
}

fn ask_daemon(deadline: Deadline) -> Result<()> {
    client::require_connected(deadline).map_err(|e| e.with_code(Code::NOT_AVAILABLE))
}

/// The numbers of the sets of which the network's own blocks have no free address. Takes no lock.
fn full_sets(place: &Place, conf: &Conf, own: Option<&Blocks>) -> Result<Vec<usize>> {
    let Some(own) = own else { return Ok((0..conf.sets.len()).collect()) };
    let mut full = vec![];
    for (number, pool) in conf.terms.pools.iter().enumerate() {
        let spans = spans(own, pool.spans().iter());
        let is_full = first_free(candidates(spans, None), &mut Looking { place })?.is_none();
        // A torn lease counts as free: the next ADD frees it.
        if is_full && !place.has_torn(|ip| conf.sets[number].contains(ip))? {
            full.push(number);
        }
    }
    Ok(full)
}

/// Whether no block of the pool can be claimed. What other networks could give up is not looked
/// for: STATUS is called every few seconds.
fn is_used_up(pool: &Pool, own: Option<&Blocks>, claims: &Claims) -> bool {
    let mut all = claims.of_others();
    all.extend(own.iter().flat_map(|own| &own.blocks).map(|held| held.block));
    unclaimed(pool, &all).is_none()
}

struct Looking<'a> {
    place: &'a Place,
}

impl allocation::Pool for Looking<'_> {
    fn attempt(&mut self, ip: IpAddr) -> Result<bool> {
        Ok(!self.place.is_taken(ip))
    }

    fn taken(&self) -> Result<HashSet<IpAddr>> {
        self.place.taken()
    }
}
