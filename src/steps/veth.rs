//! The veth pair of an attachment: one end in the container, the other on the host.
//!
//! The host's end is named after the attachment and its alias names the owner, so DEL finds it
//! without the container's namespace. Both ends get their hardware address at creation, so udev
//! leaves the addresses alone.

use std::net::IpAddr;

use sha2::{Digest as _, Sha512};

use crate::cni::attachment::{Key, hex};
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Aspect, Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, LinkChange, Netlink, PeerSpec, VethSpec};
use crate::net::netns::Netns;
use crate::plugin::owned::Owned;
use crate::plugin::{Attachment, Context, Detachment};
use crate::rollback::Rollback;
use crate::steps::records::Site;
use crate::steps::{container_link, interface, link_alias, link_record};

/// The kernel's name for this kind of link.
pub const KIND: &str = "veth";
/// How many names are tried when names are taken.
const NAMES: u32 = 10;

/// A pair that was created. The end in the container has the name in CNI_IFNAME.
pub struct Pair {
    /// The end on the host, as the kernel has it.
    pub host: Link,
    /// The hardware address of the end in the container.
    pub mac: MacAddr,
}

/// The optional properties of a pair.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// MTU of both ends in bytes.
    pub mtu: Option<u32>,
    /// Hardware address of the container's end.
    pub mac: Option<MacAddr>,
}

/// The MTUs that a veth accepts, as does every link on top of another.
const MTU: std::ops::RangeInclusive<i64> = 68..=65535;

/// The `mtu` of a configuration; 0 leaves it to the kernel.
pub fn validate_mtu(mtu: impl Into<i64>) -> Result<()> {
    let mtu = mtu.into();
    if mtu == 0 || MTU.contains(&mtu) { Ok(()) } else { Err(Error::out_of_range("mtu", mtu, MTU)) }
}

/// Creates the pair; the container's end is created in its namespace with its final name. Both are
/// down. This does not enter the container, so that an ADD need not do so more than once.
pub fn create<'a>(
    cx: &'a Context<'_>,
    at: &'a Attachment,
    wishes: &Wishes,
    rb: &mut Rollback<'a>,
) -> Result<Pair> {
    container_link::refuse_pattern(at)?;
    let host = cx.host()?;
    let mac = wishes.mac.clone().unwrap_or_else(MacAddr::random);
    let netns = Some(at.netns()?.fd());
    let peer = PeerSpec { name: at.ifname(), mac: mac.clone(), netns };
    let name = create_under_free_name(host, at, wishes.mtu, &peer)?;
    let born = name.clone();
    rb.undo(format_args!("delete link {name:?}"), move || host.delete_link_by_name(&born));
    let made = host.link(&name)?;
    let alias = link_alias::of(&at.key);
    host.change_link(&made, &LinkChange { alias: Some(&alias), ..LinkChange::default() })?;
    Ok(Pair { host: made, mac })
}

fn create_under_free_name(
    host: &Netlink,
    at: &Attachment,
    mtu: Option<u32>,
    peer: &PeerSpec<'_>,
) -> Result<String> {
    for name in names(&at.key) {
        let mac = MacAddr::random_of_port();
        match host.create_veth(&VethSpec { name: &name, mac, peer: peer.clone(), mtu }) {
            // The kernel does not report which of the two names is taken.
            Err(error) if error.is_exists() => {
                container_link::refuse_taken_name(at.netlink()?, at.ifname())?
            }
            created => {
                return created.map(|()| name).map_err(|e| e.worded("failed to make veth pair"));
            }
        }
    }
    let (ifname, first) = (at.ifname(), host_name(&at.key, 0));
    let msg = format!("no name is free for the veth of {ifname:?}");
    Err(Error::new(Code::CONFLICT, msg).with_details(format_args!(
        "{NAMES} links of the host have the names it could have, the first is {first:?}"
    )))
}

/// The names that the host's end may have, in the order they are tried.
fn names(key: &Key) -> impl Iterator<Item = String> {
    (0..NAMES).map(|attempt| host_name(key, attempt))
}

/// The host's end of the attachment's pair, whose other end `container` is.
pub fn host_end(
    cx: &Context<'_>,
    at: &Attachment,
    result: &AddResult,
    container: &Link,
) -> Result<Link> {
    let name = &container.name;
    let Some(end) = other_end(cx.host()?, at.netns()?, container)? else {
        let error = Error::check(format!("interface {name:?} has no other end on the host"));
        let error = match container.lower {
            Some(index) => error.with_details(format_args!(
                "it names ifindex {index}, and no link of the host with this ifindex leads back to it"
            )),
            None => error,
        };
        return Err(error.about(&Aspect::HostEnd));
    };
    if is_end_of(&end, &at.key, result) {
        return Ok(end);
    }
    let msg = format!("the other end {:?} of interface {name:?} is another", end.name);
    Err(Error::check(msg)
        .with_details(format_args!(
            "alias {:?}, expected ours, or none and the name in prevResult.interfaces",
            end.alias
        ))
        .about(&Aspect::HostEnd))
}

/// Whether a link of the host is the attachment's by what no container can write: our alias, or
/// else, since the reference sets none, its name in the result of ADD.
pub fn is_end_of(end: &Link, key: &Key, result: &AddResult) -> bool {
    link_alias::is_of(&end.alias, key)
        || !link_alias::is_of_any(&end.alias) && interface::has_on_host(result, end)
}

/// The other end of a pair, on the host, of which `link` of the namespace is the one end.
///
/// A process in the container chooses the ifindex of both ends of a pair that it makes, and so what
/// its end names may be any link of the host. What the host's end names proves it: the kernel
/// reports the ifindex of its other end together with the namespace, by a number that only the host
/// assigns, and no two links of a namespace share an ifindex.
pub fn other_end(host: &Netlink, netns: &Netns, link: &Link) -> Result<Option<Link>> {
    let Some(index) = link.lower.filter(|_| link.lower_is_elsewhere()) else { return Ok(None) };
    match host.find_link_by_index(index)? {
        Some(end) if is_pair(host, &end, netns, link)? => Ok(Some(end)),
        _ => Ok(None),
    }
}

/// Whether a link of the host and one of the namespace are the ends of one pair.
fn is_pair(host: &Netlink, end: &Link, netns: &Netns, link: &Link) -> Result<bool> {
    let are_veths = end.kind == KIND && link.kind == KIND;
    if !are_veths || end.lower != Some(link.index) || link.lower != Some(end.index) {
        return Ok(false);
    }
    Ok(end.lower_is_elsewhere() && end.lower_nsid == host.nsid(netns.fd())?)
}

/// Verifies that the host's end is up.
pub fn verify_up(host_end: &Link) -> Result<()> {
    if host_end.up {
        return Ok(());
    }
    let error = Error::check(format!("the host's end {:?} is down", host_end.name));
    Err(error.about(&Aspect::HostEnd))
}

/// Verifies that a link of the host has the addresses of the container's gateways.
pub fn verify_gateways(
    host: &Netlink,
    link: &Link,
    gateways: &[IpAddr],
    ifname: &str,
) -> Result<()> {
    let present = host.addresses(link)?;
    let has = |ip: &IpAddr| present.iter().any(|address| address.net.addr() == *ip);
    ErrorList::of(gateways.iter().filter(|gateway| !has(gateway)).map(|gateway| {
        Err(Error::check(format!("{gateway} is not on {:?} of the host", link.name))
            .saying(format_args!("Failed to find Gateway {gateway} for interface {ifname}"))
            .about(&Aspect::Gateway(*gateway)))
    }))
}

/// The bridge's ports that belong to other attachments.
pub fn others(host: &Netlink, bridge: &Link, key: &Key) -> Result<Vec<Link>> {
    let mut ports = host.ports(bridge)?;
    ports.retain(|port| link_alias::is_of_another(&port.alias, key));
    Ok(ports)
}

/// The pairs of attachments.
pub struct Pairs;

impl Owned for Pairs {
    /// By the host's end, which we named, or else by the container's end, which the reference made.
    fn remove(&self, cx: &Context<'_>, at: &Detachment) -> Result<()> {
        let host = cx.host()?;
        let ends = host_ends(host, &at.key)?;
        if let Some(netns) = at.netns.as_ref().filter(|_| ends.is_empty()) {
            let end = find_unsigned_pair(host, netns, at)?;
            return link_record::delete_if_any(netns.netlink()?, end);
        }
        let indexes: Vec<u32> = ends.iter().map(|link| link.index).collect();
        cx.handles().postponed().delete_links_now(host, &indexes)
    }

    /// If their namespaces still keep them.
    fn collect(&self, cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
        link_alias::collect_garbage(cx, KIND, valid)
    }
}

/// The container's end of a pair without an alias: the reference marks neither end, and an ADD of
/// ours may have been killed before it did. It is a link of that name with its other end on the
/// host, unless that end's alias, or a record, says that it belongs to another attachment or is a
/// device of the host. An end with our own name for it, which no container can change, is ours.
fn find_unsigned_pair(host: &Netlink, netns: &Netns, at: &Detachment) -> Result<Option<Link>> {
    let key = &at.key;
    let Some(link) = link_record::find_named(netns.netlink()?, key.ifname.as_str())? else {
        return Ok(None);
    };
    match other_end(host, netns, &link)? {
        None => Ok(None),
        Some(other) if link_alias::is_of_another(&other.alias, key) => Ok(None),
        Some(other) if names(key).any(|name| other.name == name) => Ok(Some(link)),
        Some(_) => link_record::unless_claimed(Some(link), Site::of(at, netns)),
    }
}

/// The host's end of a pair that we made, found by the key alone.
pub fn find_host_end(host: &Netlink, key: &Key) -> Result<Option<Link>> {
    Ok(host_ends(host, key)?.pop())
}

/// The container's end, even if it was renamed. The end of a pair that the reference made is found
/// by its name alone.
pub fn find_container_end(cx: &Context<'_>, netns: &Netns, key: &Key) -> Result<Option<Link>> {
    let (host, container) = (cx.host()?, netns.netlink()?);
    if let Some(end) = find_host_end(host, key)?
        && let Some(index) = end.lower
        && let Some(link) = container.find_link_by_index(index)?
        && is_pair(host, &end, netns, &link)?
    {
        return Ok(Some(link));
    }
    container.find_link(key.ifname.as_str())
}

/// All host ends of the key, the newest last. There are two while the kernel takes down a namespace
/// that had the attachment before. The former owners of the earlier names may be gone, so a free
/// name does not end the search.
fn host_ends(host: &Netlink, key: &Key) -> Result<Vec<Link>> {
    let mut found = vec![];
    for name in names(key) {
        found.extend(host.find_link(&name)?);
    }
    found.retain(|link| link_alias::is_of(&link.alias, key));
    Ok(found)
}

/// `veth` and eight hex digits, in the form of the reference's random names.
pub fn host_name(key: &Key, attempt: u32) -> String {
    let digest = Sha512::digest(
        format!("veth {} {} {} {attempt}", key.network, key.container_id, key.ifname).as_bytes(),
    );
    format!("veth{}", hex(&digest[..4]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_by_every_part_of_the_key_and_by_attempt() {
        let key = |network, id, ifname| Key::parse(network, id, ifname).unwrap();
        let name = host_name(&key("a", "b", "c"), 0);
        assert!(name.len() == 12 && name.starts_with("veth"));
        for other in [
            host_name(&key("x", "b", "c"), 0),
            host_name(&key("a", "x", "c"), 0),
            host_name(&key("a", "b", "x"), 0),
            host_name(&key("a", "b", "c"), 1),
        ] {
            assert_ne!(name, other);
        }
        assert!(link_alias::of(&key("a", &"b".repeat(300), "c")).len() < 256);
    }
}
