//! The link that what a container sends goes through. Its alias says whose it is; those of the reference have none.

use sha2::{Digest as _, Sha512};

use super::shaping;
use crate::cni::attachment::{Key, hex};
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, LinkChange, LinkKind, LinkSpec, Netlink};
use crate::rollback::Rollback;
use crate::steps::link_alias;

/// The kernel's word for such a link.
pub const KIND: &str = "ifb";

/// Makes the link of an attachment, which is down, with the MTU of the veth pair.
pub fn create<'a>(host: &'a Netlink, key: &Key, mtu: u32, rb: &mut Rollback<'a>) -> Result<Link> {
    let name = create_under_free_name(host, key, mtu)?;
    let undone = name.clone();
    rb.undo(format_args!("delete link {name:?}"), move || host.delete_link_by_name(&undone));
    let link = host.link(&name)?;
    host.change_link(&link, &LinkChange { alias: Some(&link_alias::of(key)), ..LinkChange::default() })?;
    Ok(link)
}

fn create_under_free_name(host: &Netlink, key: &Key, mtu: u32) -> Result<String> {
    // With an address that is given when it is made, which udev leaves alone.
    let spec = LinkSpec { kind: LinkKind::Ifb, lower: None, mtu: Some(mtu), mac: Some(MacAddr::random()) };
    for name in names(key) {
        match host.create_link(&name, None, &spec) {
            Err(e) if e.is_exists() => refuse_own(host, key, &name)?,
            created => return created.map(|()| name),
        }
    }
    let [first, second] = names(key);
    Err(Error::new(Code::CONFLICT, format!("no name is free for the ifb of {:?}", key.ifname.as_str()))
        .with_details(format_args!("{first:?} and {second:?} are other links of the host")))
}

fn refuse_own(host: &Netlink, key: &Key, name: &str) -> Result<()> {
    match host.find_link(name)? {
        Some(link) if link_alias::is_of(&link.alias, key) => {
            Err(Error::new(Code::CONFLICT, format!("link {name:?} exists already")).with_details(link.alias))
        }
        _ => Ok(()),
    }
}

/// The attachment's link, where CHECK expects it.
pub fn verify(host: &Netlink, key: &Key) -> Result<Link> {
    let found = find_own(host, key)?.map_or_else(|| find_of_reference(host, key), |own| Ok(Some(own)))?;
    let link = found.ok_or_else(|| Error::check(format!("ifb {:?} not found", names(key)[0])))?;
    match link.up {
        true => Ok(link),
        false => Err(Error::check(format!("ifb {:?} is down", link.name))),
    }
}

/// The attachment's link, or what the reference has made for it. The reference's name is the same for all interfaces of
/// a container in a network, so `host_end`, where it is known, must use it.
pub fn find(host: &Netlink, key: &Key, host_end: Option<&Link>) -> Result<Option<Link>> {
    if let Some(own) = find_own(host, key)? {
        return Ok(Some(own));
    }
    let Some(link) = find_of_reference(host, key)? else { return Ok(None) };
    let is_used = host_end.map_or(Ok(true), |end| shaping::is_redirected_to(host, end, &link))?;
    Ok(is_used.then_some(link))
}

fn find_own(host: &Netlink, key: &Key) -> Result<Option<Link>> {
    for name in names(key) {
        let is_own = |link: &Link| link.kind == KIND && link_alias::is_of(&link.alias, key);
        if let Some(own) = host.find_link(&name)?.filter(is_own) {
            return Ok(Some(own));
        }
    }
    Ok(None)
}

fn find_of_reference(host: &Netlink, key: &Key) -> Result<Option<Link>> {
    let found = host.find_link(&names(key)[0])?;
    Ok(found.filter(|link| link.kind == KIND && !link_alias::is_of_any(&link.alias)))
}

/// The reference's name, which two interfaces of one container share, and one that is the attachment's own. Both are 15
/// bytes, as long as a name can be.
fn names(key: &Key) -> [String; 2] {
    let name = |text: String| format!("bwp{}", hex(&Sha512::digest(text.as_bytes())[..6]));
    let of_reference = name(format!("{}{}", key.network, key.container_id));
    [of_reference, name(format!("bandwidth {} {} {}", key.network, key.container_id, key.ifname))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_is_the_reference_s_and_the_second_differs_by_every_part_of_the_key() {
        let names_of = |network, id, ifname| names(&Key::parse(network, id, ifname).unwrap());
        let [of_reference, own] = names_of("net1", "cont-a", "eth0");
        assert_eq!(of_reference, "bwpa41e7966de45");
        for (network, id, ifname) in [("net1c", "ont-a", "eth0"), ("net1", "cont-a", "eth1")] {
            let other = names_of(network, id, ifname);
            assert_eq!(other[0], of_reference);
            assert_ne!(other[1], own);
        }
    }
}
