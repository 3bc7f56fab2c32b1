//! Ports of containers that are gone. After a rollback the reference's DEL detaches our containers,
//! and leaves our elements; a container that ended without DEL leaves its rules as well. ADD closes
//! such a port, and opens it for its own container.

use std::net::IpAddr;
use std::path::Path;

use super::publication::{Held, Publication};
use super::{iptables, nft};
use crate::cni::valid::Holder;
use crate::error::{Result, warn};
use crate::net::namespaces;
use crate::net::nft::owned::Search;
use crate::plugin::Context;
use crate::steps::allocation::files::lease::{self, Content};
use crate::steps::{link_alias, nft_owner, veth};

/// The directory of host-local's leases unless a configuration sets another `dataDir`.
const LEASES: &str = "/var/lib/cni/networks";

/// Closes all ports of one attachment that has a port of `ports` and whose container is gone. False
/// if there is none.
pub fn close_one(cx: &Context<'_>, ports: &Publication<'_>) -> Result<bool> {
    let handles = cx.handles();
    if let Some((owner, held)) = nft::first_holder(handles, ports)?
        && is_gone(cx, &held, ports)?
    {
        let closed = nft_owner::release(handles, &nft::LAYOUT, &owner, Search::Comments)?;
        tell(&held);
        return Ok(!closed.is_empty());
    }
    if let Some((chain, held)) = iptables::first_holder(handles, ports)?
        && is_gone(cx, &held, ports)?
    {
        let closed = iptables::delete_chain(handles, &chain)?;
        tell(&held);
        return Ok(!closed.is_empty());
    }
    Ok(false)
}

fn tell(held: &Held) {
    warn(format_args!("portmap: closed the ports of {}: its container is gone", held.words));
}

/// Whether neither a host's end nor a namespace of the container exists. A namespace is found by the
/// container's address: unless another container has it by now, the one of `ports` or the one that
/// has its lease.
fn is_gone(cx: &Context<'_>, held: &Held, ports: &Publication<'_>) -> Result<bool> {
    let links = cx.host()?.links_of_kind(veth::KIND)?;
    let ours = links.iter().filter(|link| link_alias::is_of_any(&link.alias));
    if ours.map(link_alias::stale).any(|link| is_same(&link.holder, &held.holder)) {
        return Ok(false);
    }
    let elsewhere = namespaces::addresses_elsewhere()?;
    let is_own = |ip: &IpAddr| ports.forwards.iter().any(|forward| forward.to.addr() == *ip);
    let is_free =
        |ip: &IpAddr| !elsewhere.contains(ip) || is_own(ip) || is_leased_to_another(held, *ip);
    Ok(!held.addresses.is_empty() && held.addresses.iter().all(is_free))
}

/// Whether two objects may be of one container. Comments cut long ids.
fn is_same(one: &Holder, other: &Holder) -> bool {
    let (id, of) = (one.container_id.as_str(), other.container_id.as_str());
    let is_part = (one.is_cut && of.starts_with(id)) || (other.is_cut && id.starts_with(of));
    id == of || is_part || (one.hash.is_some() && one.hash == other.hash)
}

/// Whether host-local has given the address to another container since.
fn is_leased_to_another(held: &Held, ip: IpAddr) -> bool {
    let id = held.holder.container_id.as_str();
    if held.network.is_empty() || id.is_empty() {
        return false;
    }
    match lease::read(&Path::new(LEASES).join(&held.network), ip) {
        Ok(Some(Content::Owned(owner))) => !owner.container_id.starts_with(id),
        _ => false,
    }
}
