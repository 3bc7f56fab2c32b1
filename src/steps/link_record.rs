//! The record of which link in its container belongs to an attachment.
//!
//! A process in the container can change the names, altnames and aliases of its links, and
//! CNI_NETNS may lead to another container's namespace by the time of the DEL. So ADD records what
//! neither changes: the namespace, and the link's ifindex and kind in it. Within its own namespace
//! a process can still create another link with that ifindex, which harms that process alone.
//!
//! There is no record after a DEL, after an ADD that was killed, and where the reference attached the
//! container, and a record of before a rollback to the reference names a link that is gone. Then name
//! and alias decide, as for the reference, but a link that belongs to another attachment by its record
//! is never touched.

use serde::{Deserialize, Serialize};

use crate::cni::attachment::{Key, hex};
use crate::cni::conf::ValidAttachments;
use crate::cni::decode;
use crate::cni::json::Value;
use crate::error::Result;
use crate::net::netlink::{Link, Netlink};
use crate::net::netns::Netns;
use crate::net::sysfs::Sysfs;
use crate::plugin::owned::Owned;
use crate::plugin::{Attachment, Context, Detachment};
use crate::rollback::Rollback;
use crate::steps::link_alias;
use crate::steps::records::{Records, Site};

/// The plugins that record which link they created in a container.
const LINK_RECORDS: [&str; 6] = ["macvlan", "ipvlan", "vlan", "dummy", "tap", "bond"];
/// The records of devices of the host that are in containers: the directories below /run/cni.
pub const DEVICE_RECORDS: [&str; 2] = ["host-device", "bond-links"];

/// The links of one plugin.
#[derive(Clone, Copy, Debug)]
pub struct PluginLinks {
    /// The plugin's name.
    pub plugin: &'static str,
    /// The kernel's name for this kind of link.
    pub kind: &'static str,
}

/// What is recorded of a link.
#[derive(Debug, Serialize, Deserialize)]
struct Made {
    index: u32,
}

impl PluginLinks {
    fn records(self) -> Records {
        Records::of_plugin(self.plugin)
    }

    /// Records which link it is.
    pub fn remember<'a>(
        self,
        at: &'a Attachment,
        link: &Link,
        rb: &mut Rollback<'a>,
    ) -> Result<()> {
        self.records().write(at, &Made { index: link.index })?;
        rb.undo("forget the link", move || self.records().remove(&at.key));
        Ok(())
    }

    /// Removes the record of an ADD that had no DEL: if the next ADD were killed before it
    /// [remembers](Self::remember) its link, DEL would look for the wrong one.
    pub fn forget(self, at: &Attachment) -> Result<()> {
        self.records().remove(&at.key)
    }

    /// Removes the attachment's link and its record. Succeeds if the link is already gone.
    pub fn delete(self, at: &Detachment) -> Result<()> {
        if let Some(netns) = &at.netns
            && let Some(link) = self.find(at, netns)?
        {
            delete_link(netns.netlink()?, link.index)?;
        }
        self.records().remove(&at.key)
    }

    fn find(self, at: &Detachment, netns: &Netns) -> Result<Option<Link>> {
        let (site, container) = (Site::of(at, netns), netns.netlink()?);
        if let Some(record) = self.records().find::<Made>(&at.key)? {
            if !record.is_of(netns)? {
                return Ok(None); // deleted with its namespace
            }
            let link = container.find_link_by_index(record.kept.index)?;
            if link.as_ref().is_some_and(|link| link.kind == self.kind) {
                return Ok(link);
            }
        }
        if let Some(leftover) = self.find_leftover(site)? {
            return Ok(Some(leftover));
        }
        let mut found = self.find_named(at.key.ifname.as_str(), site)?;
        if found.is_none() {
            // The container's own tools may have renamed it.
            let mut links = container.links_of_kind(self.kind)?.into_iter();
            found = links.find(|link| link_alias::is_of(&link.alias, site.key));
        }
        unless_claimed(found, site)
    }

    /// The link that a killed ADD of this attachment created and did not yet rename.
    pub fn find_leftover(self, site: Site<'_>) -> Result<Option<Link>> {
        unless_claimed(self.find_named(&temporary_name(site.key), site)?, site)
    }

    /// The link of this name, if it may belong to the attachment by its kind and alias. The reference
    /// writes no alias.
    fn find_named(self, name: &str, site: Site<'_>) -> Result<Option<Link>> {
        let found = find_named(site.netns.netlink()?, name)?;
        Ok(found.filter(|link| {
            link.kind == self.kind && !link_alias::is_of_another(&link.alias, site.key)
        }))
    }
}

impl Owned for PluginLinks {
    fn remove(&self, _: &Context<'_>, at: &Detachment) -> Result<()> {
        self.delete(at)
    }

    /// The links are in a container, and disappear with it; their records stay.
    fn collect(&self, cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
        self.records().forget_stale::<Made>(&cx.config.name, valid)
    }
}

/// The temporary name of a link until it gets that of CNI_IFNAME: `cni` and eleven hex digits.
pub fn temporary_name(key: &Key) -> String {
    format!("cni{}", &hex(&key.attachment_hash())[..11])
}

/// Removes a link. Succeeds if it is already gone.
pub fn delete_link(netlink: &Netlink, index: u32) -> Result<()> {
    netlink.delete_links(&[index])
}

/// Removes the link, if there is one.
pub fn delete_if_any(netlink: &Netlink, link: Option<Link>) -> Result<()> {
    match link {
        Some(link) => delete_link(netlink, link.index),
        None => Ok(()),
    }
}

/// The link of exactly this name. An altname does not count: any link of the container can have it
/// beside its own name.
pub fn find_named(netlink: &Netlink, name: &str) -> Result<Option<Link>> {
    Ok(netlink.find_link(name)?.filter(|link| link.name == name))
}

/// The link, unless it belongs to another attachment by its record.
pub fn unless_claimed(link: Option<Link>, site: Site<'_>) -> Result<Option<Link>> {
    match link {
        Some(link) if is_claimed(&link, site)? => Ok(None),
        link => Ok(link),
    }
}

/// The devices in a record of [`DEVICE_RECORDS`]: several in a list, or the one that it is of.
pub fn devices_in(kept: &Value) -> &[Value] {
    match kept.get("devices") {
        Some(Value::Array(devices)) => devices,
        _ => std::slice::from_ref(kept),
    }
}

/// A device of such a record, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RecordedDevice {
    identity: RecordedIdentity,
}

impl RecordedDevice {
    /// What a record says. One of another shape says nothing, and any link may be its device.
    fn of(kept: &Value) -> RecordedDevice {
        decode::from_value(kept).unwrap_or_default()
    }
}

/// What is known of a device of the host.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RecordedIdentity {
    /// The kind, which no process can change.
    kind: Option<String>,
    /// The inode of its directory in sysfs, which no other link ever has. None if sysfs could not
    /// be mounted.
    inode: Option<u64>,
}

/// Whether a link of the namespace belongs, or may belong, to another attachment, by the records.
fn is_claimed(link: &Link, site: Site<'_>) -> Result<bool> {
    for plugin in LINK_RECORDS {
        let others = Records::of_plugin(plugin).others_in::<Made>(site)?;
        if others.iter().any(|other| other.kept.index == link.index) {
            return Ok(true);
        }
    }
    for plugin in DEVICE_RECORDS {
        for found in Records::of_plugin(plugin).others_in(site)? {
            for device in devices_in(&found.kept) {
                if may_be_device(device, link, site.netns)? {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// Whether the link may be this device of a record. Only its inode can tell it from another link of
/// its kind.
fn may_be_device(device: &Value, link: &Link, netns: &Netns) -> Result<bool> {
    let RecordedIdentity { kind, inode } = RecordedDevice::of(device).identity;
    if kind.is_some_and(|kind| kind != link.kind) {
        return Ok(false);
    }
    // Sysfs may be impossible to mount, and the link may just have got another name.
    let Some(inode) = inode else { return Ok(true) };
    let Some(sysfs) = netns.run(Sysfs::open)? else { return Ok(true) };
    let found = sysfs.link(&link.name)?.filter(|found| found.index == link.index);
    Ok(found.is_none_or(|found| found.inode == inode))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn record_has_one_device_or_a_list_of_them() {
        let number = |kept: &str| devices_in(&Value::parse(kept.as_bytes()).unwrap()).len();
        assert_eq!(number(r#"{"device":"port0"}"#), 1);
        assert_eq!(number(r#"{"devices":[{"device":"port0"},{"device":"port1"}],"own":[]}"#), 2);
        assert_eq!(number(r#"{"devices":[],"own":[{"index":7}]}"#), 0);
        assert_eq!(number(r#"{"devices":"of another shape"}"#), 1);
    }

    #[test]
    fn record_of_another_shape_names_no_kind() {
        for (kept, kind) in [
            (r#"{"identity":{"kind":"macvlan","inode":7}}"#, Some("macvlan")),
            (r#"{"identity":{"kind":["macvlan"]}}"#, None),
            (r#"{"identity":"macvlan"}"#, None),
            (r#"{}"#, None),
            ("[]", None),
        ] {
            let kept = Value::parse(kept.as_bytes()).unwrap();
            assert_eq!(RecordedDevice::of(&kept).identity.kind.as_deref(), kind, "{kept:?}");
        }
    }
}
