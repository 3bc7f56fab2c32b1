//! The links of a bond: they are found, come into the container, and become its ports.

use std::fmt;

use super::conf::Conf;
use super::returning::{self, Kept, Own};
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, LinkChange};
use crate::plugin::{Attachment, Context, Detachment};
use crate::rollback::Rollback;
use crate::steps::moved_link::{self, Links, MovedDevice};

/// Finds the links of the configuration, on the host or in the container. Changes nothing.
pub fn find(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<Vec<Link>> {
    let mut links: Vec<Link> = vec![];
    for (index, name) in conf.names().enumerate() {
        let wanted = Wanted { conf, index, name };
        let link = wanted.find(cx, at)?;
        if let Some(first) = links.iter().position(|other| other.index == link.index) {
            return Err(wanted.mistake(format_args!("is links[{first}] as well")));
        }
        links.push(link);
    }
    Ok(links)
}

/// A link of the configuration.
struct Wanted<'a> {
    conf: &'a Conf,
    index: usize,
    name: &'a str,
}

impl Wanted<'_> {
    fn find(&self, cx: &Context<'_>, at: &Attachment) -> Result<Link> {
        let name = self.name;
        if self.conf.links_in_container {
            let link = at.netlink()?.find_link(name)?.ok_or_else(|| {
                self.not_a_link_of("container").saying(format_args!(
                    "failed to confirm that link ({name}) exists, error: Link not found"
                ))
            })?;
            return self.require_no_master(link);
        }
        let link = cx.host()?.find_link(name)?.ok_or_else(|| {
            let why = format!("failed to lookup link interface {name:?}: Link not found");
            self.not_a_link_of("host")
                .with_details("a link that is in a container already is not on the host")
                .saying(self.moving(&why))
        })?;
        let link = self.require_no_master(link)?;
        // The device keeps its name in the container.
        let Some(other) = at.netlink()?.find_link(&link.name)? else { return Ok(link) };
        let why = format!("failed to move link interface to container netns {name:?}: file exists");
        Err(Error::new(Code::CONFLICT, self.moving(&why)).with_details(format_args!(
            "links[{}].name: the container has a {} of this name, with address {}; rename one of the two",
            self.index,
            other.kind_text(),
            other.mac()
        )))
    }

    /// A link leaves its bridge, bond or VRF when it moves, and would not come back to it.
    fn require_no_master(&self, link: Link) -> Result<Link> {
        if link.master.is_none() {
            return Ok(link);
        }
        Err(self
            .mistake("is a port of another link")
            .expecting("a link without a master: take it out of its bridge, bond or VRF first"))
    }

    fn not_a_link_of(&self, place: &str) -> Error {
        self.mistake(format_args!("is not a link of the {place}")).expecting("the name of one")
    }

    fn mistake(&self, problem: impl fmt::Display) -> Error {
        let path = format!("links[{}].name", self.index);
        Error::config(path, format_args!("{:?} {problem}", self.name))
    }

    /// The original's sentence for links that cannot be moved.
    fn moving(&self, why: &str) -> String {
        let links: Vec<String> =
            self.conf.names().map(|name| format!("map[name:{name}]")).collect();
        format!(
            "failed to move the links ([{}]) in container network namespace, error: {why}",
            links.join(" ")
        )
    }
}

/// Records the links and moves those of the host into the container; returns them as they are
/// there. DEL, or the undo, puts them back.
pub fn take<'a>(
    cx: &'a Context<'_>,
    conf: &Conf,
    at: &'a Attachment,
    links: &[Link],
    rb: &mut Rollback<'a>,
) -> Result<Vec<Link>> {
    if conf.links_in_container {
        let container = at.netlink()?;
        let own = links.iter().map(|link| Own::of(container, link)).collect::<Result<_>>()?;
        record(cx, at, &Kept { own, ..Kept::default() }, rb)?;
        return Ok(links.to_vec());
    }
    let host = Links::of_host(cx)?;
    let mut devices = vec![];
    for link in links {
        let identity = host.identify(link)?;
        let device = moved_link::settle_returned(host.netlink(), link.clone(), &identity)?;
        let state = MovedDevice::of(host.netlink(), &device, identity)?;
        devices.push((device, state));
    }
    let states = devices.iter().map(|(_, state)| state.clone()).collect();
    record(cx, at, &Kept { devices: states, ..Kept::default() }, rb)?;
    let mut moved = vec![];
    for (device, state) in devices {
        let name = &device.name;
        moved_link::move_in(host.netlink(), at.netns()?, &device, name).map_err(|e| {
            e.worded(format_args!("failed to move link interface to container netns {name:?}"))
        })?;
        moved_link::forget_others(&state.identity, returning::RECORDS, &at.key)?;
        moved.push(at.netlink()?.link(name)?);
    }
    Ok(moved)
}

/// Writes the record before anything moves, with the undo for all of it.
fn record<'a>(
    cx: &'a Context<'_>,
    at: &'a Attachment,
    kept: &Kept,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    returning::records().write(at, kept)?;
    rb.undo("give the links back", move || returning::leave_recorded(cx, &Detachment::from(at)));
    Ok(())
}

/// Makes the links ports of the bond.
pub fn enslave(at: &Attachment, bond: &Link, links: &[Link]) -> Result<()> {
    let container = at.netlink()?;
    for (index, link) in links.iter().enumerate() {
        let mut changes = vec![];
        // The kernel enslaves only links that are down.
        if link.up {
            changes.push(LinkChange { up: Some(false), ..LinkChange::default() });
        }
        let is_double = links[..index].iter().any(|other| other.mac == link.mac);
        if is_double {
            changes.push(LinkChange { mac: Some(MacAddr::random()), ..LinkChange::default() });
        }
        // The kernel sets its ports up.
        changes.push(LinkChange { master: Some(bond.index), ..LinkChange::default() });
        let mut changes = changes.iter();
        changes
            .try_for_each(|change| container.change_link(link, change))
            .map_err(|e| e.context(format_args!("bond {:?}", link.name)))?;
    }
    Ok(())
}
