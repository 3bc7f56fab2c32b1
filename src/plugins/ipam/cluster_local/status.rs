//! STATUS: whether an ADD would find an address.

use std::path::Path;

use super::client;
use super::conf::Conf;
use super::held::Blocks;
use super::need::free;
use super::node;
use crate::deadline::Deadline;
use crate::error::{Code, Result, warn};
use crate::steps::allocation::files::Place;

/// Fails if no ADD can be served. Takes no lock.
pub fn of(data_dir: &Path, place: &Place, conf: &Conf, deadline: Deadline) -> Result<()> {
    place.require_usable()?;
    let own = Blocks::read(place.dir())?;
    let full = full_sets(place, conf, own.as_ref())?;
    if full.is_empty() && node::is_confirmed(data_dir) {
        return Ok(());
    }
    client::status(deadline).map_err(|e| e.with_code(Code::NOT_AVAILABLE))?;
    let has_blocks = own.is_some_and(|own| !own.blocks.is_empty());
    for number in full.into_iter().filter(|_| has_blocks) {
        warn(format_args!(
            "cluster-local: this node has no free address of {}; the daemon claims more, if the cluster has any",
            conf.sets[number]
        ));
    }
    Ok(())
}

/// The numbers of the sets of which the network's own blocks have no free address.
fn full_sets(place: &Place, conf: &Conf, own: Option<&Blocks>) -> Result<Vec<usize>> {
    let Some(own) = own else { return Ok((0..conf.sets.len()).collect()) };
    let taken = place.taken()?;
    let mut full = vec![];
    for (number, pool) in conf.terms.pools.iter().enumerate() {
        let is_full = free(own, pool.spans(), &taken, None).is_empty();
        // A torn lease counts as free: the next ADD frees it.
        if is_full && !place.has_torn(|ip| own.has(ip) && pool.allocates(ip))? {
            full.push(number);
        }
    }
    Ok(full)
}
