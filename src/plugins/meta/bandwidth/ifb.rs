//! The ifb, the link that a container's outgoing traffic is redirected to. Its alias names the
//! owner; the reference's links have no alias.

use std::cell::OnceCell;
use std::collections::HashSet;

use sha2::{Digest as _, Sha512};

use crate::cni::attachment::{Key, NetworkName, hex};
use crate::cni::conf::{ValidAttachment, ValidAttachments};
use crate::cni::valid::Stale;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{
    Filter, Handle, Link, LinkChange, LinkKind, LinkSpec, Netlink, QdiscKind, Verdict,
};
use crate::plugin::Context;
use crate::rollback::Rollback;
use crate::steps::{link_alias, link_record};

/// The kernel's name for this kind of link.
pub const KIND: &str = "ifb";
/// The handle of a link's root qdisc.
pub const ROOT: Handle = Handle::new(1, 0);
/// The handle of the ingress qdisc, for packets that a link has received.
pub const RECEIVED: Handle = Handle::new(0xffff, 0);
/// The beginning of the reference's names and of ours.
const PREFIX: &str = "bwp";

/// Creates the attachment's link, which is down, with the MTU of the veth pair.
pub fn create<'a>(host: &'a Netlink, key: &Key, mtu: u32, rb: &mut Rollback<'a>) -> Result<Link> {
    // Set the hardware address at creation: udev then leaves it alone.
    let spec = LinkSpec { kind: LinkKind::Ifb, lower: None, mtu: Some(mtu), mac: Some(mac(key)) };
    for name in names(key) {
        match host.create_link(&name, None, &spec) {
            Err(e) if e.is_exists() => {
                if let Some(own) = host.find_link(&name)?.filter(|link| is_own(link, key)) {
                    let problem = format!("link {name:?} exists already");
                    return Err(Error::new(Code::CONFLICT, problem).with_details(&own.alias));
                }
                continue;
            }
            created => created?,
        }
        let undone = name.clone();
        rb.undo(format_args!("delete link {name:?}"), move || host.delete_link_by_name(&undone));
        let link = host.link(&name)?;
        let alias = link_alias::of(key);
        let change =
            LinkChange { alias: Some(&alias), without_link_local: true, ..LinkChange::default() };
        host.change_link(&link, &change)?;
        return Ok(link);
    }
    let [first, second] = names(key);
    let problem = format!("no name is free for the ifb of {:?}", key.ifname.as_str());
    Err(Error::new(Code::CONFLICT, problem)
        .with_details(format_args!("{first:?} and {second:?} are other links of the host")))
}

/// Returns the attachment's own link for CHECK, else the one with the reference's name. It must
/// exist.
pub fn find_made(host: &Netlink, key: &Key) -> Result<Link> {
    let found = match find_own(host, key)? {
        None => find_of_reference(host, key)?,
        own => own,
    };
    found.ok_or_else(|| {
        Error::check(format!("ifb {:?} is not there", names(key)[0]))
            .saying("get ifb device: Link not found")
    })
}

/// Finds the attachment's link, or the one that the reference made for it. The reference uses one
/// name for all interfaces of a container in a network. So if `host_end` is known, it must redirect
/// to the link, or no veth may: its filter may be gone.
pub fn find(host: &Netlink, key: &Key, host_end: Option<&Link>) -> Result<Option<Link>> {
    if let Some(own) = find_own(host, key)? {
        return Ok(Some(own));
    }
    match (find_of_reference(host, key)?, host_end) {
        (Some(link), Some(end))
            if !redirects(host, end)?.contains(&link.index)
                && redirected_to(host)?.contains(&link.index) =>
        {
            Ok(None)
        }
        (found, _) => Ok(found),
    }
}

/// Returns the ifindexes of the links that veths redirect packets to.
fn redirected_to(host: &Netlink) -> Result<Vec<u32>> {
    let targets = host.links_of_kind("veth")?.into_iter().map(|veth| redirects(host, &veth));
    Ok(targets.collect::<Result<Vec<_>>>()?.concat())
}

/// Returns the ifindexes of the links that received packets are redirected to.
fn redirects(host: &Netlink, link: &Link) -> Result<Vec<u32>> {
    Ok(host.filters(link, RECEIVED)?.iter().filter_map(target).collect())
}

/// Returns the ifindex that a filter redirects to; 0 if that link is gone.
pub fn target(filter: &Filter) -> Option<u32> {
    if let Verdict::Redirect(index) = filter.verdict { Some(index) } else { None }
}

/// Whether a link has a queue like those that ADD creates.
fn is_limited(host: &Netlink, link: &Link) -> Result<bool> {
    let root = host.qdisc_at(link, Handle::ROOT)?;
    Ok(root.is_some_and(|root| root.handle == ROOT && matches!(root.kind, QdiscKind::Tbf(_))))
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
    let network = &cx.config.name;
    let has = |link: &Link| {
        if link.alias.is_empty() {
            link.mac().octets().starts_with(&mac_prefix(network))
        } else {
            link_alias::is_of_network(&link.alias, network)
        }
    };
    let (of_network, others): (Vec<Link>, Vec<Link>) =
        host.links_of_kind(KIND)?.into_iter().partition(has);
    // The hardware addresses of the valid attachments' links, computed on first use.
    let macs: OnceCell<HashSet<Vec<u8>>> = OnceCell::new();
    let mac_of = |at: &ValidAttachment| {
        let key = Key::parse(network.as_str(), &at.container_id, &at.ifname).ok()?;
        Some(mac(&key).octets().to_vec())
    };
    let is_valid = |link: &Link| {
        if link.alias.is_empty() {
            let all = || valid.names().iter().filter_map(mac_of).collect();
            macs.get_or_init(all).contains(&link.mac)
        } else {
            link_alias::is_of_valid(&link.alias, valid)
        }
    };
    let mut errors = ErrorList::default();
    for link in of_network.iter().filter(|link| !is_valid(link)) {
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
    let network = cx.config.name.as_str();
    let valid: HashSet<String> =
        valid.containers().map(|id| name_of_reference(network, id)).collect();
    let used = redirected_to(host)?;
    found.retain(|link| !valid.contains(&link.name) && !used.contains(&link.index));
    let mut left = vec![];
    for link in found {
        left.extend(is_limited(host, link)?.then_some(link));
    }
    Ok(left)
}

/// Whether a link has no alias and a name of the reference: the prefix and twelve lower-case
/// hexadecimal digits. Ours may look the same for a moment.
fn is_of_reference(link: &Link) -> bool {
    let digits = link.name.strip_prefix(PREFIX).unwrap_or_default();
    link.kind == KIND
        && link.alias.is_empty()
        && digits.len() == 12
        && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The link's hardware address names its owner until its alias does: the kernel accepts no alias
/// when it creates a link, and an ADD may be killed between the two. No packet is addressed to it.
fn mac(key: &Key) -> MacAddr {
    let attachment = key.attachment_hash();
    MacAddr::new(&[&mac_prefix(&key.network), &attachment[..2]].concat())
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
