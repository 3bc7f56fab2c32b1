//! `portmap`: forwards ports of the host to ports of the container.
//! <https://www.cni.dev/plugins/current/meta/portmap/>
//!
//! It is chained after the plugin that created the container's interface. Only packets addressed to
//! the host itself are redirected. The default backend is nftables over netlink; `backend:
//! "iptables"` uses the chains and comments of the reference.

mod abandoned;
mod condition;
mod conf;
mod flows;
mod guarded;
mod iptables;
mod listener;
mod localnet;
mod mapping;
mod nft;
mod of_reference;
mod publication;
mod rules;
mod services;

pub use self::conf::Conf;

use self::localnet::Localnet;
pub use self::nft::LAYOUT;
use self::publication::Publication;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Code, ErrorList, Result, warn};
use crate::plugin::{Attachment, Context, Detachment, Handles, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
use crate::steps::backend::Backend;
use crate::steps::prev_result;

/// The `portmap` plugin.
pub struct Portmap;

impl Plugin for Portmap {
    const NAME: &'static str = "portmap";
    const KIND: Kind = Kind::Meta;
    const ABOUT: &'static str = "ports of the host lead to ports of the container";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let handles = cx.handles();
        let result = prev_result::require_chained(cx, "must be called as chained plugin")?;
        let mut ports = Publication::plan(conf, &result, at)?;
        if ports.is_empty() {
            return Ok(result);
        }
        ports.known = services::own_addresses(cx)?;
        require_free(cx, &ports)?;
        let localnet = match guarded::plan(cx, &ports, &result) {
            Err(error) if error.code == Code::CHECK_FAILED => {
                warn(format_args!("portmap: no port answers at 127.0.0.1: {error}"));
                None
            }
            planned => planned?,
        };
        transaction(|rb| {
            open(handles, &ports, localnet.as_ref(), rb)?;
            localnet.as_ref().map_or(Ok(()), Localnet::switch_on)?;
            flows::forget_earlier(cx, &ports.forwards);
            Ok(())
        })?;
        listener::warn_of_each(&ports);
        Ok(result)
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let handles = cx.handles();
        let result = prev_result::require(cx)?;
        let ports = Publication::plan(conf, &result, at)?;
        if ports.is_empty() {
            return Ok(());
        }
        let mut found = ErrorList::default();
        found.push(verify_spared(cx, &ports));
        let localnet = found.push(guarded::plan(cx, &ports, &result)).flatten();
        found.push(verify(handles, &ports, localnet.as_ref()));
        found.push(localnet.as_ref().map_or(Ok(()), Localnet::verify));
        found.finish()
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        let handles = cx.handles();
        let mut errors = ErrorList::default();
        let elements = errors.push(nft::delete(handles, &at.key));
        if elements.as_ref().is_some_and(Vec::is_empty) {
            errors.push(guarded::end_unguarded_of(cx, at));
        }
        let mut released = nft::closed(&elements.unwrap_or_default());
        errors.push(of_reference::delete(handles, &at.key));
        released.extend(errors.push(iptables::delete(handles, &at.key)).unwrap_or_default());
        flows::forget_released(handles, released);
        errors.finish()
    }

    /// The runtime names the containers with published ports only at ADD. A backend that cannot
    /// work is a warning and not an error: otherwise a runtime would start no container at all, for
    /// a feature that few of them need.
    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        if let Err(error) = require_backend(cx.handles(), conf) {
            warn(format_args!("portmap: no port can be published: {error}"));
        }
        for link in services::links(cx).unwrap_or_default() {
            let name = link.name;
            warn(format_args!("portmap: addresses of services on {name:?} win over host ports"));
        }
        Ok(())
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        let handles = cx.handles();
        let mut errors = ErrorList::default();
        let by_nft = nft::collect_garbage(handles, &cx.config.name, valid);
        let mut released = errors.push(by_nft).unwrap_or_default();
        errors.push(guarded::collect_garbage(cx, valid));
        let by_iptables = iptables::collect_garbage(handles, &cx.config.name, valid);
        released.extend(errors.push(by_iptables).unwrap_or_default());
        flows::forget_released(handles, released);
        errors.finish()
    }

    /// Publishes the ports again, and lets 127.0.0.1 reach them.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let result = prev_result::require(cx)?;
        let mut ports = Publication::plan(conf, &result, at)?;
        if ports.is_empty() {
            return Ok(());
        }
        ports.known = services::own_addresses(cx)?;
        let handles = cx.handles();
        let planned = guarded::plan(cx, &ports, &result);
        let localnet = planned.as_ref().ok().and_then(Option::as_ref);
        let verified = verify(handles, &ports, localnet);
        let what = format_args!("publish {ports}");
        repairs.make_unless(verified, what, || {
            reopen(cx, &ports, localnet).inspect_err(|_| {
                // best effort: the error of the ports says more
                let links = cx.host().and_then(|host| guarded::links_in(host, &result));
                let _ = links.and_then(|links| guarded::end_unguarded(handles, &links));
            })
        })?;
        match localnet {
            Some(localnet) => localnet.repair(repairs),
            None => {
                guarded::note_of_missing(cx.host()?, &ports, &result, repairs)?;
                planned.map(drop)
            }
        }
    }
}

/// Verifies the rules of the ports. Rules of iptables are accepted with any backend: the reference
/// may have made them, or an ADD of ours with another configuration.
fn verify(handles: &Handles, ports: &Publication<'_>, localnet: Option<&Localnet>) -> Result<()> {
    let Some(missing) = iptables::missing(handles, ports)? else {
        return nft::verify_guard(handles, ports.key, localnet);
    };
    match ports.conf.backend(handles)? {
        Backend::Iptables => Err(missing),
        Backend::Nftables => nft::verify(handles, ports, localnet),
    }
}

/// Verifies that no port takes the packets of services, where the host has their addresses now.
fn verify_spared(cx: &Context<'_>, ports: &Publication<'_>) -> Result<()> {
    match services::links(cx)?.first() {
        Some(link) => nft::verify_spared(cx.handles(), ports, &link.name),
        None => Ok(()),
    }
}

fn require_backend(handles: &Handles, conf: &Conf) -> Result<()> {
    match conf.backend(handles)? {
        Backend::Nftables => nft::require(handles),
        Backend::Iptables => iptables::require(handles),
    }
}

/// Refuses ports that a container has which is not gone. Where no port was closed, another ADD may
/// have closed it: the holder is refused when it is seen again.
fn require_free(cx: &Context<'_>, ports: &Publication<'_>) -> Result<()> {
    let mut kept = None;
    while let Err(taken) = refuse_taken(cx.handles(), ports) {
        if taken.code != Code::CONFLICT || kept.as_ref() == Some(&taken.details()) {
            return Err(taken);
        }
        match abandoned::close_one(cx, ports) {
            Ok(is_closed) => kept = (!is_closed).then_some(taken.details()),
            Err(error) => {
                let unknown = format_args!("whether its container is gone is unknown: {error}");
                return Err(taken.with_details(unknown));
            }
        }
    }
    Ok(())
}

/// Refuses ports that are taken, also those taken by another backend or by the reference.
fn refuse_taken(handles: &Handles, ports: &Publication<'_>) -> Result<()> {
    nft::refuse_taken(handles, ports)?;
    of_reference::refuse_taken(handles, ports)?;
    iptables::refuse_taken(handles, ports)
}

/// Opens the ports with the configured backend, and guards 127.0.0.0/8 on the link to them.
fn open<'a>(
    handles: &'a Handles,
    ports: &Publication<'a>,
    localnet: Option<&Localnet>,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    let backend = ports.conf.backend(handles)?;
    // An earlier ADD of the attachment keeps its guard if this one fails.
    let is_guarded = backend == Backend::Iptables
        && match nft::verify_guard(handles, ports.key, localnet) {
            Err(error) if error.code != Code::CHECK_FAILED => return Err(error),
            verified => verified.is_ok(),
        };
    if !is_guarded {
        nft::create(handles, ports, backend, localnet)?;
        let key = ports.key;
        rb.undo("close the ports", move || nft::delete(handles, key).map(drop));
    }
    match backend {
        Backend::Nftables => Ok(()),
        Backend::Iptables => iptables::create(handles, ports, rb),
    }
}

/// Opens ports that were closed. Flows of UDP may have begun in the meantime.
fn reopen(cx: &Context<'_>, ports: &Publication<'_>, localnet: Option<&Localnet>) -> Result<()> {
    let handles = cx.handles();
    require_free(cx, ports)?;
    transaction(|rb| open(handles, ports, localnet, rb))?;
    flows::forget_to_others(cx, &ports.forwards);
    Ok(())
}
