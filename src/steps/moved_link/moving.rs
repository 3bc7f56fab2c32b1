//! The move of a device between the host and a container.

use std::fmt;

use super::identity::{Identity, Links};
use crate::error::{Code, Error, Result};
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::net::netns::Netns;
use crate::steps::link_record;

/// Kinds of links that stay on their lower link when it moves to another namespace, and send and
/// receive there.
const UPPER_KINDS: [&str; 6] = ["macvlan", "macvtap", "ipvlan", "ipvtap", "vlan", "macsec"];

/// How often a move is tried while processes in the container set names on the device that conflict
/// with names on the host.
const MOVE_TRIES: usize = 5;

/// The names that a device gets with a move.
pub struct Naming<'a> {
    /// Its name in the other namespace.
    pub name: &'a str,
    /// Its alias there.
    pub alias: &'a str,
}

impl Naming<'_> {
    /// The move.
    fn in_netns(&self, netns: &Netns) -> LinkChange<'_> {
        LinkChange {
            netns: Some(netns.fd()),
            name: Some(self.name),
            alias: Some(self.alias),
            ..LinkChange::default()
        }
    }
}

/// Moves a device of the host into the container, where it is down and has this name. Its alias
/// there is its name on the host.
pub fn move_in(host: &Netlink, netns: &Netns, device: &Link, name: &str) -> Result<()> {
    let naming = Naming { name, alias: &device.name };
    host.change_link(device, &naming.in_netns(netns))
}

/// Moves the device of a record to the host.
pub(super) fn bring(
    host: &Links<'_>,
    netns: &Netns,
    link: &Link,
    name: &str,
    identity: &Identity,
) -> Result<Link> {
    // The alias marks a device whose state is not restored yet.
    let moved = move_out(host, netns, link, &Naming { name, alias: name })?;
    match host.find(identity, name)? {
        Some(device) if device.index == moved.index => Ok(device),
        _ => Err(send_back(host, netns, &moved)),
    }
}

/// Moves a device without a record to the host.
pub fn bring_unrecorded(
    host: &Links<'_>,
    netns: &Netns,
    link: &Link,
    naming: &Naming<'_>,
    identity: &Identity,
) -> Result<()> {
    let device = move_out(host, netns, link, naming)?;
    if host.identify(&device)?.is_same_as(identity) {
        Ok(())
    } else {
        Err(send_back(host, netns, &device))
    }
}

/// Moves a link from the container to the host, without the altnames and the upper links that the
/// container added; returns the link on the host.
fn move_out(host: &Links<'_>, netns: &Netns, link: &Link, naming: &Naming<'_>) -> Result<Link> {
    refuse_taken_name(host.netlink(), link, naming.name)?;
    let container = netns.netlink()?;
    // The links on top of the device would continue to send and receive through it on the host.
    for upper in container.links()? {
        if upper.lower == Some(link.index)
            && !upper.lower_is_elsewhere()
            && UPPER_KINDS.contains(&upper.kind.as_str())
        {
            link_record::delete_link(container, upper.index)?;
        }
    }
    let here = Netns::current()?;
    let change = naming.in_netns(&here);
    for tries_left in (0..MOVE_TRIES).rev() {
        drop_alternative_names(container, link)?;
        match container.change_link(link, &change) {
            // The container has just added a conflicting name.
            Err(e) if e.is_exists() && tries_left > 0 => (),
            moved => {
                moved?;
                break;
            }
        }
    }
    host.netlink().link(naming.name)
}

/// Fails if the host has another link with the device's name.
fn refuse_taken_name(host: &Netlink, link: &Link, name: &str) -> Result<()> {
    match host.find_link(name)? {
        Some(other) if other.index != link.index || other.name != link.name => {
            let why = format_args!("the host has another link named {name:?}");
            Err(unmoved(Code::CONFLICT, &link.name, why)
                .with_details("it stays in the container; rename the other link"))
        }
        _ => Ok(()),
    }
}

pub(super) fn unmoved(code: Code, name: &str, why: impl fmt::Display) -> Error {
    Error::new(code, format!("move {name:?} back to the host: {why}"))
}

/// Removes altnames: they could prevent the move or come along to the host. The altnames that the
/// device had on the host are in its record.
fn drop_alternative_names(namespace: &Netlink, link: &Link) -> Result<()> {
    let Some(link) = namespace.find_link_by_index(link.index)? else { return Ok(()) };
    link.alternative_names
        .iter()
        .try_for_each(|name| namespace.delete_alternative_name(&link, name))
}

/// Sends back a link that arrived in the device's place: the container exchanged the two, with the
/// same ifindex, during the move.
fn send_back(host: &Links<'_>, netns: &Netns, arrived: &Link) -> Error {
    let error = unmoved(Code::TRY_AGAIN, &arrived.name, "another link arrived");
    let back = LinkChange { netns: Some(netns.fd()), ..LinkChange::default() };
    error.with_details(match host.netlink().change_link(arrived, &back) {
        Ok(()) => "it is in the container again; the container exchanged the two".to_owned(),
        Err(e) => format!("it is on the host: {}", e.msg),
    })
}

/// Gives a device on the host its name back.
pub(super) fn rename(host: &Netlink, link: &Link, name: &str) -> Result<()> {
    drop_alternative_names(host, link)?;
    refuse_taken_name(host, link, name)?;
    host.change_link(link, &LinkChange { name: Some(name), ..LinkChange::default() })
}
