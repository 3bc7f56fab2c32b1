//! The ifb, the link that a container's outgoing traffic is redirected to. Its alias names the
//! owner; the reference's links have no alias.

use std::cell::OnceCell;
use std::collections::HashSet;

use sha2::{Digest as _, Sha512};

use super::shaping;
use crate::cni::attachment::{Key, NetworkName, hex};
use crate::cni::conf::{ValidAttachment, ValidAttachments};
use crate::cni::valid::Stale;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, LinkChange, LinkKind, LinkSpec, Netlink};
use crate::plugin::Context;
use crate::rollback::Rollback;
use crate::steps::{link_alias, link_record};

/// The kernel's name for this kind of link.
pub const KIND: &str = "ifb";
/// The beginning of the reference's names and of ours.
const PREFIX: &str = "bwp";

/// Creates the attachment's link, which is down, with the MTU of the veth pair.
pub fn create<'a>(host: &'a Netlink, key: &Key, mtu: u32, rb: &mut Rollback<'a>) -> Result<Link> {
    let name = create_under_free_name(host, key, mtu)?;
    let undone = name.clone();
    rb.undo(format_args!("delete link {name:?}"), move || host.delete_link_by_name(&undone));
    let link = host.link(&name)?;
    let alias = link_alias::of(key);
    let change =
        LinkChange { alias: Some(&alias), without_link_local: true, ..LinkChange::default() };
    host.change_link(&link, &change)?;
    Ok(link)
}

fn create_under_free_name(host: &Netlink, key: &Key, mtu: u32) -> Result<String> {
    // Set the hardware address at creation: udev then leaves it alone.
    let spec = LinkSpec { kind: LinkKind::Ifb, lower: None, mtu: Some(mtu), mac: Some(mac(key)) };
    for name in names(key) {
        match host.create_link(&name, None, &spec) {
            Err(e) if e.is_exists() => refuse_own(host, key, &name)?,
            created => return created.map(|()| name),
        }
    }
    let [first, second] = names(key);
    let problem = format!("no name is free for the ifb of {:?}", key.ifname.as_str());
    Err(Error::new(Code::CONFLICT, problem)
        .with_details(format_args!("{first:?} and {second:?} are other links of the host")))
}

fn refuse_own(host: &Netlink, key: &Key, name: &str) -> Result<()> {
    let found = host.find_link(name)?;
    match found.filter(|link| is_own(link, key)) {
        Some(own) => Err(Error::new(Code::CONFLICT, format!("link {name:?} exists already"))
            .with_details(&own.alias)),
        None => Ok(()),
    }
}

/// Returns the attachment's link for CHECK. It must exist.
pub fn find_made(host: &Netlink, key: &Key) -> Result<Link> {
    find_any(host, key)?.ok_or_else(|| {
        Error::check(format!("ifb {:?} is not there", names(key)[0]))
            .saying("get ifb device: Link not found")
    })
}

/// Verifies that the link is up.
pub fn verify_up(link: &Link) -> Result<()> {
    if link.up { Ok(()) } else { Err(Error::check(format!("ifb {:?} is down", link.name))) }
}

/// Finds the attachment's own link, else the one with the reference's name.
fn find_any(host: &Netlink, key: &Key) -> Result<Option<Link>> {
    match find_own(host, key)? {
        None => find_of_reference(host, key),
        own => Ok(own),
    }
}

/// Finds the attachment's link, or the one that the reference made for it. The reference uses one
/// name for all interfaces of a container in a network. So if `host_end` is known, it must redirect
/// to the link, or no veth may: its filter may be gone.
pub fn find(host: &Netlink, key: &Key, host_end: Option<&Link>) -> Result<Option<Link>> {
    if let Some(own) = find_own(host, key)? {
        return Ok(Some(own));
    }
    let Some(link) = find_of_reference(host, key)? else { return Ok(None) };
    Ok(may_be_of(host, host_end, &link)?.then_some(link))
}

/// Whether the reference may have made the link for the veth pair with this end.
fn may_be_of(host: &Netlink, host_end: Option<&Link>, link: &Link) -> Result<bool> {
    let Some(end) = host_end else { return Ok(true) };
    Ok(shaping::is_redirected_to(host, end, link)? || !redirected_to(host)?.contains(&link.index))
}

/// Returns the ifindexes of the links that veths redirect packets to.
fn redirected_to(host: &Netlink) -> Result<Vec<u32>> {
    let targets =
        host.links_of_kind("veth")?.into_iter().map(|veth| shaping::redirects(host, &veth));
    Ok(targets.collect::<Result<Vec<_>>>()?.concat())
}

fn find_own(host: &Netlink, key: &Key) -> Result<Option<Link>> {
    for name in names(key) {
        let found = host.find_link(&name)?.filter(|link| is_own(link, key));
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn is_own(link: &Link, key: &Key) -> bool {
    link.kind == KIND
        && (link_alias::is_of(&link.alias, key) || link.alias.is_empty() && link.mac() == mac(key))
}

/// Removes the links of this network's stale attachments, and those that the reference has left.
pub fn collect_garbage(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    let host = cx.host()?;
    let network = Network { name: &cx.config.name, valid, macs: OnceCell::new() };
    let (of_network, others): (Vec<Link>, Vec<Link>) =
        host.links_of_kind(KIND)?.into_iter().partition(|link| network.has(link));
    let mut errors = ErrorList::default();
    for link in of_network.iter().filter(|link| !network.has_valid(link)) {
        errors.push(remove_stale(host, link, valid));
    }
    for link in errors.push(left_by_reference(cx, &others, valid)).unwrap_or_default() {
        errors.push(remove_stale(host, link, valid));
    }
    errors.finish()
}

/// Removes a stale link. One without an alias is torn: its ADD was killed, or no veth uses it any
/// more.
fn remove_stale(host: &Netlink, link: &Link, valid: &ValidAttachments) -> Result<()> {
    let stale = || Stale { is_torn: link.alias.is_empty(), ..link_alias::stale(link) };
    valid.remove(stale, || link_record::delete_link(host, link.index))
}

/// A network and its valid attachments.
struct Network<'a> {
    name: &'a NetworkName,
    valid: &'a ValidAttachments,
    /// The hardware addresses of the valid attachments' links, computed on first use.
    macs: OnceCell<HashSet<Vec<u8>>>,
}

impl Network<'_> {
    fn has(&self, link: &Link) -> bool {
        if link.alias.is_empty() {
            link.mac().octets().starts_with(&mac_prefix(self.name))
        } else {
            link_alias::is_of_network(&link.alias, self.name)
        }
    }

    fn has_valid(&self, link: &Link) -> bool {
        if link.alias.is_empty() {
            self.valid_macs().contains(&link.mac)
        } else {
            link_alias::is_of_valid(&link.alias, self.valid)
        }
    }

    fn valid_macs(&self) -> &HashSet<Vec<u8>> {
        self.macs.get_or_init(|| {
            self.valid.names().iter().filter_map(|at| mac_of(self.name, at)).collect()
        })
    }
}

/// Returns the reference's links that no veth redirects to any more, in any network: nothing on a
/// link names its network. The reference's ADD sets the queue last, so a link with a queue is not
/// about to be used. Our ADD sets the alias first, so a link with a queue and without an alias is
/// not ours.
fn left_by_reference<'l>(
    cx: &Context<'_>,
    links: &'l [Link],
    valid: &ValidAttachments,
) -> Result<Vec<&'l Link>> {
    let mut found: Vec<&Link> = links.iter().filter(|link| is_of_reference(link)).collect();
    if found.is_empty() {
        return Ok(found);
    }
    let host = cx.host()?;
    let valid = names_of_valid(cx, valid);
    let used = redirected_to(host)?;
    found.retain(|link| !valid.contains(&link.name) && !used.contains(&link.index));
    limited(host, found)
}

/// Returns the reference's names for the links of valid attachments.
fn names_of_valid(cx: &Context<'_>, valid: &ValidAttachments) -> HashSet<String> {
    let network = cx.config.name.as_str();
    valid.containers().map(|id| name_of_reference(network, id)).collect()
}

/// Returns those of the links that have a queue.
fn limited<'l>(host: &Netlink, links: Vec<&'l Link>) -> Result<Vec<&'l Link>> {
    let mut limited = vec![];
    for link in links {
        limited.extend(shaping::is_limited(host, link)?.then_some(link));
    }
    Ok(limited)
}

/// Whether a link has a name of the reference and no alias. Ours may look the same for a moment.
fn is_of_reference(link: &Link) -> bool {
    link.kind == KIND && link.alias.is_empty() && has_name_of_reference(link)
}

/// Whether the link's name is the prefix and twelve lower-case hexadecimal digits.
fn has_name_of_reference(link: &Link) -> bool {
    let digits = link.name.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == 12 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The link's hardware address names its owner until its alias does: the kernel accepts no alias
/// when it creates a link, and an ADD may be killed between the two. No packet is addressed to it.
fn mac(key: &Key) -> MacAddr {
    let attachment = key.attachment_hash();
    MacAddr::new(&[&mac_prefix(&key.network), &attachment[..2]].concat())
}

fn mac_of(network: &NetworkName, valid: &ValidAttachment) -> Option<Vec<u8>> {
    let key = Key::parse(network.as_str(), &valid.container_id, &valid.ifname).ok()?;
    Some(mac(&key).octets().to_vec())
}

/// Returns a locally administered prefix with three bytes of the network's hash.
fn mac_prefix(network: &NetworkName) -> [u8; 4] {
    let hash = Key::network_hash(network);
    [0x02, hash[0], hash[1], hash[2]]
}

fn find_of_reference(host: &Netlink, key: &Key) -> Result<Option<Link>> {
    let found = host.find_link(&names(key)[0])?;
    Ok(found.filter(|link| link.kind == KIND && !link_alias::is_of_any(&link.alias)))
}

/// Returns the reference's name, which all interfaces of one container share, and a name of the
/// attachment's own. Both have 15 bytes, the maximum for a link name.
fn names(key: &Key) -> [String; 2] {
    let Key { network, container_id, ifname } = key;
    let own = name_of(&format!("bandwidth {network} {container_id} {ifname}"));
    [name_of_reference(network.as_str(), container_id.as_str()), own]
}

fn name_of_reference(network: &str, container_id: &str) -> String {
    name_of(&format!("{network}{container_id}"))
}

fn name_of(text: &str) -> String {
    format!("{PREFIX}{}", hex(&Sha512::digest(text.as_bytes())[..6]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_name_is_the_reference_s_and_second_depends_on_the_key() {
        let names_of = |network, id, ifname| names(&Key::parse(network, id, ifname).unwrap());
        let [of_reference, own] = names_of("net1", "cont-a", "eth0");
        assert_eq!(of_reference, "bwpa41e7966de45");
        for (network, id, ifname) in [("net1c", "ont-a", "eth0"), ("net1", "cont-a", "eth1")] {
            let other = names_of(network, id, ifname);
            assert_eq!(other[0], of_reference);
            assert_ne!(other[1], own);
        }
    }

    #[test]
    fn a_link_of_the_reference_is_recognised_by_its_name_alone() {
        let link = |name: &str, alias: &str| Link {
            name: name.to_owned(),
            kind: KIND.to_owned(),
            alias: alias.to_owned(),
            ..Link::default()
        };
        assert!(is_of_reference(&link("bwpa41e7966de45", "")));
        for (name, alias) in [
            ("bwpa41e7966de4", ""),
            ("bwpA41e7966de45", ""),
            ("ifb0", ""),
            ("bwpa41e7966de45", "mine"),
        ] {
            assert!(!is_of_reference(&link(name, alias)), "{name} {alias}");
        }
    }

    #[test]
    fn a_link_without_an_alias_is_known_by_its_address() {
        let one = Key::parse("net", "one", "eth0").unwrap();
        let other = Key::parse("net", "other", "eth0").unwrap();
        let alien = Key::parse("alien", "one", "eth0").unwrap();
        let link = |alias: &str, mac: &MacAddr| Link {
            kind: KIND.to_owned(),
            alias: alias.to_owned(),
            mac: mac.octets().to_vec(),
            ..Link::default()
        };
        assert!(is_own(&link("", &mac(&one)), &one));
        assert!(is_own(&link(&link_alias::of(&one), &mac(&other)), &one));
        assert!(!is_own(&link("somebody's", &mac(&one)), &one));
        assert!(!is_own(&link("", &mac(&other)), &one) && !is_own(&link("", &mac(&alien)), &one));
        assert!(mac(&other).octets().starts_with(&mac_prefix(&one.network)));
        assert!(!mac(&alien).octets().starts_with(&mac_prefix(&one.network)));
        assert!(!mac(&one).is_multicast());
    }
}
