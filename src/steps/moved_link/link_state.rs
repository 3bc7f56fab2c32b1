//! The state of a device on the host. The kernel drops some of it when a link changes its
//! namespace, and the container may change the rest; the host gets all of it back. Also the records
//! of devices, by whichever plugin moved them: a device that came back with its namespace may have
//! another attachment by the time of the first one's DEL.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::identity::{Identity, Links};
use crate::cni::attachment::Key;
use crate::cni::decode;
use crate::cni::json::Value;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{KeptAddress, Link, LinkChange, Netlink};
use crate::steps::link_record::{DEVICE_RECORDS, devices_in};
use crate::steps::records::{Found, Records};

/// A device of the host in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedDevice {
    /// Its identity.
    pub identity: Identity,
    /// Its state on the host.
    pub state: LinkState,
}

impl MovedDevice {
    /// Reads the state of the device before it leaves the host.
    pub fn of(host: &Netlink, link: &Link, identity: Identity) -> Result<MovedDevice> {
        Ok(MovedDevice { identity, state: LinkState::of(host, link)? })
    }

    /// Whether the device is on the host, to which no container can move it: a DEL of the reference has,
    /// after a rollback.
    pub fn is_home(&self, host: &Links<'_>) -> Result<bool> {
        Ok(host.find(&self.identity, &self.state.device)?.is_some())
    }
}

/// The state of a link in its own namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkState {
    /// Its name.
    pub device: String,
    /// Whether it was up.
    up: bool,
    /// Its hardware address.
    pub mac: String,
    /// Its MTU in bytes.
    mtu: u32,
    /// Its addresses, without those that the kernel or a router assigned.
    addresses: Vec<String>,
    /// The length of its transmit queue.
    txqlen: u32,
    /// Whether it was promiscuous.
    promisc: bool,
    /// Whether it received all multicast packets.
    allmulti: bool,
    /// Its altnames.
    alternative_names: Vec<String>,
    /// Its alias.
    alias: String,
}

impl LinkState {
    /// Reads the state of a link, in its own namespace.
    pub fn of(host: &Netlink, link: &Link) -> Result<LinkState> {
        let kept = host.keep_addresses(link)?;
        Ok(LinkState {
            device: link.name.clone(),
            up: link.up,
            mac: link.mac().to_string(),
            mtu: link.mtu,
            addresses: kept.iter().map(|address| address.as_text().to_owned()).collect(),
            txqlen: link.txqlen,
            promisc: link.promisc,
            allmulti: link.allmulti,
            alternative_names: link.alternative_names.clone(),
            alias: link.alias.clone(),
        })
    }

    /// Restores the state of a link that is back on the host, all that can be restored. The host's own
    /// configuration may have added some of it.
    pub fn restore(&self, host: &Netlink, link: &Link) -> Result<()> {
        let mut errors = ErrorList::default();
        let unless_there = |added: Result<()>| match added {
            Err(e) if e.is_exists() => Ok(()),
            added => added,
        };
        let change = LinkChange {
            mac: self.mac.parse().ok().filter(|mac: &MacAddr| *mac != link.mac()),
            mtu: Some(self.mtu).filter(|mtu| *mtu != link.mtu),
            txqlen: Some(self.txqlen).filter(|txqlen| *txqlen != link.txqlen),
            promisc: Some(self.promisc).filter(|promisc| *promisc != link.promisc),
            allmulti: Some(self.allmulti).filter(|allmulti| *allmulti != link.allmulti),
            ..LinkChange::default()
        };
        if change != LinkChange::default() {
            errors.push(host.change_link(link, &change));
        }
        let lacks = |name: &&String| !link.alternative_names.contains(name);
        for name in self.alternative_names.iter().filter(lacks) {
            errors.push(unless_there(host.add_alternative_name(link, name)));
        }
        if self.up {
            errors.push(host.set_up(link));
        }
        for text in &self.addresses {
            let address = KeptAddress::from_text(text);
            errors.push(unless_there(host.restore_address(link, &address)));
        }
        let restored = errors.finish();
        if restored.as_ref().is_err_and(|error| error.may_pass()) {
            return restored; // the next DEL finds it by its alias; a permanent refusal is reported once
        }
        let change = LinkChange { alias: Some(&self.alias), ..LinkChange::default() };
        restored.and(host.change_link(link, &change))
    }

    /// Restores name and state of a device on the host, if it lacks them: its namespace was deleted,
    /// or the DEL that moved it was killed. Returns the link with its name. A device that the
    /// reference's DEL moved back and an operator has reconfigured since does not count.
    pub(super) fn settle_unfinished(&self, host: &Netlink, device: Link) -> Result<Link> {
        let name = &self.device;
        let is_as_it_came = device.alias == *name || device.name != *name;
        if !is_as_it_came && (device.up || !host.keep_addresses(&device)?.is_empty()) {
            return Ok(device);
        }
        if device.name != *name {
            rename(host, &device, name)?;
        }
        self.restore(host, &host.link(name)?)?;
        host.link(name)
    }
}

/// A record that has this device, with the plugin that wrote it.
pub(super) struct DeviceRecord {
    plugin: &'static str,
    found: Found<Value>,
    /// How many devices the record has.
    devices: usize,
    kept: MovedDevice,
}

/// The records of this device.
fn records_of(identity: &Identity) -> Result<Vec<DeviceRecord>> {
    let mut records = vec![];
    for plugin in DEVICE_RECORDS {
        for found in Records::of_plugin(plugin).all::<Value>()? {
            let lent = devices_in(&found.kept);
            let mut all =
                lent.iter().filter_map(|device| decode::from_value::<MovedDevice>(device).ok());
            if let Some(kept) = all.find(|kept| kept.identity.is_same_as(identity)) {
                records.push(DeviceRecord { plugin, devices: lent.len(), found, kept });
            }
        }
    }
    Ok(records)
}

/// The records of this device, except that of the attachment by this plugin.
pub(super) fn others_of(identity: &Identity, plugin: &str, key: &Key) -> Result<Vec<DeviceRecord>> {
    let mut records = records_of(identity)?;
    records.retain(|record| record.plugin != plugin || record.found.key != *key);
    Ok(records)
}

/// Whether an attachment that was made after this one has the device, by its record.
pub(super) fn has_later(identity: &Identity, plugin: &'static str, key: &Key) -> Result<bool> {
    let own = Records::of_plugin(plugin).written(key)?;
    for record in others_of(identity, plugin, key)? {
        if Records::of_plugin(record.plugin).written(&record.found.key)? > own {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether any attachment has the device, by its record.
pub fn is_recorded(identity: &Identity) -> Result<bool> {
    Ok(!records_of(identity)?.is_empty())
}

/// Restores the state of a device that came back to the host without a DEL of its attachment, or by
/// a DEL that was killed.
pub fn settle_returned(host: &Netlink, device: Link, identity: &Identity) -> Result<Link> {
    let records = records_of(identity)?;
    records
        .iter()
        .try_fold(device, |device, record| record.kept.state.settle_unfinished(host, device))
}

/// Removes the records that other attachments have of a device which this one got. A record of
/// several devices stays for the sake of the others; their return finds that this one has moved on.
pub fn forget_others(identity: &Identity, plugin: &str, key: &Key) -> Result<()> {
    let others = others_of(identity, plugin, key)?;
    let mut ended = others.iter().filter(|record| record.devices == 1);
    ended.try_for_each(|record| Records::of_plugin(record.plugin).remove(&record.found.key))
}

/// Fails if the host has another link with the device's name.
pub(super) fn refuse_taken_name(host: &Netlink, link: &Link, name: &str) -> Result<()> {
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
pub(super) fn drop_alternative_names(namespace: &Netlink, link: &Link) -> Result<()> {
    let Some(link) = namespace.find_link_by_index(link.index)? else { return Ok(()) };
    link.alternative_names
        .iter()
        .try_for_each(|name| namespace.delete_alternative_name(&link, name))
}

/// Gives a device on the host its name back.
pub(super) fn rename(host: &Netlink, link: &Link, name: &str) -> Result<()> {
    drop_alternative_names(host, link)?;
    refuse_taken_name(host, link, name)?;
    host.change_link(link, &LinkChange { name: Some(name), ..LinkChange::default() })
}
