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
use crate::plugin::{Attachment, Context, Detachment};
use crate::steps::moved_link::{
    self, Belongings, Homecoming, Identity, Lent, Links, Naming, RecordedAt, may_be_of_container,
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
    pub devices: Vec<Lent>,
    /// Those of the container.
    pub own: Vec<Own>,
}

impl Kept {
    fn names(&self) -> String {
        let own = self.own.iter().map(|own| &own.state);
        let states = self.devices.iter().map(|lent| &lent.state).chain(own);
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
    state: Belongings,
}

impl Own {
    /// Reads the state of the link before it becomes a port.
    pub fn of(container: &Netlink, link: &Link) -> Result<Own> {
        let state = Belongings::of(container, link)?;
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

/// Puts back what an ADD of this attachment took, if that had no DEL.
pub fn finish_earlier(cx: &Context<'_>, at: &Attachment) -> Result<()> {
    leave_recorded(cx, &Detachment::from(at))
}

/// Deletes the bond of an attachment and puts its links back.
pub fn leave(cx: &Context<'_>, conf: &Conf, at: &Detachment) -> Result<()> {
    let mut errors = ErrorList::default();
    if let Some(netns) = &at.netns
        && let Some(bond) = bond_of_original(cx, at, netns)?
    {
        // Before the bond is deleted: a repeated DEL has to find them.
        let ports =
            if conf.links_in_container { Ok(()) } else { bring_ports(cx, conf, netns, &bond) };
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
        for lent in &record.kept.devices {
            is_of_before |= lent.is_home(&host)?;
        }
        if !is_of_before || !record.is_of(netns)? {
            return Ok(None);
        }
    }
    let named = link_record::find_named(netns.netlink()?, at.key.ifname.as_str())?;
    Ok(named.filter(is_of_original))
}

/// The same by the record, if there is one.
pub fn leave_recorded(cx: &Context<'_>, at: &Detachment) -> Result<()> {
    match records().find::<Kept>(&at.key)? {
        Some(found) => give_back(cx, &found, reach(&found, at)?),
        None => records().remove(&at.key), // a draft, or a record that cannot be parsed
    }
}

/// The namespace of the ADD, if that can be reached: CNI_NETNS may lead to another container's by
/// now.
fn reach(found: &Found<Kept>, at: &Detachment) -> Result<Option<Rc<Netns>>> {
    match &at.netns {
        Some(netns) if found.is_of(netns)? => Ok(Some(Rc::clone(netns))),
        _ => Ok(found.netns()?.map(Rc::new)),
    }
}

/// Puts back the links of this network's attachments that are not valid.
pub fn collect_garbage(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    let network = &cx.config.name;
    let mut errors = ErrorList::default();
    for found in records().stale::<Kept>(network, valid)? {
        let give_back = || give_back(cx, &found, found.netns()?.map(Rc::new));
        errors.push(valid.remove(|| as_stale(&found), give_back));
    }
    errors.push(records().forget_torn::<Kept>(network, valid));
    errors.push(BONDS.collect(cx, valid));
    errors.finish()
}

fn as_stale(found: &Found<Kept>) -> Stale {
    Stale { what: format!("links {}", found.kept.names()), ..found.as_stale() }
}

/// Deletes the bond and puts its links back, all that can be. The record is kept while a link is
/// missing.
fn give_back(cx: &Context<'_>, found: &Found<Kept>, netns: Option<Rc<Netns>>) -> Result<()> {
    let bond = Detachment {
        key: found.key.clone(),
        netns_path: found.netns_path.clone(),
        netns: netns.clone(),
        prev_result: None,
    };
    BONDS.delete(&bond)?;
    let devices = bring_devices(cx, found, netns.as_deref());
    let own = netns.map_or(Ok(()), |netns| restore_own(found, &netns));
    // What is refused for good is reported once: a container must be able to end.
    let is_needed = devices.is_err() || own.as_ref().is_err_and(|error| error.may_pass());
    let removed = if is_needed { Ok(()) } else { records().remove(&found.key) };
    ErrorList::of([devices, own, removed])
}

fn restore_own(found: &Found<Kept>, netns: &Netns) -> Result<()> {
    let container = netns.netlink()?;
    ErrorList::of(found.kept.own.iter().map(|own| own.restore(container)))
}

/// Moves the host's links back.
fn bring_devices(cx: &Context<'_>, found: &Found<Kept>, netns: Option<&Netns>) -> Result<()> {
    if found.kept.devices.is_empty() {
        return Ok(());
    }
    let host = &Links::of_host(cx)?;
    let Found { key, netns_path, kept, .. } = found;
    let bring = |Lent { identity, state: kept }: &Lent| {
        let at = RecordedAt { plugin: RECORDS, key, netns_path, name_inside: &kept.device };
        Homecoming { host, at, kept, identity, netns, deadline: cx.deadline() }.run()
    };
    ErrorList::of(kept.devices.iter().map(bring))
}

/// Moves the links of the configuration that are ports of a bond of the original back to the host,
/// where they are down, as the original leaves them.
fn bring_ports(cx: &Context<'_>, conf: &Conf, netns: &Netns, bond: &Link) -> Result<()> {
    let container = netns.netlink()?;
    let mut errors = ErrorList::default();
    for name in conf.names() {
        let port = link_record::find_named(container, name)?;
        if let Some(port) = port.filter(|port| port.master == Some(bond.index)) {
            errors.push(bring_port(cx, netns, &port));
        }
    }
    errors.finish()
}

fn is_of_original(bond: &Link) -> bool {
    bond.kind == KIND && !link_alias::is_of_any(&bond.alias)
}

/// Moves a port back, unless the container may have made it or another attachment has it.
fn bring_port(cx: &Context<'_>, netns: &Netns, port: &Link) -> Result<()> {
    let identity = Links::of_netns(netns)?.identify(port)?;
    if may_be_of_container(port) || moved_link::is_recorded(&identity)? {
        return Ok(());
    }
    bring(cx, netns, port, &identity)
}

fn bring(cx: &Context<'_>, netns: &Netns, port: &Link, identity: &Identity) -> Result<()> {
    let naming = Naming { name: &port.name, alias: &port.alias };
    moved_link::bring_unrecorded(&Links::of_host(cx)?, netns, port, &naming, identity)
}
