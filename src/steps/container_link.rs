//! A link that is in the container as a whole: macvlan, ipvlan, vlan, dummy, tap. Nothing of it is on the host, so it goes
//! with the container's namespace at the latest.
//!
//! Where a link has to be born from the host, the name that it will have in the container may be taken on the host, and
//! kernels before 6.13 refuse that. So it is born with a passing name, which belongs to the attachment as well.

use crate::cni::attachment::{Key, hex};
use crate::cni::result::{AddResult, Interface};
use crate::error::{Code, Error, Result};
use crate::net::netlink::{Link, LinkChange, LinkSpec, Netlink};
use crate::plugin::{Attachment, Context, Detachment};
use crate::rollback::Rollback;
use crate::steps::addresses::{self, DuplicateDetection, Wiring};
use crate::steps::ipam::{self, Ipam};
use crate::steps::{link_alias, prev_result};

/// The namespace that a link's lower link is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Birthplace {
    /// The host's.
    Host,
    /// The container's.
    Container,
}

/// Makes the link, down, with the name that CNI_IFNAME says.
pub fn create<'a>(
    cx: &'a Context<'_>,
    at: &'a Attachment,
    birthplace: Birthplace,
    spec: &LinkSpec,
    rb: &mut Rollback<'a>,
) -> Result<Link> {
    let container = at.netlink()?;
    require_free_name(at)?;
    let (netlink, netns, born_as) = match birthplace {
        Birthplace::Host => (cx.host()?, Some(at.netns()?.fd()), passing_name(&at.key)),
        Birthplace::Container => (container, None, at.ifname().to_owned()),
    };
    if birthplace == Birthplace::Host {
        container.delete_link_by_name(&born_as)?; // an ADD of this attachment that was killed left it
    }
    netlink.create_link(&born_as, netns, spec).map_err(|e| with_lower_link(netlink, spec, e))?;
    let kind = spec.kind.name();
    rb.undo(format_args!("delete link {:?}", at.ifname()), move || delete_in(container, &at.key, kind));
    own(at, container.link(&born_as)?)
}

/// The kernel refuses many a link for what is on its lower link already, so the error says which one that is.
fn with_lower_link(netlink: &Netlink, spec: &LinkSpec, error: Error) -> Error {
    match spec.lower.map(|index| netlink.find_link_by_index(index)) {
        Some(Ok(Some(lower))) => error.with_details(format_args!("on link {:?}", lower.name)),
        _ => error,
    }
}

/// Gives a link that was just made its name and our alias.
pub fn own(at: &Attachment, born: Link) -> Result<Link> {
    let name = Some(at.ifname()).filter(|name| *name != born.name);
    let alias = link_alias::of(&at.key);
    at.netlink()?.change_link(&born, &LinkChange { name, alias: Some(&alias), ..LinkChange::default() })?;
    Ok(Link { name: at.ifname().to_owned(), alias, ..born })
}

/// Before anything is made: CNI_IFNAME is a name that a new interface of the container can have.
pub fn require_free_name(at: &Attachment) -> Result<()> {
    refuse_pattern(at)?;
    refuse_taken_name(at.netlink()?, at.ifname())
}

/// The kernel would make up a name.
pub fn refuse_pattern(at: &Attachment) -> Result<()> {
    match at.key.ifname.is_pattern() {
        true => Err(Error::new(
            Code::INVALID_ENVIRONMENT,
            format!("CNI_IFNAME: {:?} is a pattern, expected the name of an interface without % and NUL", at.ifname()),
        )),
        false => Ok(()),
    }
}

/// An interface that the container has already is never taken over.
pub fn refuse_taken_name(container: &Netlink, ifname: &str) -> Result<()> {
    match container.find_link(ifname)? {
        None => Ok(()),
        Some(link) => Err(Error::new(Code::CONFLICT, format!("interface {ifname:?} exists in the container already"))
            .with_details(format_args!(
                "it is a {} with address {}",
                if link.kind.is_empty() { "device" } else { &link.kind },
                link.mac()
            ))),
    }
}

/// `cni` and eleven hex digits.
fn passing_name(key: &Key) -> String {
    format!("cni{}", &hex(&key.attachment_hash())[..11])
}

/// The interface in a result, always the first.
pub fn interface(link: &Link, at: &Attachment) -> Interface {
    let (name, mac) = (link.name.clone(), link.mac().to_string());
    Interface { name, mac, sandbox: at.netns_path.clone(), ..Interface::default() }
}

/// Sets the link up: with the addresses of the IPAM plugin, or without any on layer 2. The result has this one interface.
pub fn set_up<'a>(
    at: &'a Attachment,
    link: &Link,
    ipam: Option<&Ipam<'a>>,
    detection: DuplicateDetection,
    rb: &mut Rollback<'a>,
) -> Result<AddResult> {
    match ipam {
        Some(ipam) => configure(ipam.context(), at, link, ipam.add(at, rb)?, detection),
        None => {
            at.netlink()?.change_link(link, &LinkChange { up: Some(true), ..LinkChange::default() })?;
            Ok(AddResult { interfaces: vec![interface(link, at)], ..AddResult::default() })
        }
    }
}

/// Sets the link up with these addresses and routes.
pub fn configure(
    cx: &Context<'_>,
    at: &Attachment,
    link: &Link,
    mut result: AddResult,
    detection: DuplicateDetection,
) -> Result<AddResult> {
    result.interfaces = vec![interface(link, at)];
    result.ips.iter_mut().for_each(|ip| ip.interface = Some(0));
    addresses::configure(cx, at, &result, &Wiring { detection, subnet_on_link: true, routes_first: vec![] })?;
    Ok(result)
}

/// Compares the container's interface with prevResult: kind, hardware address, addresses and routes.
pub fn verify(cx: &Context<'_>, at: &Attachment, kind: Option<&str>) -> Result<Link> {
    let result = prev_result::require(cx)?;
    let (index, interface) = prev_result::container_interface(&result, at)?;
    let link = prev_result::verify_link(at.netlink()?, interface, kind)?;
    if !result.ips.is_empty() || !result.routes.is_empty() {
        addresses::verify(at, &link, &result, index)?;
    }
    Ok(link)
}

/// DEL of a plugin that makes nothing but such a link: the link and its addresses.
pub fn detach(cx: &Context<'_>, at: &Detachment, kind: &str) -> Result<()> {
    ipam::del_with_link(cx, at, &mut || delete(at, kind))
}

/// Removes the link of an attachment. One of another kind or of another attachment has nothing but its name.
fn delete(at: &Detachment, kind: &str) -> Result<()> {
    match &at.netns {
        Some(netns) => delete_in(netns.netlink()?, &at.key, kind),
        None => Ok(()), // it went with the namespace
    }
}

fn delete_in(container: &Netlink, key: &Key, kind: &str) -> Result<()> {
    container.delete_link_by_name(&passing_name(key))?;
    let link = match container.find_link(key.ifname.as_str())? {
        Some(link) if link.kind == kind && may_be_of(&link, key) => Some(link),
        // The container's own tools may have given it another name.
        _ => container.links_of_kind(kind)?.into_iter().find(|link| link_alias::is_of(&link.alias, key)),
    };
    link.map_or(Ok(()), |link| container.delete_link_by_name(&link.name))
}

/// The reference writes no alias.
fn may_be_of(link: &Link, key: &Key) -> bool {
    !link_alias::is_of_any(&link.alias) || link_alias::is_of(&link.alias, key)
}
