//! Moves a device into the container and back.
//!
//! The link's alias holds its name on the host; the reference reads it there too. The rest is in a
//! record, see [`moved_link`](crate::steps::moved_link).

use crate::cni::attachment::{IfName, Key};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::Stale;
use crate::error::{ErrorList, Result};
use crate::net::netlink::Link;
use crate::net::netns::Netns;
use crate::plugin::{Attachment, Context, Detachment};
use crate::rollback::Rollback;
use crate::steps::moved_link::{
    self, DeviceReturn, Links, MovedDevice, Naming, RecordedAt, may_be_of_container,
};
use crate::steps::records::{Found, Records};
use crate::steps::{link_alias, link_record};

/// The directory of the records.
const PLUGIN: &str = "host-device";

fn records() -> Records {
    Records::of_plugin(PLUGIN)
}

/// Moves the device into the container, where it is down and has the name in CNI_IFNAME.
pub fn enter<'a>(
    cx: &'a Context<'_>,
    at: &'a Attachment,
    device: &Link,
    rb: &mut Rollback<'a>,
) -> Result<Link> {
    let host = Links::of_host(cx)?;
    let identity = host.identify(device)?;
    let device = &moved_link::settle_returned(host.netlink(), device.clone(), &identity)?;
    records().write(at, &MovedDevice::of(cx.host()?, device, identity.clone())?)?;
    // Before the move: the kernel may move the link and then refuse the name.
    rb.undo(format_args!("give {:?} back", device.name), || leave(cx, &at.key, Some(at.netns()?)));
    match moved_link::move_in(host.netlink(), at.netns()?, device, at.ifname()) {
        Err(lost) if lost.is_not_found() => {
            records().remove(&at.key)?; // lost race: the other ADD has a record of its own
            return Err(lost);
        }
        moved => moved?,
    }
    moved_link::forget_others(&identity, PLUGIN, &at.key)?;
    at.netlink()?.link(at.ifname())
}

/// DEL: moves the device back, and if that was on the host already, the one that the reference has
/// moved in since the record.
pub fn detach(cx: &Context<'_>, at: &Detachment) -> Result<()> {
    let found = records().find::<MovedDevice>(&at.key)?;
    let recorded = found.as_ref().zip(at.netns.as_ref());
    let is_of_before = match recorded {
        // CNI_NETNS may lead to another container's namespace by now.
        Some((found, netns)) => found.is_of(netns)? && found.kept.is_home(&Links::of_host(cx)?)?,
        None => false,
    };
    leave(cx, &at.key, at.netns.as_deref())?;
    match recorded.filter(|_| is_of_before) {
        Some((_, netns)) => leave_unrecorded(cx, &at.key, netns),
        None => Ok(()),
    }
}

/// Moves the device of an attachment back to the host and restores its state. A device that is
/// already there, because the container's namespace is gone, gets its name and the rest of its
/// state back.
pub fn leave(cx: &Context<'_>, key: &Key, netns: Option<&Netns>) -> Result<()> {
    match (records().find(key)?, netns) {
        (Some(found), Some(netns)) if found.is_of(netns)? => give_back(cx, &found, Some(netns)),
        // CNI_NETNS leads to another container's namespace by now.
        (Some(found), _) => give_back_from_recorded_netns(cx, &found),
        (None, netns) => {
            netns.map_or(Ok(()), |netns| leave_unrecorded(cx, key, netns))?;
            records().remove(key) // a draft, or a record that cannot be parsed
        }
    }
}

/// Moves the devices of this network's attachments that are not valid back to the host.
pub fn collect_garbage(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    let network = &cx.config.name;
    let mut errors = ErrorList::default();
    for found in records().stale::<MovedDevice>(network, valid)? {
        let as_stale =
            || Stale { what: format!("device {}", found.kept.state.device), ..found.as_stale() };
        errors.push(valid.remove(as_stale, || give_back_from_recorded_netns(cx, &found)));
    }
    errors.push(records().forget_torn::<MovedDevice>(network, valid));
    errors.finish()
}

/// Returns the device of a record from the namespace of its ADD, if the path still leads there.
fn give_back_from_recorded_netns(cx: &Context<'_>, found: &Found<MovedDevice>) -> Result<()> {
    give_back(cx, found, found.netns()?.as_ref())
}

/// Returns the device of a record to the host, from the namespace of its ADD if that can be
/// reached. The record is kept while the device may be in a container.
fn give_back(cx: &Context<'_>, found: &Found<MovedDevice>, netns: Option<&Netns>) -> Result<()> {
    let host = &Links::of_host(cx)?;
    let Found { key, netns_path, kept, .. } = found;
    let at = RecordedAt { plugin: PLUGIN, key, netns_path, name_inside: key.ifname.as_str() };
    let MovedDevice { identity, state: kept } = kept;
    DeviceReturn { host, at, kept, identity, netns, deadline: cx.deadline() }.run()?;
    records().remove(key)
}

/// Moves a device back that the reference moved in: a link with the attachment's name whose alias
/// says that it came from the host. A device with a record belongs to another attachment.
fn leave_unrecorded(cx: &Context<'_>, key: &Key, netns: &Netns) -> Result<()> {
    let named = link_record::find_named(netns.netlink()?, key.ifname.as_str())?;
    let is_lent_by_reference = |link: &Link| {
        !link_alias::is_of_any(&link.alias)
            && IfName::parse(&link.alias).is_ok()
            && !may_be_of_container(link)
    };
    let Some(link) = named.filter(is_lent_by_reference) else { return Ok(()) };
    let identity = Links::of_netns(netns)?.identify(&link)?;
    if moved_link::is_recorded(&identity)? {
        return Ok(());
    }
    let naming = Naming { name: &link.alias, alias: "" };
    moved_link::bring_unrecorded(&Links::of_host(cx)?, netns, &link, &naming, &identity)
}
