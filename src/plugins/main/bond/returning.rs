//! The links of a bond go back to where they were, as they were. A record says what that is: the
//! bond changes their hardware addresses and MTUs, and they are set down.

use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::conf::Conf;
use super::{BONDS, KIND};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::Stale;
use crate::error::{ErrorList, Result};
use crate::net::netlink::{Link, Netlink};
use crate::net::netns::Netns;
use crate::plugin::owned::Owned as _;
use crate::plugin::{Context, Detachment};
use crate::steps::moved_link::{
    self, DeviceReturn, LinkState, Links, MovedDevice, Naming, RecordedAt, may_be_of_container,
};
use crate::steps::records::{Found, Records};
use crate::steps::{link_alias, link_record};

/// The directory of the records.
pub const RECORDS: &str = "bond-links";

pub fn records() -> Records {
    Records::of_plugin(RECORDS)
}

/// The links of a bond before they were its ports.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    /// Those of the host.
    pub devices: Vec<MovedDevice>,
    /// Those of the container.
    pub own: Vec<Own>,
}

impl Kept {
    fn names(&self) -> String {
        let own = self.own.iter().map(|own| &own.state);
        let states = self.devices.iter().map(|moved| &moved.state).chain(own);
        let names: Vec<&str> = states.map(|state| state.device.as_str()).collect();
        names.join(", ")
    }
}

/// A link of the container. A process there can exchange it for another one, which harms that
/// process alone.
#[derive(Debug, Serialize, Deserialize)]
pub struct Own {
    index: u32,
    kind: String,
    state: LinkState,
}

impl Own {
    /// Reads the state of the link before it becomes a port.
    pub fn of(container: &Netlink, link: &Link) -> Result<Own> {
        let state = LinkState::of(container, link)?;
        Ok(Own { index: link.index, kind: link.kind.clone(), state })
    }

    /// Restores the state of the link, if it still exists.
    fn restore(&self, container: &Netlink) -> Result<()> {
        let link = container.find_link_by_index(self.index)?;
        match link.filter(|link| link.kind == self.kind) {
            Some(link) => self.state.restore(container, &link),
            None => Ok(()),
        }
    }
}

/// Deletes the bond of an attachment and puts its links back.
pub fn leave(cx: &Context<'_>, conf: &Conf, at: &Detachment) -> Result<()> {
    let mut errors = ErrorList::default();
    if let Some(netns) = &at.netns
        && let Some(bond) = bond_of_original(cx, at, netns)?
    {
        // Before the bond is deleted: a repeated DEL has to find them.
        let ports = match conf.links_in_container {
            true => Ok(()),
            false => bring_ports_of_original(cx, conf, netns, &bond),
        };
        errors.push(ports.and_then(|()| BONDS.delete(at)));
    } else if records().find::<Kept>(&at.key)?.is_none() {
        BONDS.delete(at)?;
    }
    errors.push(leave_recorded(cx, at));
    errors.finish()
}

/// The bond that the original has made for the attachment: there is no record, or one of before a DEL
/// of the original, which has moved a recorded device to the host.
fn bond_of_original(cx: &Context<'_>, at: &Detachment, netns: &Netns) -> Result<Option<Link>> {
    if let Some(record) = records().find::<Kept>(&at.key)? {
        let host = Links::of_host(cx)?;
        let mut is_of_before = false;
        for moved in &record.kept.devices {
            is_of_before |= moved.is_home(&host)?;
        }
        if !is_of_before || !record.is_of(netns)? {
            return Ok(None);
        }
    }
    let named = link_record::find_named(netns.netlink()?, at.key.ifname.as_str())?;
    Ok(named.filter(|bond| bond.kind == KIND && !link_alias::is_of_any(&bond.alias)))
}

/// Moves the links of the configuration that are ports of a bond of the original back to the host,
/// where they are down, as the original leaves them. Those stay that the container may have made or
/// that another attachment has.
fn bring_ports_of_original(
    cx: &Context<'_>,
    conf: &Conf,
    netns: &Netns,
    bond: &Link,
) -> Result<()> {
    let container = netns.netlink()?;
    let mut errors = ErrorList::default();
    for name in conf.names() {
        let Some(port) = link_record::find_named(container, name)? else { continue };
        if port.master != Some(bond.index) {
            continue;
        }
        let bring = || {
            let identity = Links::of_netns(netns)?.identify(&port)?;
            if may_be_of_container(&port) || moved_link::is_recorded(&identity)? {
                return Ok(());
            }
            let naming = Naming { name: &port.name, alias: &port.alias };
            moved_link::bring_unrecorded(&Links::of_host(cx)?, netns, &port, &naming, &identity)
        };
        errors.push(bring());
    }
    errors.finish()
}

/// The same by the record, if there is one. CNI_NETNS may lead to another container's namespace by
/// now; that of the ADD is used if it can be reached.
pub fn leave_recorded(cx: &Context<'_>, at: &Detachment) -> Result<()> {
    let Some(found) = records().find::<Kept>(&at.key)? else {
        return records().remove(&at.key); // a draft, or a record that cannot be parsed
    };
    let netns = match &at.netns {
        Some(netns) if found.is_of(netns)? => Some(Rc::clone(netns)),
        _ => found.netns()?.map(Rc::new),
    };
    give_back(cx, &found, netns)
}

/// Puts back the links of this network's attachments that are not valid.
pub fn collect_garbage(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    let network = &cx.config.name;
    let mut errors = ErrorList::default();
    for found in records().stale::<Kept>(network, valid)? {
        let give_back = || give_back(cx, &found, found.netns()?.map(Rc::new));
        let as_stale =
            || Stale { what: format!("links {}", found.kept.names()), ..found.as_stale() };
        errors.push(valid.remove(as_stale, give_back));
    }
    errors.push(records().forget_torn::<Kept>(network, valid));
    errors.push(BONDS.collect(cx, valid));
    errors.finish()
}

/// Deletes the bond and puts its links back, all that can be. The record is kept while a link is
/// missing.
fn give_back(cx: &Context<'_>, found: &Found<Kept>, netns: Option<Rc<Netns>>) -> Result<()> {
    let Found { key, netns_path, kept, .. } = found;
    let bond = Detachment {
        key: key.clone(),
        netns_path: netns_path.clone(),
        netns: netns.clone(),
        prev_result: None,
    };
    BONDS.delete(&bond)?;
    let netns = netns.as_deref();
    let devices = if kept.devices.is_empty() {
        Ok(())
    } else {
        Links::of_host(cx).and_then(|host| {
            ErrorList::of(kept.devices.iter().map(|MovedDevice { identity, state }| {
                let at =
                    RecordedAt { plugin: RECORDS, key, netns_path, name_inside: &state.device };
                let deadline = cx.deadline();
                DeviceReturn { host: &host, at, kept: state, identity, netns, deadline }.run()
            }))
        })
    };
    let own = netns.map_or(Ok(()), |netns| {
        let container = netns.netlink()?;
        ErrorList::of(kept.own.iter().map(|own| own.restore(container)))
    });
    // What is refused for good is reported once: a container must be able to end.
    let is_needed = devices.is_err() || own.as_ref().is_err_and(|error| error.may_pass());
    let removed = if is_needed { Ok(()) } else { records().remove(key) };
    ErrorList::of([devices, own, removed])
}
