//! A link that is entirely in the container: macvlan, ipvlan, vlan, dummy, tap. No part of it is on
//! the host, so it disappears with the container's namespace at the latest.
//!
//! A link that must be created from the host may have a final name that is taken on the host, and
//! kernels before 6.13 refuse that. So it is created with a temporary name, which belongs to the
//! attachment as well.

use std::cell::Cell;
use std::rc::Rc;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Interface};
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netlink::{Link, LinkChange, LinkSpec, Netlink};
use crate::plugin::{Attachment, Context, Detachment};
use crate::rollback::Rollback;
use crate::steps::addresses::{self, DuplicateDetection, Wiring};
use crate::steps::ipam::{self, Ipam};
use crate::steps::link_record::{self, PluginLinks};
use crate::steps::{link_alias, prev_result};

/// The namespace that a link's lower link is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Birthplace {
    /// The host's.
    Host,
    /// The container's.
    Container,
}

/// Creates the link, down, with the name in CNI_IFNAME.
pub fn create<'a>(
    cx: &'a Context<'_>,
    at: &'a Attachment,
    links: PluginLinks,
    birthplace: Birthplace,
    spec: &LinkSpec,
    rb: &mut Rollback<'a>,
) -> Result<Link> {
    require_free_name(at)?;
    links.forget(at)?;
    let (netlink, netns, born_as) = match birthplace {
        Birthplace::Host => {
            (cx.host()?, Some(at.netns()?.fd()), link_record::passing_name(&at.key))
        }
        Birthplace::Container => (at.netlink()?, None, at.ifname().to_owned()),
    };
    if birthplace == Birthplace::Host
        && let Some(leftover) = links.find_leftover(&at.key, at.netns()?, &at.netns_path)?
    {
        link_record::delete_link(at.netlink()?, leftover.index)?;
    }
    let created = netlink.create_link(&born_as, netns, spec);
    let what = format_args!("failed to create {}", spec.kind.name());
    created.map_err(|e| with_lower_link(netlink, spec, e.worded(what)))?;
    own(at, links, born_as, rb)
}

/// Gives a link that was just created its name and our alias, and records which link it is.
pub fn own<'a>(
    at: &'a Attachment,
    links: PluginLinks,
    born_as: String,
    rb: &mut Rollback<'a>,
) -> Result<Link> {
    let container = at.netlink()?;
    let index = undo_creation(container, born_as.clone(), rb);
    let born = container.link(&born_as)?;
    index.set(Some(born.index));
    let name = Some(at.ifname()).filter(|name| *name != born.name);
    let alias = link_alias::of(&at.key);
    container
        .change_link(&born, &LinkChange { name, alias: Some(&alias), ..LinkChange::default() })?;
    links.remember(at, &born, rb)?;
    Ok(Link { name: at.ifname().to_owned(), alias, ..born })
}

/// Registers the undo of a link that was just created. It deletes by ifindex once the caller has
/// put that into the returned cell, and by name before.
fn undo_creation<'a>(
    container: &'a Netlink,
    born_as: String,
    rb: &mut Rollback<'a>,
) -> Rc<Cell<Option<u32>>> {
    let index = Rc::new(Cell::new(None));
    let known = Rc::clone(&index);
    let what = format!("delete link {born_as:?}");
    rb.undo(what, move || match known.get() {
        Some(index) => link_record::delete_link(container, index),
        None => container.delete_link_by_name(&born_as),
    });
    index
}

/// Adds the lower link's name to the error: the kernel often refuses a link because of what is
/// already on its lower link.
fn with_lower_link(netlink: &Netlink, spec: &LinkSpec, error: Error) -> Error {
    match spec.lower.map(|index| netlink.find_link_by_index(index)) {
        Some(Ok(Some(lower))) => error.with_details(format_args!("on link {:?}", lower.name)),
        _ => error,
    }
}

/// Requires CNI_IFNAME to be a free name that a new interface of the container can have; called
/// before any change.
pub fn require_free_name(at: &Attachment) -> Result<()> {
    refuse_pattern(at)?;
    refuse_taken_name(at.netlink()?, at.ifname())
}

/// Refuses a name that is a pattern: the kernel would choose a name for it.
pub fn refuse_pattern(at: &Attachment) -> Result<()> {
    if at.key.ifname.is_pattern() {
        Err(Error::new(
            Code::INVALID_ENVIRONMENT,
            format!(
                "CNI_IFNAME: {:?} is a pattern, expected the name of an interface without % and NUL",
                at.ifname()
            ),
        ))
    } else {
        Ok(())
    }
}

/// Refuses a name that an interface of the container already has: such an interface is never taken
/// over.
pub fn refuse_taken_name(container: &Netlink, ifname: &str) -> Result<()> {
    match container.find_link(ifname)? {
        None => Ok(()),
        Some(link) => Err(Error::new(
            Code::CONFLICT,
            format!("interface {ifname:?} exists in the container already"),
        )
        .with_details(format_args!(
            "it is a {} with address {}",
            if link.kind.is_empty() { "device" } else { &link.kind },
            link.mac()
        ))),
    }
}

/// The interface entry of the result; it is always the first.
pub fn interface(link: &Link, at: &Attachment) -> Interface {
    let name = link.name.clone();
    let mac = link.mac().to_string();
    Interface { name, mac, sandbox: at.netns_path.clone(), ..Interface::default() }
}

/// Sets the link up, with the addresses of the IPAM plugin or, on layer 2, without any. Returns a
/// result with this one interface.
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
            at.netlink()?
                .change_link(link, &LinkChange { up: Some(true), ..LinkChange::default() })?;
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
    addresses::configure(
        cx,
        at,
        &result,
        &Wiring { detection, subnet_on_link: true, routes_first: vec![] },
    )?;
    Ok(result)
}

/// Compares the container's interface with prevResult: kind, hardware address, addresses and
/// routes.
pub fn verify(cx: &Context<'_>, at: &Attachment, kind: Option<&str>) -> Result<Link> {
    let result = prev_result::require(cx)?;
    let (index, interface) = prev_result::container_interface(&result, at)?;
    let link = prev_result::verify_link(at.netlink()?, interface, kind)?;
    if !result.ips.is_empty() || !result.routes.is_empty() {
        addresses::verify(at, &link, &result, index)?;
    }
    Ok(link)
}

/// DEL of a plugin that creates nothing but such a link: deletes the link and releases its
/// addresses.
pub fn detach(cx: &Context<'_>, at: &Detachment, links: PluginLinks) -> Result<()> {
    ipam::del_with_link(cx, at, &mut || links.delete(at))
}

/// GC of such a plugin: releases addresses and removes records of links.
pub fn collect_garbage(
    cx: &Context<'_>,
    valid: &ValidAttachments,
    links: PluginLinks,
) -> Result<()> {
    let mut errors = ErrorList::default();
    errors.push(ipam::gc_if_any(cx, valid));
    errors.push(links.collect_garbage(cx, valid));
    errors.finish()
}
