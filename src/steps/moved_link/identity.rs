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
            _ => {
                let msg = format!("look at link {:?}: it moved or got another name", link.name);
                Err(Error::new(Code::TRY_AGAIN, msg))
            }
        }
    }

    /// The link with this identity, if it is in this namespace. If the identity is only a kind, the
    /// alias has to match too.
    pub fn find(&self, identity: &Identity, alias: &str) -> Result<Option<Link>> {
        if let (Some(sysfs), Some(inode)) = (&self.sysfs, identity.inode) {
            let Some(found) = sysfs.link_of_inode(inode)? else { return Ok(None) };
            return self.netlink.find_link_by_index(found.index);
        }
        let is_only_a_kind = identity.permanent_mac.is_empty() && identity.other_end.is_none();
        let is_it = |link: &Link| {
            Identity::new(link, None).attributes() == identity.attributes()
                && (!is_only_a_kind || link.alias == alias)
        };
        Ok(self.netlink.links()?.into_iter().find(is_it))
    }

    /// For the host's links: whether the device certainly does not exist any more.
    pub fn prove_gone(&self, identity: &Identity) -> Result<bool> {
        let Some(hardware) = &identity.hardware else {
            // A veth is deleted with its other end, a macvlan with its lower link.
            return match identity.other_end.filter(|_| !identity.other_end_is_elsewhere) {
                Some(index) => Ok(self.netlink.find_link_by_index(index)?.is_none()),
                None => Ok(false),
            };
        };
        let Some(sysfs) = &self.sysfs else { return Ok(false) };
        let Some(names) = sysfs.links_of_hardware(hardware)? else {
            return Ok(true); // it was removed from the machine
        };
        // The driver may have created another link for the same port since.
        for name in &names {
            let Some(link) = self.netlink.find_link(name)? else { continue };
            let Some(found) = sysfs.link(name)? else { continue };
            let now = Identity::new(&link, Some(found));
            let is_of_same_port = !now.permanent_mac.is_empty()
                && now.permanent_mac == identity.permanent_mac
                && now.port == identity.port;
            if is_of_same_port {
                return Ok(!now.is_same_as(identity));
            }
        }
        Ok(false)
    }
}

/// Whether a process in the container may have created the link: it has no hardware, and neither
/// its other end nor its lower link is in another namespace. A dummy has neither end nor lower
/// link, but counts as one of the host's: it leads nowhere.
pub fn may_be_of_container(link: &Link) -> bool {
    let is_from_outside = link.kind.is_empty() || link.kind == "dummy" || link.lower_is_elsewhere();
    !is_from_outside
}
