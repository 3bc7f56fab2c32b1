//! The records of devices, by whichever plugin moved them: a device that came back with its
//! namespace may have another attachment by the time of the first one's DEL.

use super::identity::Identity;
use super::link_state::MovedDevice;
use crate::cni::attachment::Key;
use crate::cni::decode;
use crate::cni::json::Value;
use crate::error::Result;
use crate::net::netlink::{Link, Netlink};
use crate::steps::link_record::{DEVICE_RECORDS, devices_in};
use crate::steps::records::{Found, Records};

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
