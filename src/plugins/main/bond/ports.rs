//! The links of a bond: they are found, come into the container, and become its ports.

use std::fmt;

use super::conf::Conf;
use super::returning::{self, Kept, Own};
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::plugin::{Attachment, Context, Detachment};
use crate::rollback::Rollback;
use crate::steps::moved_link::{self, Identity, Lent, Links};

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
        let is_inside = self.conf.links_in_container;
        let place = if is_inside { at.netlink()? } else { cx.host()? };
        let link = place.find_link(self.name)?.ok_or_else(|| self.not_found())?;
        if link.master.is_some() {
            return Err(self.has_master());
        }
        if !is_inside {
            self.require_free_name(at.netlink()?, &link)?;
        }
        Ok(link)
    }

    /// The device keeps its name in the container.
    fn require_free_name(&self, container: &Netlink, device: &Link) -> Result<()> {
        match container.find_link(&device.name)? {
            Some(other) => Err(self.name_taken(&other)),
            None => Ok(()),
        }
    }

    fn name_taken(&self, by: &Link) -> Error {
        let msg = format!(
            "failed to move link interface to container netns {:?}: file exists",
            self.name
        );
        Error::new(Code::CONFLICT, self.moving(&msg)).with_details(format_args!(
            "links[{}].name: the container has a {} of this name, with address {}; rename one of the two",
            self.index,
            by.kind_text(),
            by.mac()
        ))
    }

    fn not_found(&self) -> Error {
        let name = self.name;
        let mistake = self
            .mistake(format_args!("is not a link of the {}", self.place()))
            .expecting("the name of one");
        if self.conf.links_in_container {
            return mistake.saying(format_args!(
                "failed to confirm that link ({name}) exists, error: Link not found"
            ));
        }
        let why = format!("failed to lookup link interface {name:?}: Link not found");
        mistake
            .with_details("a link that is in a container already is not on the host")
            .saying(self.moving(&why))
    }

    /// A link leaves its bridge, bond or VRF when it moves, and would not come back to it.
    fn has_master(&self) -> Error {
        self.mistake("is a port of another link")
            .expecting("a link without a master: take it out of its bridge, bond or VRF first")
    }

    fn place(&self) -> &'static str {
        if self.conf.links_in_container { "container" } else { "host" }
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
        keep_own(cx, at, links, rb)?;
        return Ok(links.to_vec());
    }
    let moving = Moving::of(cx, links)?;
    record(cx, at, &moving.kept()?, rb)?;
    moving.all(at)
}

/// Records links of the container.
fn keep_own<'a>(
    cx: &'a Context<'_>,
    at: &'a Attachment,
    links: &[Link],
    rb: &mut Rollback<'a>,
) -> Result<()> {
    let container = at.netlink()?;
    let own: Result<_> = links.iter().map(|link| Own::of(container, link)).collect();
    record(cx, at, &Kept { own: own?, ..Kept::default() }, rb)
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

/// Devices of the host that move into a container.
struct Moving<'a> {
    host: Links<'a>,
    devices: Vec<(Link, Identity)>,
}

impl<'a> Moving<'a> {
    fn of(cx: &'a Context<'_>, links: &[Link]) -> Result<Moving<'a>> {
        let host = Links::of_host(cx)?;
        let mut devices = vec![];
        for link in links {
            let identity = host.identify(link)?;
            let device = moved_link::settle_returned(host.netlink(), link.clone(), &identity)?;
            devices.push((device, identity));
        }
        Ok(Moving { host, devices })
    }

    fn kept(&self) -> Result<Kept> {
        let of_device = |(device, identity): &(Link, Identity)| {
            Lent::of(self.host.netlink(), device, identity.clone())
        };
        let devices: Result<_> = self.devices.iter().map(of_device).collect();
        Ok(Kept { devices: devices?, ..Kept::default() })
    }

    fn all(&self, at: &Attachment) -> Result<Vec<Link>> {
        self.devices.iter().map(|(device, identity)| self.one(at, device, identity)).collect()
    }

    fn one(&self, at: &Attachment, device: &Link, identity: &Identity) -> Result<Link> {
        let moved = moved_link::move_in(self.host.netlink(), at.netns()?, device, &device.name);
        moved.map_err(|e| {
            e.worded(format_args!(
                "failed to move link interface to container netns {:?}",
                device.name
            ))
        })?;
        moved_link::forget_others(identity, returning::RECORDS, &at.key)?;
        at.netlink()?.link(&device.name)
    }
}

/// Makes the links ports of the bond.
pub fn enslave(at: &Attachment, bond: &Link, links: &[Link]) -> Result<()> {
    let container = at.netlink()?;
    for (index, link) in links.iter().enumerate() {
        let is_double = links[..index].iter().any(|other| other.mac == link.mac);
        let port = Port { container, link, is_double };
        port.join(bond).map_err(|e| e.context(format_args!("bond {:?}", link.name)))?;
    }
    Ok(())
}

/// A link that becomes a port.
struct Port<'a> {
    container: &'a Netlink,
    link: &'a Link,
    /// Whether a port before it has its hardware address.
    is_double: bool,
}

impl Port<'_> {
    fn join(&self, bond: &Link) -> Result<()> {
        // The kernel enslaves only links that are down.
        if self.link.up {
            self.change(LinkChange { up: Some(false), ..LinkChange::default() })?;
        }
        if self.is_double {
            self.change(LinkChange { mac: Some(MacAddr::random()), ..LinkChange::default() })?;
        }
        // The kernel sets its ports up.
        self.change(LinkChange { master: Some(bond.index), ..LinkChange::default() })
    }

    fn change(&self, change: LinkChange<'_>) -> Result<()> {
        self.container.change_link(self.link, &change)
    }
}
