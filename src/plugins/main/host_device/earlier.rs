//! Devices without a record that identifies them: records of earlier versions do not, and the
//! reference keeps none. Name and alias decide.

use super::passage::records;
use crate::cni::attachment::{IfName, Key};
use crate::error::Result;
use crate::net::netlink::{Link, Netlink};
use crate::net::netns::Netns;
use crate::plugin::Context;
use crate::steps::moved_link::{
    self, Belongings, Links, Naming, RecordedAt, may_be_of_container, settle_unfinished,
};
use crate::steps::records::{Found, Site};
use crate::steps::{link_alias, link_record};

/// The return of the device of an earlier version's record to the host.
pub struct EarlierReturn<'a> {
    pub host: &'a Links<'a>,
    pub found: &'a Found<Belongings>,
    /// Where it is recorded.
    pub at: RecordedAt<'a>,
    /// The namespace of its ADD, if that can be reached.
    pub netns: Option<&'a Netns>,
}

impl EarlierReturn<'_> {
    /// Returns the device from the container, or finishes its return if it is on the host already.
    pub fn run(&self) -> Result<()> {
        let kept = &self.found.kept;
        if let Some(netns) = self.find_own_netns()?
            && let Some(link) = self.find_inside(netns.netlink()?)?
        {
            return moved_link::bring_and_restore(self.host, netns, &link, kept);
        }
        match self.find_returned()? {
            Some(link) => settle_unfinished(self.host.netlink(), link, kept).map(drop),
            None => self.require_name_on_host(),
        }
    }

    /// The namespace, unless a newer record is for it: such a record does not say which namespace
    /// was at its path, and that may be another container's by now.
    fn find_own_netns(&self) -> Result<Option<&Netns>> {
        match self.netns {
            Some(netns) if is_youngest_in(netns, self.found)? => Ok(Some(netns)),
            _ => Ok(None),
        }
    }

    fn find_inside(&self, container: &Netlink) -> Result<Option<Link>> {
        let renamed = find_by_alias(container, &self.found.key)?;
        match renamed.filter(|link| link.alias == self.found.kept.device) {
            Some(link) => Ok(Some(link)),
            None => self.find_stray(container),
        }
    }

    /// The device under its own name: the kernel may have moved the link before it refused the new
    /// name.
    fn find_stray(&self, container: &Netlink) -> Result<Option<Link>> {
        let Belongings { device, mac, .. } = &self.found.kept;
        let stray = container.find_link(device)?.filter(|link| !may_be_of_container(link));
        Ok(stray.filter(|link| link.mac().to_string() == *mac))
    }

    /// The device if it is already on the host: it still has its name in the container, and its
    /// alias. If a killed DEL moved it, it already has its own name.
    fn find_returned(&self) -> Result<Option<Link>> {
        let host = self.host.netlink();
        let device = &self.found.kept.device;
        let link = match host.find_link(device)? {
            Some(link) => Some(link),
            None => host.find_link(self.found.key.ifname.as_str())?,
        };
        Ok(link.filter(|link| link.alias == *device))
    }

    /// For a device that is neither in its namespace nor on the host.
    fn require_name_on_host(&self) -> Result<()> {
        let kept = &self.found.kept;
        match self.find_own_netns()? {
            Some(netns) if self.host.netlink().find_link(&kept.device)?.is_none() => {
                Err(moved_link::missing_inside(self.at, kept, netns, "link")?)
            }
            _ => Ok(()),
        }
    }
}

/// Whether this is the newest record for the namespace.
fn is_youngest_in(netns: &Netns, found: &Found<Belongings>) -> Result<bool> {
    let written = records().written(&found.key)?;
    for other in of_other_containers(netns, found)? {
        if records().written(&other.key)? > written {
            return Ok(false);
        }
    }
    Ok(true)
}

fn of_other_containers(netns: &Netns, found: &Found<Belongings>) -> Result<Vec<Found<Belongings>>> {
    let site = Site { key: &found.key, netns, path: &found.netns_path };
    let mut others = records().others_in::<Belongings>(site)?;
    others.retain(|other| other.key.container_id != found.key.container_id);
    Ok(others)
}

/// The device in the container, found without a record: a link with the attachment's name whose
/// alias says that it came from the host.
fn find_by_alias(container: &Netlink, key: &Key) -> Result<Option<Link>> {
    let named = link_record::find_named(container, key.ifname.as_str())?;
    Ok(named.filter(is_lent_by_reference))
}

fn is_lent_by_reference(link: &Link) -> bool {
    !link_alias::is_of_any(&link.alias)
        && IfName::parse(&link.alias).is_ok()
        && !may_be_of_container(link)
}

/// Moves a device back that the reference moved in. A device with a record belongs to another
/// attachment.
pub fn leave_unrecorded(cx: &Context<'_>, key: &Key, netns: &Netns) -> Result<()> {
    let Some(link) = find_by_alias(netns.netlink()?, key)? else { return Ok(()) };
    let identity = Links::of_netns(netns)?.identify(&link)?;
    if moved_link::is_recorded(&identity)? {
        Ok(())
    } else {
        let naming = Naming { name: &link.alias, alias: "" };
        moved_link::bring_unrecorded(&Links::of_host(cx)?, netns, &link, &naming, &identity)
    }
}
