//! The identity of a device, by properties that its container cannot change. Name, alias, hardware
//! address and ifindex are not enough, because a link that the container creates can have all of
//! them.

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, Netlink};
use crate::net::netns::Netns;
use crate::net::sysfs::{Sysfs, SysfsLink};
use crate::plugin::Context;

/// The identity of a device, in any namespace and under any name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The inode of its directory in sysfs, which is unique to the link. The other fields decide
    /// only if sysfs cannot be mounted, see [`Sysfs::open`].
    inode: Option<u64>,
    /// Its kind; empty for hardware.
    kind: String,
    /// The hardware address that it was made with; empty if the kernel does not report one.
    permanent_mac: String,
    /// The ifindex of its other end, or of its lower link.
    other_end: Option<u32>,
    /// Whether that link is not on the host.
    other_end_is_elsewhere: bool,
    /// The directory of its hardware below /sys; None for a device without hardware.
    hardware: Option<String>,
    /// The number of the hardware's port.
    port: u32,
}

impl Identity {
    fn new(link: &Link, in_sysfs: Option<SysfsLink>) -> Identity {
        Identity {
            inode: in_sysfs.as_ref().map(|it| it.inode),
            kind: link.kind.clone(),
            permanent_mac: MacAddr::new(&link.permanent_mac).to_string(),
            other_end: link.lower,
            other_end_is_elsewhere: link.lower_is_elsewhere(),
            port: in_sysfs.as_ref().map_or(0, |it| it.port),
            hardware: in_sysfs.and_then(|it| it.hardware),
        }
    }

    /// Whether both are the same device.
    pub fn is_same_as(&self, other: &Identity) -> bool {
        match (self.inode, other.inode) {
            (Some(own), Some(others)) => own == others,
            _ => self.attributes() == other.attributes(),
        }
    }

    /// The attributes that nothing can change on the link itself, in any namespace.
    fn attributes(&self) -> (&str, &str, Option<u32>) {
        (&self.kind, &self.permanent_mac, self.other_end)
    }

    /// Whether the attributes do not tell it from another device of its kind.
    fn is_only_a_kind(&self) -> bool {
        self.permanent_mac.is_empty() && self.other_end.is_none()
    }

    /// Whether both are links of one port of the hardware.
    fn is_of_same_port(&self, other: &Identity) -> bool {
        !self.permanent_mac.is_empty()
            && self.permanent_mac == other.permanent_mac
            && self.port == other.port
    }

    /// Whether the kernel returns it to the host when its namespace is deleted; other devices are
    /// deleted with the namespace (`default_device_exit_net` of net/core/dev.c).
    pub fn returns_by_itself(&self) -> bool {
        self.hardware.is_some() && ["", "can"].contains(&self.kind.as_str())
    }

    /// The kind, for messages.
    pub fn kind(&self) -> &str {
        if self.kind.is_empty() { "device" } else { &self.kind }
    }
}

fn moved(link: &Link) -> Error {
    let msg = format!("look at link {:?}: it moved or got another name", link.name);
    Error::new(Code::TRY_AGAIN, msg)
}

/// The links of one namespace, found by identity.
pub struct Links<'a> {
    netlink: &'a Netlink,
    sysfs: Option<Sysfs>,
}

impl<'a> Links<'a> {
    /// The links of the host.
    pub fn of_host(cx: &'a Context<'_>) -> Result<Links<'a>> {
        Ok(Links { netlink: cx.host()?, sysfs: Sysfs::open()? })
    }

    /// The links of a container.
    pub fn of_netns(netns: &'a Netns) -> Result<Links<'a>> {
        let sysfs = netns.run(Sysfs::open)?;
        Ok(Links { netlink: netns.netlink()?, sysfs })
    }

    /// The socket that changes them.
    pub fn netlink(&self) -> &'a Netlink {
        self.netlink
    }

    /// The identity of a link.
    pub fn identify(&self, link: &Link) -> Result<Identity> {
        let Some(sysfs) = &self.sysfs else { return Ok(Identity::new(link, None)) };
        match sysfs.link(&link.name)? {
            Some(found) if found.index == link.index => Ok(Identity::new(link, Some(found))),
            _ => Err(moved(link)),
        }
    }

    /// The link with this identity, if it is in this namespace. If the identity is only a kind, the
    /// alias has to match too.
    pub fn find(&self, identity: &Identity, alias: &str) -> Result<Option<Link>> {
        match (&self.sysfs, identity.inode) {
            (Some(sysfs), Some(inode)) => self.find_by_inode(sysfs, inode),
            _ => self.find_by_attributes(identity, alias),
        }
    }

    fn find_by_inode(&self, sysfs: &Sysfs, inode: u64) -> Result<Option<Link>> {
        match sysfs.link_of_inode(inode)? {
            Some(found) => self.netlink.find_link_by_index(found.index),
            None => Ok(None),
        }
    }

    fn find_by_attributes(&self, identity: &Identity, alias: &str) -> Result<Option<Link>> {
        let mut links = self.netlink.links()?;
        links.retain(|link| Identity::new(link, None).attributes() == identity.attributes());
        if identity.is_only_a_kind() {
            links.retain(|link| link.alias == alias);
        }
        Ok(links.into_iter().next())
    }

    /// For the host's links: whether the device certainly does not exist any more.
    pub fn prove_gone(&self, identity: &Identity) -> Result<bool> {
        let Some(hardware) = &identity.hardware else { return self.prove_other_end_gone(identity) };
        let Some(sysfs) = &self.sysfs else { return Ok(false) };
        match sysfs.links_of_hardware(hardware)? {
            None => Ok(true), // it was removed from the machine
            Some(names) => self.is_any_a_successor(&names, identity, sysfs),
        }
    }

    /// For a device without hardware: a veth is deleted with its other end, a macvlan with its
    /// lower link.
    fn prove_other_end_gone(&self, identity: &Identity) -> Result<bool> {
        match identity.other_end.filter(|_| !identity.other_end_is_elsewhere) {
            Some(index) => Ok(self.netlink.find_link_by_index(index)?.is_none()),
            None => Ok(false),
        }
    }

    /// Whether the driver has since created one of these links for the same port.
    fn is_any_a_successor(&self, names: &[String], of: &Identity, sysfs: &Sysfs) -> Result<bool> {
        for name in names {
            match self.identity_of(name, sysfs)? {
                Some(now) if now.is_of_same_port(of) => return Ok(!now.is_same_as(of)),
                _ => (),
            }
        }
        Ok(false)
    }

    fn identity_of(&self, name: &str, sysfs: &Sysfs) -> Result<Option<Identity>> {
        let link = self.netlink.find_link(name)?;
        let found = sysfs.link(name)?;
        Ok(link.zip(found).map(|(link, found)| Identity::new(&link, Some(found))))
    }
}

/// Whether a process in the container may have created the link: it has no hardware, and neither
/// its other end nor its lower link is in another namespace. A dummy has neither end nor lower
/// link, but counts as one of the host's: it leads nowhere.
pub fn may_be_of_container(link: &Link) -> bool {
    let is_from_outside = link.kind.is_empty() || link.kind == "dummy" || link.lower_is_elsewhere();
    !is_from_outside
}
