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
use super::rules::{Backend, NAT};
use crate::cni::addr;
use crate::cni::attachment::Key;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Aspect, Code, Error, ErrorList, Result};
use crate::net::netlink::Address;
use crate::plugin::owned::Owned;
use crate::plugin::part::{Part, Target};
use crate::plugin::{Context, Detachment, Handles};
use crate::rollback::Rollback;
use crate::steps::veth;

pub use self::iptables::make_chains;
pub use self::nft::LAYOUT;

/// For `deserialize_with`: the value of `ipMasqBackend`.
pub fn backend<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Backend>, D::Error> {
    Backend::decode(deserializer, "unknown ipmasq backend")
}

/// The value of `nonMasqueradeCIDRs`: networks to which packets keep the container's address.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Exempt(Vec<Cidr>);

#[derive(Clone, Debug, Deserialize)]
struct Cidr(#[serde(deserialize_with = "addr::cidr::deserialize")] IpNet);

impl Exempt {
    /// The row of the key, for `KEYS`.
    pub const KEYS: &'static str = "nonMasqueradeCIDRs | list of strings | none | With `ipMasq`: packets to these networks, such as those behind a VPN, keep the container's address.";

    /// The networks, each once, whatever the order and the host bits in the configuration.
    fn nets(&self) -> Vec<IpNet> {
        let mut nets: Vec<IpNet> = self.0.iter().map(|cidr| cidr.0.trunc()).collect();
        nets.sort_unstable();
        nets.dedup();
        nets
    }
}

/// The configured backend, or this host's default.
fn resolve(handles: &Handles, configured: Option<Backend>) -> Result<Backend> {
    configured.map_or_else(|| Backend::of_host(handles, "masquerade"), Ok)
}

/// STATUS: fails with code 50 if the backend cannot work.
pub fn status(handles: &Handles, configured: Option<Backend>) -> Result<()> {
    let ready = resolve(handles, configured).and_then(|backend| match backend {
        Backend::Iptables => handles.iptables().require_table(NAT),
        Backend::Nftables => LAYOUT.on(handles.require_nft()?).require(),
    });
    ready.map_err(|e| of_masquerade(e).with_code(Code::NOT_AVAILABLE))
}

/// The masquerading of a result's addresses.
pub struct Masquerade {
    /// The configured backend, if any.
    backend: Option<Backend>,
    exempt: Vec<IpNet>,
    addresses: Vec<IpNet>,
}

impl Masquerade {
    /// Masquerading by this backend, or by the host's default.
    pub fn of(backend: Option<Backend>, exempt: &Exempt, result: &AddResult) -> Masquerade {
        Masquerade { backend, exempt: exempt.nets(), addresses: addresses(result) }
    }

    /// Whether everything that ADD made is present.
    pub fn verify(&self, handles: &Handles, key: &Key) -> Result<()> {
        let Masquerade { exempt, addresses, .. } = self;
        let by_iptables = iptables::is_complete(handles, key, addresses, exempt);
        if by_iptables == Ok(true) || nft::is_made_by_reference(handles, key, addresses.len())? {
            return Ok(()); // attached by the reference, or with iptables when that was configured
        }
        match resolve(handles, self.backend)? {
            Backend::Iptables => by_iptables.and_then(|_| {
                let chain = key.iptables_chain();
                Err(Error::check(format!("masquerading rules of chain {chain} are missing")))
            }),
            Backend::Nftables => nft::verify(handles, key, addresses, exempt),
        }
        .map_err(|error| error.about(&Aspect::Masquerade))
    }
}

impl<'a> Part<'a> for Masquerade {
    fn what(&self) -> String {
        let texts: Vec<String> = self.addresses.iter().map(IpNet::to_string).collect();
        format!("masquerade {}", texts.join(", "))
    }

    fn make(&self, Target { cx, at }: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let (handles, key) = (cx.handles(), &at.key);
        let Masquerade { addresses, exempt, .. } = self;
        let made = match resolve(handles, self.backend)? {
            Backend::Iptables => {
                let made = Addresses::of_result(addresses);
                rb.undo("delete the masquerading rules", move || {
                    iptables::delete(handles, key, &|| Ok(made.clone()))
                });
                let on_links = || Ok(ips(&at.netlink()?.all_addresses()?));
                iptables::create(handles, key, addresses, exempt, &on_links)
            }
            Backend::Nftables => nft::create(handles, key, addresses, exempt).map(|()| {
                rb.undo("delete the masquerading elements", move || nft::delete(handles, key));
            }),
        };
        made.map_err(of_masquerade)
    }

    fn compare(&self, on: Target<'a>) -> Result<()> {
        self.verify(on.cx.handles(), &on.at.key)
    }
}

/// What masquerading has made for attachments, of ours or of the reference. It is removed before the
/// link: rules of iptables are found by the addresses that the container has, and the kernel's cleanup
/// overlaps with the deletion of the link, which waits for the same grace periods.
pub struct Masquerading;

impl Owned for Masquerading {
    fn remove(&self, cx: &Context<'_>, at: &Detachment) -> Result<()> {
        let handles = cx.handles();
        let removed = ErrorList::of([
            nft::delete(handles, &at.key),
            nft::delete_of_reference(handles, &at.key),
            iptables::delete(handles, &at.key, &|| known_addresses(cx, at)),
        ]);
        removed.map_err(of_masquerade)
    }

    fn collect(&self, cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
        let (handles, network) = (cx.handles(), &cx.config.name);
        let removed = ErrorList::of([
            nft::collect_garbage(handles, network, valid),
            iptables::collect_garbage(handles, network, valid),
        ]);
        removed.map_err(of_masquerade)
    }
}

fn of_masquerade(error: Error) -> Error {
    error.context("masquerade")
}

/// The addresses of a result, with their prefixes.
fn addresses(result: &AddResult) -> Vec<IpNet> {
    result.ips.iter().map(|ip| ip.address).collect()
}

/// The addresses on the container's links, and those in prevResult.
fn known_addresses(cx: &Context<'_>, at: &Detachment) -> Result<Addresses> {
    let of_result: Vec<IpNet> = at.prev_result.iter().flat_map(addresses).collect();
    let mut known = Addresses::of_result(&of_result);
    if let Some(netns) = &at.netns {
        let container = netns.netlink()?;
        if let Some(link) = veth::find_container_end(cx, netns, &at.key)? {
            known.own.extend(ips(&container.addresses(&link)?));
        }
        known.on_links = Some(ips(&container.all_addresses()?));
    }
    Ok(known)
}

impl Addresses {
    /// These addresses of the attachment, as long as no others are known.
    fn of_result(addresses: &[IpNet]) -> Addresses {
        Addresses { own: addresses.iter().map(IpNet::addr).collect(), on_links: None }
    }
}

fn ips(addresses: &[Address]) -> Vec<IpAddr> {
    addresses.iter().map(|address| address.net.addr()).collect()
}
