//! Masquerading: packets that a container sends out of its subnet carry the host's address.
//!
//! The default backend is nftables over netlink. `ipMasqBackend: "iptables"` is honoured with the
//! chains and comments of the reference. DEL removes the rules of both backends, including those of
//! the reference.

mod iptables;
mod nft;

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

use self::iptables::Addresses;
pub use self::nft::LAYOUT;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::ValidAttachments;
use crate::cni::decode;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, ErrorList, Result, Word, warn};
use crate::net::netlink::Address;
use crate::plugin::{Attachment, Context, Detachment, Handles};
use crate::rollback::Rollback;
use crate::steps::veth;

/// `ipMasqBackend`. The default is nftables, or iptables on a kernel without nf_tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// nftables over netlink.
    Nftables,
    /// The host's iptables programs.
    Iptables,
}

impl Word for Backend {
    const REFUSAL: &'static str = "unknown ipmasq backend";
    const WORDS: &'static [&'static str] = &["nftables", "iptables"];

    fn of(word: &str) -> Option<Backend> {
        match word {
            "nftables" => Some(Backend::Nftables),
            "iptables" => Some(Backend::Iptables),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Backend {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Backend, D::Error> {
        decode::word(deserializer)
    }
}

/// The configured backend, or this host's default. A fallback is reported, because the rules have
/// to be looked for elsewhere then.
fn resolve(handles: &Handles, configured: Option<Backend>) -> Result<Backend> {
    if let Some(backend) = configured {
        return Ok(backend);
    }
    if handles.nft()?.is_some() {
        return Ok(Backend::Nftables);
    }
    warn("masquerade with iptables, this kernel has no nf_tables");
    Ok(Backend::Iptables)
}

/// STATUS: fails with code 50 if the backend cannot work.
pub fn status(handles: &Handles, backend: Option<Backend>) -> Result<()> {
    let ready = resolve(handles, backend).and_then(|backend| match backend {
        Backend::Iptables => iptables::require(handles),
        Backend::Nftables => nft::require(handles),
    });
    ready.map_err(|e| e.context("masquerade").with_code(Code::NOT_AVAILABLE))
}

/// The addresses of a result, with their prefixes.
fn addresses(result: &AddResult) -> Vec<IpNet> {
    result.ips.iter().map(|ip| ip.address).collect()
}

/// Masquerades the addresses of the result.
pub fn create<'a>(
    handles: &'a Handles,
    backend: Option<Backend>,
    at: &'a Attachment,
    result: &AddResult,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    let key = &at.key;
    let addresses = addresses(result);
    let created = match resolve(handles, backend)? {
        Backend::Iptables => {
            let made =
                Addresses { own: addresses.iter().map(IpNet::addr).collect(), on_links: None };
            rb.undo("delete the masquerading rules", move || {
                iptables::delete(handles, key, &|| Ok(made.clone()))
            });
            iptables::create(handles, key, &addresses, &|| {
                Ok(ips(&at.netlink()?.all_addresses()?))
            })
        }
        Backend::Nftables => {
            nft::create(handles, key, &addresses)?;
            rb.undo("delete the masquerading elements", move || nft::delete(handles, key));
            Ok(())
        }
    };
    created.map_err(|e| e.context("masquerade"))
}

/// Whether everything that `create` made is present.
pub fn verify(
    handles: &Handles,
    backend: Option<Backend>,
    key: &Key,
    result: &AddResult,
) -> Result<()> {
    let addresses = addresses(result);
    let by_iptables = iptables::is_complete(handles, key, &addresses);
    if by_iptables == Ok(true) || nft::is_made_by_reference(handles, key, addresses.len())? {
        return Ok(()); // attached by the reference, or with iptables when that was configured
    }
    match resolve(handles, backend)? {
        Backend::Iptables => by_iptables.and_then(|_| {
            Err(Error::check(format!(
                "masquerading rules of chain {} are missing",
                key.iptables_chain()
            )))
        }),
        Backend::Nftables => nft::verify(handles, key, &addresses),
    }
}

/// Removes all masquerading for this attachment, ours or the reference's. Call it before the link
/// is removed: rules of iptables are found by the addresses that the container has.
pub fn delete(cx: &Context<'_>, at: &Detachment) -> Result<()> {
    let handles = cx.handles();
    let mut errors = ErrorList::default();
    errors.push(nft::delete(handles, &at.key));
    errors.push(nft::delete_of_reference(handles, &at.key));
    errors.push(iptables::delete(handles, &at.key, &|| known_addresses(cx, at)));
    errors.finish().map_err(|e| e.context("masquerade"))
}

/// The addresses on the container's links, and those in prevResult.
fn known_addresses(cx: &Context<'_>, at: &Detachment) -> Result<Addresses> {
    let told: Vec<IpAddr> = at
        .prev_result
        .iter()
        .flat_map(|result| result.ips.iter().map(|ip| ip.address.addr()))
        .collect();
    let Some(netns) = &at.netns else { return Ok(Addresses { own: told, on_links: None }) };
    let container = netns.netlink()?;
    let mut own = match veth::find_container_end(cx, container, &at.key)? {
        Some(link) => ips(&container.addresses(&link)?),
        None => vec![],
    };
    own.extend(told);
    Ok(Addresses { own, on_links: Some(ips(&container.all_addresses()?)) })
}

fn ips(addresses: &[Address]) -> Vec<IpAddr> {
    addresses.iter().map(|address| address.net.addr()).collect()
}

/// Removes all masquerading for this network's attachments that are not valid.
pub fn collect_garbage(
    handles: &Handles,
    network: &NetworkName,
    valid: &ValidAttachments,
) -> Result<()> {
    let mut errors = ErrorList::default();
    errors.push(nft::collect_garbage(handles, network, valid));
    errors.push(iptables::collect_garbage(handles, network, valid));
    errors.finish().map_err(|e| e.context("masquerade"))
}
