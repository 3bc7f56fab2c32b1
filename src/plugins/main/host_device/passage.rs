//! A device's way into the container and back.
//!
//! It leaves its name on the host in the link's alias, where the reference reads it too. What else it had there is kept in
//! a record, because the kernel takes it away when a link changes its namespace: whether it was up, and its addresses.
//! The container may change its MTU, its hardware address and more; the host gets back what it had.

use serde::{Deserialize, Serialize};

use crate::cni::attachment::{IfName, Key};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::Stale;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{KeptAddress, Link, LinkChange, Netlink};
use crate::net::netns::Netns;
use crate::plugin::{Attachment, Context};
use crate::rollback::Rollback;
use crate::steps::link_alias;
use crate::steps::records::Records;

/// What a device had on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Belongings {
    /// Its name.
    device: String,
    /// Whether it was up.
    up: bool,
    /// Its hardware address.
    mac: String,
    /// Its MTU in bytes.
    mtu: u32,
    /// Its addresses, without those that the kernel or a router gave it.
    addresses: Vec<String>,
    /// How many packets could wait to be sent. Records of earlier versions have neither this nor what follows.
    #[serde(default)]
    txqlen: Option<u32>,
    /// Whether it took every packet.
    #[serde(default)]
    promisc: Option<bool>,
    /// Whether it took every multicast packet.
    #[serde(default)]
    allmulti: Option<bool>,
}

impl Belongings {
    fn of(host: &Netlink, link: &Link) -> Result<Belongings> {
        let addresses = host.keep_addresses(link)?.iter().map(|address| address.as_text().to_owned()).collect();
        let (device, mac) = (link.name.clone(), link.mac().to_string());
        let (txqlen, promisc, allmulti) = (Some(link.txqlen), Some(link.promisc), Some(link.allmulti));
        Ok(Belongings { device, up: link.up, mac, mtu: link.mtu, addresses, txqlen, promisc, allmulti })
    }

    /// What the link has to be given to be as it was, but for being up.
    fn missing_on(&self, link: &Link) -> LinkChange<'static> {
        LinkChange {
            mac: self.mac.parse().ok().filter(|mac: &MacAddr| *mac != link.mac()),
            mtu: Some(self.mtu).filter(|mtu| *mtu != link.mtu),
            txqlen: self.txqlen.filter(|txqlen| *txqlen != link.txqlen),
            promisc: self.promisc.filter(|promisc| *promisc != link.promisc),
            allmulti: self.allmulti.filter(|allmulti| *allmulti != link.allmulti),
            ..LinkChange::default()
        }
    }
}

fn records() -> Records {
    Records::of_plugin("host-device")
}

/// Moves the device into the container, where it is down and has the name that CNI_IFNAME says.
pub fn enter<'a>(cx: &'a Context<'_>, at: &'a Attachment, device: &Link, rb: &mut Rollback<'a>) -> Result<Link> {
    let device = &finish_return(cx, &at.key, device)?;
    records().write(at, &Belongings::of(cx.host()?, device)?)?;
    // Before the move, which the kernel may do and then refuse the name.
    rb.undo(format_args!("give {:?} back", device.name), || leave(cx, &at.key, Some(at.netns()?)));
    let change = LinkChange {
        netns: Some(at.netns()?.fd()),
        name: Some(at.ifname()),
        alias: Some(&device.name),
        ..LinkChange::default()
    };
    cx.host()?.change_link(device, &change)?;
    at.netlink()?.link(at.ifname())
}

/// Where the attachment's DEL was killed, what the device had is still in the record, and not on the device.
fn finish_return(cx: &Context<'_>, key: &Key, device: &Link) -> Result<Link> {
    if device.alias != device.name {
        return Ok(device.clone());
    }
    leave(cx, key, None)?;
    cx.host()?.link(&device.name)
}

/// Moves the device of an attachment back to the host, as it was there. One that is there already by itself, because the
/// container's namespace is gone, gets its name and the rest back.
pub fn leave(cx: &Context<'_>, key: &Key, netns: Option<&Netns>) -> Result<()> {
    let kept: Option<Belongings> = records().read(key)?;
    let device = match netns {
        Some(netns) => bring(cx, netns.netlink()?, key, kept.as_ref())?,
        None => None,
    };
    if let Some(kept) = &kept {
        restore(cx.host()?, device, key, kept)?;
    }
    records().remove(key)
}

/// Moves the device from the container to the host; its name there, if there was one to move.
fn bring(cx: &Context<'_>, container: &Netlink, key: &Key, kept: Option<&Belongings>) -> Result<Option<Link>> {
    let Some((link, device)) = find_inside(container, key, kept)? else { return Ok(None) };
    let host = cx.host()?;
    if host.find_link(&device)?.is_some() {
        let msg = format!("move {:?} back to the host: the host has another link named {device:?}", link.name);
        return Err(Error::new(Code::CONFLICT, msg).with_details("it stays in the container; rename the other link"));
    }
    let here = Netns::current()?;
    // The alias says that it has not got back yet what it had.
    let alias = Some(if kept.is_some() { device.as_str() } else { "" });
    let change = LinkChange { netns: Some(here.fd()), name: Some(&device), alias, ..LinkChange::default() };
    container.change_link(&link, &change)?;
    host.link(&device).map(Some)
}

/// The link in the container that came from the host, and its name there.
fn find_inside(container: &Netlink, key: &Key, kept: Option<&Belongings>) -> Result<Option<(Link, String)>> {
    if let Some(link) = container.find_link(key.ifname.as_str())?
        && let Some(device) = device_in_alias(&link)
        && kept.is_none_or(|kept| kept.device == device)
    {
        return Ok(Some((link, device)));
    }
    // A move that the kernel did before it refused the new name.
    let Some(kept) = kept else { return Ok(None) };
    let stray = container.find_link(&kept.device)?.filter(|link| link.mac().to_string() == kept.mac);
    Ok(stray.map(|link| (link, kept.device.clone())))
}

/// The name on the host, unless the alias says something else.
fn device_in_alias(link: &Link) -> Option<String> {
    let alias = Some(&link.alias).filter(|alias| !link_alias::is_of_any(alias) && IfName::parse(alias).is_ok());
    alias.cloned()
}

/// Gives a device on the host what it had there; `device` where it was just moved.
fn restore(host: &Netlink, device: Option<Link>, key: &Key, kept: &Belongings) -> Result<()> {
    let Some(link) = device.map_or_else(|| find_returned(host, key, kept), |link| Ok(Some(link)))? else {
        return Ok(()); // it was taken out of the machine, or went with the namespace
    };
    let mut errors = ErrorList::default();
    let change = kept.missing_on(&link);
    if change != LinkChange::default() {
        errors.push(host.change_link(&link, &change));
    }
    if kept.up {
        errors.push(host.change_link(&link, &LinkChange { up: Some(true), ..LinkChange::default() }));
    }
    for address in &kept.addresses {
        match host.restore_address(&link, &KeptAddress::from_text(address)) {
            Err(e) if e.is_exists() => (), // the host's own configuration was faster
            added => drop(errors.push(added)),
        }
    }
    let restored = errors.finish();
    if restored.as_ref().is_err_and(|error| error.may_pass()) {
        return restored; // the next DEL finds it by its alias; what is refused for good is said once
    }
    let cleared = host.change_link(&link, &LinkChange { alias: Some(""), ..LinkChange::default() });
    restored.and(cleared)
}

/// A device that the kernel gave back to the host when the container's namespace went: it still has the container's name
/// for it, and its alias. One that a DEL moved which was killed then has its own name already.
fn find_returned(host: &Netlink, key: &Key, kept: &Belongings) -> Result<Option<Link>> {
    let is_it = |link: &Link| link.alias == kept.device;
    if let Some(link) = host.find_link(&kept.device)? {
        return Ok(Some(link).filter(is_it));
    }
    let Some(link) = host.find_link(key.ifname.as_str())?.filter(is_it) else { return Ok(None) };
    host.change_link(&link, &LinkChange { name: Some(&kept.device), ..LinkChange::default() })?;
    Ok(Some(Link { name: kept.device.clone(), ..link }))
}

/// The namespace at the path of a record. `/proc/PID/ns/net` may be that of a process of the host by now, where the device is already.
fn open_if_a_container_s(path: &str) -> Result<Option<Netns>> {
    let Some(netns) = Netns::open_if_there(path)? else { return Ok(None) };
    let is_the_host_s = netns.is_same_as(&Netns::current()?)?;
    Ok(Some(netns).filter(|_| !is_the_host_s))
}

/// Moves the devices of this network's attachments that are not valid back to the host.
pub fn collect_garbage(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    let mut errors = ErrorList::default();
    for stale in records().stale::<Belongings>(&cx.config.name, valid)? {
        errors.push(valid.remove(
            || Stale { what: format!("device {}", stale.kept.device), ..stale.as_stale() },
            || leave(cx, &stale.key, open_if_a_container_s(&stale.netns_path)?.as_ref()),
        ));
    }
    errors.push(records().forget_torn::<Belongings>(&cx.config.name, valid));
    errors.finish()
}
