//! Which device it is, by what the container that has it cannot write: neither a name nor the
//! alias, the hardware address or the ifindex tell, because a link of the container's own can have
//! them all.

use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, Netlink};
use crate::net::netns::Netns;
use crate::net::sysfs::{Sysfs, SysfsLink};
use crate::plugin::Context;

/// A device, wherever it is and whatever it is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The inode of its directory in sysfs, which no other link gets. What follows decides only
    /// where sysfs cannot be mounted, see [`Sysfs::open`].
    inode: Option<u64>,
    /// Its kind; empty for hardware.
    kind: String,
    /// The hardware address that it was made with; empty where the kernel does not tell.
    permanent_mac: String,
    /// ifindex of its other end, or of its lower link.
    other_end: Option<u32>,
    /// That one is not on the host.
    other_end_is_elsewhere: bool,
    /// The directory of its hardware below /sys; None where it has none.
    hardware: Option<String>,
    /// Which of the hardware's ports it is.
    port: u32,
}

impl Identity {
    fn new(link: &Link, in_sysfs: Option<SysfsLink>) -> Identity {
        let (inode, hardware, port) =
            in_sysfs.map_or((None, None, 0), |it| (Some(it.inode), it.hardware, it.port));
        Identity {
            inode,
            kind: link.kind.clone(),
            permanent_mac: MacAddr::new(&link.permanent_mac).to_string(),
            other_end: link.lower,
            other_end_is_elsewhere: link.lower_is_elsewhere,
            hardware,
            port,
        }
    }

    /// Whether both are the same device.
    pub fn is_same_as(&self, other: &Identity) -> bool {
        match (self.inode, other.inode) {
            (Some(own), Some(others)) => own == others,
            _ => self.attributes() == other.attributes(),
        }
    }

    /// What no attribute of the link's own can change, in every namespace.
    fn attributes(&self) -> (&str, &str, Option<u32>) {
        (&self.kind, &self.permanent_mac, self.other_end)
    }

    /// Whether the kernel gives it back to the host when its namespace goes; others go with the
    /// namespace (`default_device_exit_net` of net/core/dev.c).
    pub fn returns_by_itself(&self) -> bool {
        self.hardware.is_some() && ["", "can"].contains(&self.kind.as_str())
    }

    /// The kind in messages.
    pub fn kind(&self) -> &str {
        if self.kind.is_empty() { "device" } else { &self.kind }
    }
}

/// The links of one namespace, by what they are.
pub struct Links<'a> {
    netlink: &'a Netlink,
    sysfs: Option<Sysfs>,
}

impl<'a> Links<'a> {
    /// Those of the host.
    pub fn of_host(cx: &'a Context<'_>) -> Result<Links<'a>> {
        Ok(Links { netlink: cx.host()?, sysfs: Sysfs::open()? })
    }

    /// Those of a container.
    pub fn of_netns(netns: &'a Netns) -> Result<Links<'a>> {
        let sysfs = netns.run(Sysfs::open)?;
        Ok(Links { netlink: netns.netlink()?, sysfs })
    }

    /// What changes them.
    pub fn netlink(&self) -> &'a Netlink {
        self.netlink
    }

    /// Which device a link is.
    pub fn identify(&self, link: &Link) -> Result<Identity> {
        let Some(sysfs) = &self.sysfs else { return Ok(Identity::new(link, None)) };
        match sysfs.link(&link.name)? {
            Some(found) if found.index == link.index => Ok(Identity::new(link, Some(found))),
            _ => Err(Error::new(
                Code::TRY_AGAIN,
                format!("look at link {:?}: it moved or got another name", link.name),
            )),
        }
    }

    /// The link that is this device, if it is here. Where there is nothing but its kind to go by,
    /// its alias has to be right.
    pub fn find(&self, identity: &Identity, alias: &str) -> Result<Option<Link>> {
        if let (Some(sysfs), Some(inode)) = (&self.sysfs, identity.inode) {
            let found = sysfs.link_of_inode(inode)?;
            return found.map_or(Ok(None), |found| self.netlink.find_link_by_index(found.index));
        }
        let is_told_by_kind_only =
            identity.permanent_mac.is_empty() && identity.other_end.is_none();
        let is_it = |link: &Link| {
            Identity::new(link, None).attributes() == identity.attributes()
                && (!is_told_by_kind_only || link.alias == alias)
        };
        Ok(self.netlink.links()?.into_iter().find(is_it))
    }

    /// For the host's links: whether it is certain that the device does not exist any more.
    pub fn prove_gone(&self, identity: &Identity) -> Result<bool> {
        match (&identity.hardware, &self.sysfs) {
            (Some(hardware), Some(sysfs)) => match sysfs.links_of_hardware(hardware)? {
                None => Ok(true), // it was taken out of the machine
                Some(names) => self.is_any_a_successor(&names, identity, sysfs),
            },
            (Some(_), None) => Ok(false),
            // A veth goes with its other end, a macvlan with its lower link.
            (None, _) => match identity.other_end.filter(|_| !identity.other_end_is_elsewhere) {
                Some(index) => Ok(self.netlink.find_link_by_index(index)?.is_none()),
                None => Ok(false),
            },
        }
    }

    /// Whether one of these links is what the driver has made of the same port since.
    fn is_any_a_successor(&self, names: &[String], of: &Identity, sysfs: &Sysfs) -> Result<bool> {
        for name in names {
            let (Some(link), Some(found)) = (self.netlink.find_link(name)?, sysfs.link(name)?)
            else {
                continue;
            };
            let now = Identity::new(&link, Some(found));
            if !now.permanent_mac.is_empty()
                && now.permanent_mac == of.permanent_mac
                && now.port == of.port
            {
                return Ok(!now.is_same_as(of));
            }
        }
        Ok(false)
    }
}

/// Whether a process in the container may have made the link: no hardware, and neither an other end
/// nor a lower link in another namespace. A dummy has neither, and leads nowhere.
pub fn may_be_of_container(link: &Link) -> bool {
    let is_from_outside = link.kind.is_empty() || link.kind == "dummy" || link.lower_is_elsewhere;
    !is_from_outside
}
