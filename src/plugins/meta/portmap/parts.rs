//! What the ports of an attachment consist of, and ports of containers that are gone. After a
//! rollback the reference's DEL detaches our containers, and leaves our elements. ADD closes such a
//! port, and opens it for its own container.

use std::path::Path;

use super::localnet::Localnet;
use super::publication::{Held, Publication};
use super::{flows, guarded, iptables, nft};
use crate::cni::result::AddResult;
use crate::cni::valid::Holder;
use crate::error::{Code, Result, warn};
use crate::net::namespaces;
use crate::plugin::Context;
use crate::plugin::part::{Part, Parts, Target};
use crate::rollback::{Rollback, transaction};
use crate::steps::allocation::files::lease::{self, Content};
use crate::steps::rules::Backend;
use crate::steps::{link_alias, veth};

/// The ports, and that 127.0.0.1 reaches them.
pub fn of<'p, 'a: 'p>(
    ports: &'p Publication<'a>,
    localnet: Option<&'p Localnet>,
    result: &'p AddResult,
) -> Parts<'p, 'a> {
    let mut parts = Parts::default();
    parts.push("ports", Open { ports, localnet, result });
    parts.extend("route_localnet", localnet);
    parts
}

/// The rules of the ports, of either backend, and the guard of 127.0.0.0/8 on the link to them.
struct Open<'p, 'a> {
    ports: &'p Publication<'a>,
    localnet: Option<&'p Localnet>,
    result: &'p AddResult,
}

impl<'a> Part<'a> for Open<'_, 'a> {
    fn what(&self) -> String {
        format!("publish {}", self.ports)
    }

    fn make(&self, on: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let (handles, ports, localnet) = (on.cx.handles(), self.ports, self.localnet);
        let backend = ports.conf.backend(handles)?;
        let key = ports.key;
        let undo = move || nft::delete(handles, key).map(drop);
        match backend {
            Backend::Nftables => {
                nft::open(handles, ports, localnet)?;
                rb.undo("close the ports", undo);
                Ok(())
            }
            Backend::Iptables => {
                match nft::verify_guard(handles, key, localnet) {
                    Err(error) if error.code == Code::CHECK_FAILED => {
                        nft::set_guard(handles, ports, localnet)?;
                        rb.undo("remove the guard of the ports", undo);
                    }
                    verified => verified?, // of an earlier ADD, which keeps it if this one fails
                }
                iptables::create(handles, ports, rb)
            }
        }
    }

    /// Flows of UDP may have begun in the meantime.
    fn make_again(&self, on: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        let opened = require_free(on.cx, self.ports)
            .and_then(|()| transaction(|rb| self.make(on, rb)))
            .inspect_err(|_| {
                // best effort: the error of the ports says more
                let links = on.cx.host().and_then(|host| guarded::links_in(host, self.result));
                let _ = links.and_then(|links| guarded::end_unguarded(on.cx.handles(), &links));
            });
        opened?;
        flows::forget_to_others(on.cx, &self.ports.forwards);
        Ok(())
    }

    /// Rules of iptables are accepted with any backend: the reference may have made them, or an ADD of
    /// ours with another configuration.
    fn compare(&self, on: Target<'a>) -> Result<()> {
        let (handles, ports, localnet) = (on.cx.handles(), self.ports, self.localnet);
        let Some(missing) = iptables::missing(handles, ports)? else {
            return nft::verify_guard(handles, ports.key, localnet);
        };
        match ports.conf.backend(handles)? {
            Backend::Iptables => Err(missing),
            Backend::Nftables => nft::verify(handles, ports, localnet),
        }
    }

    /// The guard of the link comes with the ports.
    fn is_base(&self) -> bool {
        true
    }
}

/// Refuses ports that a container has which is not gone. Where no port was closed, another ADD may
/// have closed it: the holder is refused when it is seen again.
pub fn require_free(cx: &Context<'_>, ports: &Publication<'_>) -> Result<()> {
    let handles = cx.handles();
    // also those taken by another backend or by the reference
    let refuse_taken = || {
        nft::refuse_taken(handles, ports)?;
        nft::refuse_taken_by_reference(handles, ports)?;
        iptables::refuse_taken(handles, ports)
    };
    let mut kept = None;
    while let Err(taken) = refuse_taken() {
        if taken.code != Code::CONFLICT || kept.as_ref() == Some(&taken.details()) {
            return Err(taken);
        }
        match close_one(cx, ports) {
            Ok(is_closed) => kept = (!is_closed).then_some(taken.details()),
            Err(error) => {
                let unknown = format_args!("whether its container is gone is unknown: {error}");
                return Err(taken.with_details(unknown));
            }
        }
    }
    Ok(())
}

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
