//! Moves a device into the container and back.
//!
//! The link's alias holds its name on the host; the reference reads it there too. The rest is in a
//! record, see [`moved_link`](crate::steps::moved_link).

use super::earlier::{self, EarlierReturn};
use crate::cni::attachment::Key;
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::Stale;
use crate::error::{ErrorList, Result};
use crate::net::netlink::{Link, Netlink};
use crate::net::netns::Netns;
use crate::plugin::{Attachment, Context};
use crate::rollback::Rollback;
use crate::steps::moved_link::{
    self, Belongings, Homecoming, Identity, Links, RecordedAt, settle_unfinished,
};
use crate::steps::records::{Found, Records};

/// The directory of the records.
const PLUGIN: &str = "host-device";

pub(super) fn records() -> Records {
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
    let device = &finish_return(&host, &at.key, device, &identity)?;
    let kept = Belongings::of_device(cx.host()?, device, identity.clone())?;
    records().write(at, &kept)?;
    // Before the move: the kernel may move the link and then refuse the name.
    rb.undo(format_args!("give {:?} back", device.name), || leave(cx, &at.key, Some(at.netns()?)));
    move_in(cx.host()?, at, device)?;
    moved_link::forget_others(&identity, PLUGIN, &at.key)?;
    at.netlink()?.link(at.ifname())
}

fn move_in(host: &Netlink, at: &Attachment, device: &Link) -> Result<()> {
    match moved_link::move_in(host, at.netns()?, device, at.ifname()) {
        Err(lost) if lost.is_not_found() => {
            records().remove(&at.key)?; // lost race: the other ADD has a record of its own
            Err(lost)
        }
        moved => moved,
    }
}

/// Restores the state of a device that came back to the host without a DEL of its attachment, or by
/// a DEL that was killed.
fn finish_return(host: &Links<'_>, key: &Key, device: &Link, identity: &Identity) -> Result<Link> {
    let own = records().find::<Belongings>(key)?;
    let device = match own.filter(|own| own.kept.is_of_earlier_version(device)) {
        Some(own) => settle_unfinished(host.netlink(), device.clone(), &own.kept)?,
        None => device.clone(),
    };
    moved_link::settle_returned(host.netlink(), device, identity)
}

/// Moves the device of an attachment back to the host and restores its state. A device that is
/// already there, because the container's namespace is gone, gets its name and the rest of its
/// state back.
pub fn leave(cx: &Context<'_>, key: &Key, netns: Option<&Netns>) -> Result<()> {
    match records().find(key)? {
        Some(found) => leave_recorded(cx, &found, netns),
        None => {
            netns.map_or(Ok(()), |netns| earlier::leave_unrecorded(cx, key, netns))?;
            records().remove(key) // a draft, or a record that cannot be parsed
        }
    }
}

fn leave_recorded(
    cx: &Context<'_>,
    found: &Found<Belongings>,
    netns: Option<&Netns>,
) -> Result<()> {
    match netns {
        Some(netns) if found.is_of(netns)? => give_back(cx, found, Some(netns)),
        // CNI_NETNS leads to another container's namespace by now.
        _ => give_back_from_recorded_netns(cx, found),
    }
}

/// Moves the devices of this network's attachments that are not valid back to the host.
pub fn collect_garbage(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    let network = &cx.config.name;
    let mut errors = ErrorList::default();
    for found in records().stale(network, valid)? {
        errors
            .push(valid.remove(|| as_stale(&found), || give_back_from_recorded_netns(cx, &found)));
    }
    errors.push(records().forget_torn::<Belongings>(network, valid));
    errors.finish()
}

fn as_stale(found: &Found<Belongings>) -> Stale {
    Stale { what: format!("device {}", found.kept.device), ..found.as_stale() }
}

/// Returns the device of a record from the namespace of its ADD, if the path still leads there.
fn give_back_from_recorded_netns(cx: &Context<'_>, found: &Found<Belongings>) -> Result<()> {
    give_back(cx, found, found.netns()?.as_ref())
}

/// Returns the device of a record to the host, from the namespace of its ADD if that can be
/// reached. The record is kept while the device may be in a container.
fn give_back(cx: &Context<'_>, found: &Found<Belongings>, netns: Option<&Netns>) -> Result<()> {
    let host = &Links::of_host(cx)?;
    let Found { key, netns_path, kept, .. } = found;
    let at = RecordedAt { plugin: PLUGIN, key, netns_path, name_inside: key.ifname.as_str() };
    match &kept.identity {
        Some(identity) => {
            Homecoming { host, at, kept, identity, netns, deadline: cx.deadline() }.run()?;
        }
        None => EarlierReturn { host, found, at, netns }.run()?,
    }
    records().remove(key)
}
