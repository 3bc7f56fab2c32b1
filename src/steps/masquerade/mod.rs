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
pub use self::iptables::make_chains;
pub use self::nft::LAYOUT;
use crate::cni::addr;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Aspect, Code, Error, ErrorList, Result};
use crate::net::netlink::Address;
use crate::net::netns::Netns;
use crate::plugin::{Attachment, Context, Detachment, Handles};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
use crate::steps::backend::Backend;
use crate::steps::{ipam, veth};

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

/// Masquerading as a configuration wants it.
pub struct Masquerade<'a> {
    handles: &'a Handles,
    /// The configured backend, if any.
    backend: Option<Backend>,
    exempt: Vec<IpNet>,
}

impl<'a> Masquerade<'a> {
    /// Masquerading by this backend, or by the host's default.
    pub fn by(backend: Option<Backend>, exempt: &Exempt, cx: &'a Context<'_>) -> Masquerade<'a> {
        Masquerade { handles: cx.handles(), backend, exempt: exempt.nets() }
    }

    /// The configured backend, or this host's default.
    fn resolve(&self) -> Result<Backend> {
        self.backend.map_or_else(|| Backend::of_host(self.handles, "masquerade"), Ok)
    }

    /// STATUS: fails with code 50 if the backend cannot work.
    pub fn status(&self) -> Result<()> {
        let ready = self.resolve().and_then(|backend| self.require(backend));
        ready.map_err(|e| of_masquerade(e).with_code(Code::NOT_AVAILABLE))
    }

    fn require(&self, backend: Backend) -> Result<()> {
        match backend {
            Backend::Iptables => iptables::require(self.handles),
            Backend::Nftables => nft::require(self.handles),
        }
    }

    /// Masquerades the addresses of the result.
    pub fn create(
        &self,
        at: &'a Attachment,
        result: &AddResult,
        rb: &mut Rollback<'a>,
    ) -> Result<()> {
        let addresses = addresses(result);
        let created = match self.resolve()? {
            Backend::Iptables => self.create_by_iptables(at, &addresses, rb),
            Backend::Nftables => self.create_by_nft(&at.key, &addresses, rb),
        };
        created.map_err(of_masquerade)
    }

    fn create_by_iptables(
        &self,
        at: &'a Attachment,
        addresses: &[IpNet],
        rb: &mut Rollback<'a>,
    ) -> Result<()> {
        let handles = self.handles;
        let made = Addresses::of_result(addresses);
        rb.undo("delete the masquerading rules", move || {
            iptables::delete(handles, &at.key, &|| Ok(made.clone()))
        });
        let on_links = || Ok(ips(&at.netlink()?.all_addresses()?));
        iptables::create(handles, &at.key, addresses, &self.exempt, &on_links)
    }

    fn create_by_nft(
        &self,
        key: &'a Key,
        addresses: &[IpNet],
        rb: &mut Rollback<'a>,
    ) -> Result<()> {
        let handles = self.handles;
        nft::create(handles, key, addresses, &self.exempt)?;
        rb.undo("delete the masquerading elements", move || nft::delete(handles, key));
        Ok(())
    }

    /// Whether everything that [`create`](Self::create) made is present.
    pub fn verify(&self, key: &Key, result: &AddResult) -> Result<()> {
        let handles = self.handles;
        let addresses = addresses(result);
        let by_iptables = iptables::is_complete(handles, key, &addresses, &self.exempt);
        if by_iptables == Ok(true) || nft::is_made_by_reference(handles, key, addresses.len())? {
            return Ok(()); // attached by the reference, or with iptables when that was configured
        }
        match self.resolve()? {
            Backend::Iptables => by_iptables.and_then(|_| Err(missing_rules(key))),
            Backend::Nftables => nft::verify(handles, key, &addresses, &self.exempt),
        }
        .map_err(|error| error.about(&Aspect::Masquerade))
    }
}

impl<'a> Masquerade<'a> {
    /// Masquerades the addresses of the result again, unless they are.
    pub fn repair(&self, at: &'a Attachment, result: &AddResult, repairs: &Repairs) -> Result<()> {
        let texts: Vec<String> = addresses(result).iter().map(IpNet::to_string).collect();
        let what = format!("masquerade {}", texts.join(", "));
        let again = || transaction(|rb| self.create(at, result, rb));
        repairs.make_unless(self.verify(&at.key, result), what, again)
    }
}

fn of_masquerade(error: Error) -> Error {
    error.context("masquerade")
}

fn missing_rules(key: &Key) -> Error {
    Error::check(format!("masquerading rules of chain {} are missing", key.iptables_chain()))
}

/// The addresses of a result, with their prefixes.
fn addresses(result: &AddResult) -> Vec<IpNet> {
    result.ips.iter().map(|ip| ip.address).collect()
}

/// Removes all masquerading for this attachment, ours or the reference's. Call it before the link
/// is removed: rules of iptables are found by the addresses that the container has.
pub fn delete(cx: &Context<'_>, at: &Detachment) -> Result<()> {
    let handles = cx.handles();
    let mut errors = ErrorList::default();
    errors.push(nft::delete(handles, &at.key));
    errors.push(nft::delete_of_reference(handles, &at.key));
    errors.push(iptables::delete(handles, &at.key, &|| known_addresses(cx, at)));
    errors.finish().map_err(of_masquerade)
}

/// DEL of a plugin that connects the container by a link and masquerades.
pub fn del_with_link(
    cx: &Context<'_>,
    at: &Detachment,
    delete_link: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let mut errors = ErrorList::default();
    // First, so that the kernel's cleanup of it overlaps with the deletion of the link, which
    // waits for the same grace periods.
    errors.push(delete(cx, at));
    errors.push(ipam::del_with_link(cx, at, delete_link));
    errors.finish()
}

/// The addresses on the container's links, and those in prevResult.
fn known_addresses(cx: &Context<'_>, at: &Detachment) -> Result<Addresses> {
    let of_result: Vec<IpNet> = at.prev_result.iter().flat_map(addresses).collect();
    let known = Addresses::of_result(&of_result);
    match &at.netns {
        Some(netns) => known.with_links(cx, netns, &at.key),
        None => Ok(known),
    }
}

impl Addresses {
    /// These addresses of the attachment, as long as no others are known.
    fn of_result(addresses: &[IpNet]) -> Addresses {
        Addresses { own: addresses.iter().map(IpNet::addr).collect(), on_links: None }
    }

    /// With the addresses on the links of the container.
    fn with_links(mut self, cx: &Context<'_>, netns: &Netns, key: &Key) -> Result<Addresses> {
        let container = netns.netlink()?;
        if let Some(link) = veth::find_container_end(cx, netns, key)? {
            self.own.extend(ips(&container.addresses(&link)?));
        }
        self.on_links = Some(ips(&container.all_addresses()?));
        Ok(self)
    }
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
    errors.finish().map_err(of_masquerade)
}
