//! Claims the blocks of leases that come from another machine, before the leases are written.

use super::add::{Site, claim_for};
use super::conf::{self, Conf};
use super::held::Blocks;
use super::node;
#[cfg(feature = "cluster")]
use super::operator::import as cluster;
use super::room::Disjoint;
use crate::error::{Code, Error, Result};
use crate::plugin::Context;
use crate::plugin::leases::{Holding, Incoming};
use crate::steps::allocation::Lease;
use crate::steps::allocation::files::Place;
use crate::steps::allocation::files::lock::boot_id;
use crate::sys::clock::since_boot;

/// Claims a block for each lease; on a node of a cluster the daemon does.
pub fn claim(cx: &Context<'_>, conf: &Conf, incoming: &Incoming<'_>) -> Result<()> {
    if node::is_of_cluster() {
        return cluster::claim(cx, conf, incoming);
    }
    let data_dir = conf::directory(cx);
    let place = conf::place(cx);
    let site = Site { data_dir: &data_dir, network: &cx.config.name, deadline: cx.deadline() };
    let ips: Vec<_> = incoming.leases.iter().map(|lease| lease.address).collect();
    claim_for(&ips, &place, conf, &site)
}

/// What [`claim`] would do in a cluster, and what may make it fail. Changes nothing.
pub fn preview(cx: &Context<'_>, conf: &Conf, leases: &[Holding]) -> Result<Vec<String>> {
    if node::is_of_cluster() { cluster::preview(cx, conf, leases) } else { Ok(vec![]) }
}

/// Fails if one of the leases is in no block that the network allocates from: another node or network may
/// have claimed the block since [`claim`], or the daemon's confirmation has ended.
pub fn require_held(place: &Place, leases: &[Lease]) -> Result<()> {
    let own =
        Blocks::read(place.dir())?.filter(|own| own.is_confirmed(boot_id().trim(), since_boot()));
    let active = own.iter().flat_map(Blocks::active).map(|held| held.block);
    let active = Disjoint::new(active);
    let is_held = |lease: &&Lease| active.has(lease.ip);
    let Some(lost) = leases.iter().find(|lease| !is_held(lease)) else { return Ok(()) };
    let msg = format!("the network no longer allocates from a block with {}", lost.ip);
    Err(Error::new(Code::TRY_AGAIN, msg)
        .with_details("no lease was written: run the command again"))
}

/// This program was built without the daemon and its client of etcd.
#[cfg(not(feature = "cluster"))]
mod cluster {
    use super::*;

    pub fn claim(_: &Context<'_>, _: &Conf, _: &Incoming<'_>) -> Result<()> {
        Err(not_built())
    }

    pub fn preview(_: &Context<'_>, _: &Conf, _: &[Holding]) -> Result<Vec<String>> {
        Err(not_built())
    }

    fn not_built() -> Error {
        let msg = "import into a network of a cluster";
        Error::new(Code::CONFLICT, msg).with_details(format_args!(
            "by {} the addresses are the cluster's, and this program was built without the cargo feature `cluster`",
            node::CONFIGURATION
        ))
    }
}
