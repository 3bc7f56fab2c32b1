//! What the ports of an attachment consist of.

use super::localnet::Localnet;
use super::publication::Publication;
use super::{abandoned, flows, guarded, iptables, nft, of_reference};
use crate::cni::result::AddResult;
use crate::error::{Code, Result};
use crate::plugin::Context;
use crate::plugin::part::{Part, Parts, Target};
use crate::rollback::{Rollback, transaction};
use crate::steps::rules::Backend;

/// The ports, and that 127.0.0.1 reaches them.
pub fn of<'p, 'a: 'p>(
    ports: &'p Publication<'a>,
    localnet: Option<&'p Localnet>,
    result: &'p AddResult,
) -> Parts<'p, 'a> {
    let mut parts = Parts::default();
    parts.push(Open { ports, localnet, result });
    parts.extend(localnet);
    parts
}

/// The rules of the ports, of either backend, and the guard of 127.0.0.0/8 on the link to them.
struct Open<'p, 'a> {
    ports: &'p Publication<'a>,
    localnet: Option<&'p Localnet>,
    result: &'p AddResult,
}

impl<'a> Part<'a> for Open<'_, 'a> {
    fn name(&self) -> &'static str {
        "ports"
    }

    fn what(&self) -> String {
        format!("publish {}", self.ports)
    }

    fn make(&self, on: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let (handles, ports, localnet) = (on.cx.handles(), self.ports, self.localnet);
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
        of_reference::refuse_taken(handles, ports)?;
        iptables::refuse_taken(handles, ports)
    };
    let mut kept = None;
    while let Err(taken) = refuse_taken() {
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
