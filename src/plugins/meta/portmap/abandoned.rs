//! Ports of containers that are gone. After a rollback the reference's DEL detaches our containers,
//! and leaves our elements. ADD closes such a port, and opens it for its own container.

use std::path::Path;

use super::publication::{Held, Publication};
use super::{flows, iptables, nft};
use crate::cni::valid::Holder;
use crate::error::{Result, warn};
use crate::net::namespaces;
use crate::plugin::Context;
use crate::steps::allocation::files::lease::{self, Content};
use crate::steps::{link_alias, veth};

/// The directory of host-local's leases unless a configuration sets another `dataDir`.
const LEASES: &str = "/var/lib/cni/networks";

/// Closes all ports of one attachment that has a port of `ports` and whose container is gone. False
/// if there is none.
pub fn close_one(cx: &Context<'_>, ports: &Publication<'_>) -> Result<bool> {
    let handles = cx.handles();
    let is_gone = |held: &Held| is_gone(cx, held);
    let closed = match nft::close_abandoned(handles, ports, &is_gone)? {
        None => iptables::close_abandoned(handles, ports, &is_gone)?,
        closed => closed,
    };
    let Some((held, released)) = closed else { return Ok(false) };
    warn(format_args!("portmap: closed the ports of {}: its container is gone", held.words));
    flows::forget_released(handles, released);
    Ok(true)
}

/// Whether the container is gone: no end of the host names it, and host-local has each of its
/// addresses back, or gave it to another container. An address that is back may be in no namespace:
/// the lease may be in another directory. Other IPAM plugins leave no such evidence.
fn is_gone(cx: &Context<'_>, held: &Held) -> Result<bool> {
    let links = cx.host()?.links_of_kind(veth::KIND)?;
    let ours = links.iter().filter(|link| link_alias::is_of_any(&link.alias));
    if ours.map(link_alias::stale).any(|link| is_same(&link.holder, &held.holder)) {
        return Ok(false);
    }
    let leases = Path::new(LEASES).join(&held.network);
    if held.addresses.is_empty() || held.network.is_empty() || !leases.is_dir() {
        return Ok(false);
    }
    let elsewhere = namespaces::addresses_elsewhere()?;
    for ip in &held.addresses {
        let is_free = match lease::read(&leases, *ip)? {
            None => !elsewhere.contains(ip),
            // A comment may have cut the holder's id.
            Some(Content::Owned(owner)) => {
                let (id, known) = (&owner.container_id, &held.holder.container_id);
                let may_be_cut = held.holder.is_cut && id.starts_with(known.as_str());
                id != known && !known.is_empty() && !may_be_cut
            }
            Some(_) => false,
        };
        if !is_free {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether two objects may be of one container. Comments cut long ids.
fn is_same(one: &Holder, other: &Holder) -> bool {
    let (id, of) = (one.container_id.as_str(), other.container_id.as_str());
    let is_part = (one.is_cut && of.starts_with(id)) || (other.is_cut && id.starts_with(of));
    id == of || is_part || (one.hash.is_some() && one.hash == other.hash)
}
