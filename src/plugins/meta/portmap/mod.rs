//! `portmap`: forwards ports of the host to ports of the container.
//! <https://www.cni.dev/plugins/current/meta/portmap/>
//!
//! It is chained after the plugin that created the container's interface. Only packets addressed to
//! the host itself are redirected. The default backend is nftables over netlink; `backend:
//! "iptables"` uses the chains and comments of the reference.

mod condition;
mod conf;
mod flows;
mod guarded;
mod iptables;
mod localnet;
mod mapping;
mod nft;
mod parts;
mod publication;
mod rules;
mod table;

use self::publication::Publication;
pub use self::publication::SERVICE_LINKS;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Code, ErrorList, Result, warn};
use crate::plugin::part::Target;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::rules::{Backend, NAT};
use crate::steps::{nft_owner, prev_result};

pub use self::conf::Conf;

pub use self::table::LAYOUT;

/// The `portmap` plugin.
pub struct Portmap;

impl Plugin for Portmap {
    const NAME: &'static str = "portmap";
    const KIND: Kind = Kind::Meta;
    const ABOUT: &'static str = "ports of the host lead to ports of the container";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let result = prev_result::require_chained(cx, "must be called as chained plugin")?;
        let mut ports = Publication::plan(conf, &result, at)?;
        if ports.is_empty() {
            return Ok(result);
        }
        ports.known = publication::own_addresses(cx)?;
        parts::require_free(cx, &ports)?;
        let localnet = match guarded::plan(cx, &ports, &result) {
            Err(error) if error.code == Code::CHECK_FAILED => {
                warn(format_args!("portmap: no port answers at 127.0.0.1: {error}"));
                None
            }
            planned => planned?,
        };
        transaction(|rb| {
            parts::of(&ports, localnet.as_ref(), &result).make(Target { cx, at }, rb)?;
            flows::forget_earlier(cx, &ports.forwards);
            Ok(())
        })?;
        publication::warn_of_listeners(&ports);
        Ok(result)
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let result = prev_result::require(cx)?;
        let ports = Publication::plan(conf, &result, at)?;
        if ports.is_empty() {
            return Ok(());
        }
        let mut found = ErrorList::default();
        // No port takes the packets of services, where the host has their addresses now.
        if let Some(link) = found.push(publication::service_links(cx)).unwrap_or_default().first() {
            found.push(nft::verify_spared(cx.handles(), &ports, &link.name));
        }
        let localnet = found.push(guarded::plan(cx, &ports, &result)).flatten();
        let parts = parts::of(&ports, localnet.as_ref(), &result);
        found.push(parts.compare(Target { cx, at }));
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
        errors.push(nft::delete_of_reference(handles, &at.key));
        released.extend(errors.push(iptables::delete(handles, &at.key)).unwrap_or_default());
        flows::forget_released(handles, released);
        errors.finish()
    }

    /// The runtime names the containers with published ports only at ADD. A backend that cannot
    /// work is a warning and not an error: otherwise a runtime would start no container at all, for
    /// a feature that few of them need.
    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let handles = cx.handles();
        let ready = conf.backend(handles).and_then(|backend| match backend {
            Backend::Nftables => LAYOUT.on(handles.require_nft()?).require(),
            Backend::Iptables => handles.iptables().require_table(NAT),
        });
        if let Err(error) = ready {
            warn(format_args!("portmap: no port can be published: {error}"));
        }
        for link in publication::service_links(cx).unwrap_or_default() {
            let name = link.name;
            warn(format_args!("portmap: addresses of services on {name:?} win over host ports"));
        }
        Ok(())
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        let handles = cx.handles();
        let mut errors = ErrorList::default();
        let network = &cx.config.name;
        let by_nft = nft_owner::release_invalid(handles, &LAYOUT, network, valid);
        let mut released = nft::closed(&errors.push(by_nft).unwrap_or_default());
        errors.push(guarded::collect_garbage(cx, valid));
        let by_iptables = iptables::collect_garbage(handles, network, valid);
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
        ports.known = publication::own_addresses(cx)?;
        let planned = guarded::plan(cx, &ports, &result);
        let localnet = planned.as_ref().ok().and_then(Option::as_ref);
        parts::of(&ports, localnet, &result).repair(Target { cx, at }, repairs)?;
        if localnet.is_none() {
            guarded::note_of_missing(cx.host()?, &ports, &result, repairs)?;
        }
        planned.map(drop)
    }
}
