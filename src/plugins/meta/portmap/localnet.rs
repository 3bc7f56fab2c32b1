//! `route_localnet` of the host's link to a container: without it the kernel sends nothing from
//! 127.0.0.1 by that link.
//!
//! The setting also admits packets from and to 127.0.0.0/8 that arrive there, and programs that
//! listen at 127.0.0.1 trust the host alone. So our table drops these packets on the links in its
//! set `localnet`, which has the links that we have switched on and no other: an administrator may
//! need the setting on other links. A link's element stands before the setting is on, and goes after
//! it is off.
//!
//! The value itself records that we have set it. It goes with its link, and it outlives the rule
//! set, so that after `nft flush ruleset` DEL still knows what to switch off.

use std::net::IpAddr;

use super::nft::LAYOUT;
use super::publication::Publication;
use crate::cni::attachment::Key;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Interface};
use crate::cni::valid::Stale;
use crate::error::{Error, ErrorList, Result};
use crate::family::Family;
use crate::net::netlink::attr::read_text;
use crate::net::netlink::{Link, Netlink};
use crate::net::nft::batch::{Holds, KeyType, Set};
use crate::net::nft::owned::{OwnedElement, Reliance};
use crate::net::sysctl::Sysctl;
use crate::plugin::{Context, Detachment, Handles};
use crate::repair::Repairs;
use crate::steps::backend::Backend;
use crate::steps::{link_alias, veth};

/// The links whose setting we have switched on.
pub const LINKS: Set = Set { name: "localnet", key: &[KeyType::IfName], holds: Holds::Keys };
/// The setting is safe while its link is in the set.
pub const RELIANCE: Reliance = Reliance { set: &LINKS, end, begin_again };

/// Our value. For the kernel every value but 0 is on.
const OURS: u32 = 127;
/// IFNAMSIZ.
const IFNAME: usize = 16;
/// LOOPBACK_IFINDEX: `lo` has this number in every namespace.
const LOOPBACK: u32 = 1;

/// The setting of one link, if it is ours to switch on: it is off, or has our value.
pub struct Localnet {
    setting: Sysctl,
    /// The link's element in [`LINKS`].
    pub element: OwnedElement,
    /// Whether the kernel can drop what the setting admits. Without nf_tables the setting becomes 1
    /// and stays, as with the reference.
    pub is_guarded: bool,
}

/// The link that leads to a container.
enum Way {
    /// The host has none, or the ports do not need it.
    None,
    /// A link of the attachment.
    Own(Link),
    /// A link of others, such as an uplink, and the container's address.
    Other(Link, IpAddr),
}

impl Localnet {
    /// The setting that lets packets from 127.0.0.1 out to the ports. Fails with code 103 if the
    /// host's route to the container is not the attachment's.
    pub fn plan(
        cx: &Context<'_>,
        ports: &Publication<'_>,
        result: &AddResult,
    ) -> Result<Option<Localnet>> {
        let host = cx.host()?;
        let link = match way(host, ports, result)? {
            Way::None => return Ok(None),
            Way::Own(link) => link,
            Way::Other(link, ip) => {
                return require_no_detour(host, result, &link, ip).map(|()| None);
            }
        };
        if link.route_localnet != OURS && is_on(&link) {
            return Ok(None);
        }
        let is_guarded = match cx.handles().nft()? {
            None => false,
            Some(nft) => {
                ports.conf.backend(cx.handles())? == Backend::Nftables
                    || LAYOUT.on(nft).require().is_ok()
            }
        };
        let element = element(&link.name, link.kind != veth::KIND);
        Ok(Some(Localnet { setting: of_link(&link.name), element, is_guarded }))
    }

    /// Switches the setting on. Its link's element stands.
    pub fn switch_on(&self) -> Result<()> {
        if self.setting.read()? != "0" {
            return Ok(());
        }
        self.setting.write(&self.value())
    }

    fn value(&self) -> String {
        if self.is_guarded { OURS.to_string() } else { "1".to_owned() }
    }

    /// Verifies that the setting is on.
    pub fn verify(&self) -> Result<()> {
        require_on(&self.setting)
    }

    /// Switches the setting on again.
    pub fn repair(&self, repairs: &Repairs) -> Result<()> {
        let Localnet { setting, .. } = self;
        let what = format_args!("set sysctl {setting} to {}", self.value());
        repairs.make_shared(what, || self.verify(), || self.switch_on())
    }
}

/// If a link of the attachment has the gateway of the container's address, the host's route to the
/// address leads by a link of the attachment.
fn require_no_detour(host: &Netlink, result: &AddResult, link: &Link, ip: IpAddr) -> Result<()> {
    let of_ip = result.ips.iter().find(|found| found.address.addr() == ip);
    let Some(gateway) = of_ip.and_then(|found| found.gateway) else { return Ok(()) };
    for own in links_in(host, result)? {
        if host.addresses(&own)?.iter().any(|address| address.net.addr() == gateway) {
            let to = &link.name;
            let what = format!("the host routes {ip} to {to:?}, not to {:?}", own.name);
            let advice = format_args!("`ip route get {ip}` shows the route: delete it");
            return Err(Error::check(what).with_details(advice));
        }
    }
    Ok(())
}

/// For a look, in which a link that is gone was not made again.
pub fn note_of_missing(
    host: &Netlink,
    ports: &Publication<'_>,
    result: &AddResult,
    repairs: &Repairs,
) -> Result<()> {
    let Some(first) = on_host(result).next().filter(|_| forward_to(ports).is_some()) else {
        return Ok(());
    };
    if host.find_link(&first.name)?.is_some() {
        return Ok(());
    }
    let setting = of_link(&first.name);
    repairs.make_shared(
        format_args!("set sysctl {setting} to {OURS}"),
        || Err(is_off(&setting)),
        || Err(is_off(&setting)),
    )
}

/// Switches the setting off where it has our value and no guard: the rule set was flushed.
pub fn end_unguarded(handles: &Handles, links: &[Link]) -> Result<()> {
    ErrorList::of(unguarded(handles, links)?.map(|link| end(&key_of(&link.name))))
}

/// The same after a DEL that has found no element of its attachment.
pub fn end_unguarded_of(cx: &Context<'_>, at: &Detachment) -> Result<()> {
    let host = cx.host()?;
    let links = match &at.prev_result {
        Some(result) => links_in(host, result)?,
        None => host.links()?,
    };
    end_unguarded(cx.handles(), &links)
}

/// The same for all links. A look is silent about a link that containers use: no gone one has left
/// it so, and `net sync` guards it again.
pub fn collect_garbage(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    let links = cx.host()?.links()?;
    let is_in_use = |link: &Link| {
        let is_end = |end: &&Link| end.index == link.index || end.master == Some(link.index);
        links.iter().filter(is_end).any(|end| link_alias::is_of_any(&end.alias))
    };
    let unguarded = unguarded(cx.handles(), &links)?;
    ErrorList::of(unguarded.filter(|link| !valid.is_look() || !is_in_use(link)).map(|link| {
        let what = format!("sysctl {} of ours", of_link(&link.name));
        // Ports that need it are not published either.
        let stale = Stale { what, is_torn: true, ..Stale::default() };
        valid.remove(|| stale, || end(&key_of(&link.name)))
    }))
}

fn unguarded<'l>(handles: &Handles, links: &'l [Link]) -> Result<impl Iterator<Item = &'l Link>> {
    let mut ours: Vec<&Link> = links.iter().filter(|link| link.route_localnet == OURS).collect();
    if let Some(nft) = handles.nft()?.filter(|_| !ours.is_empty()) {
        let elements: Vec<_> = ours.iter().map(|link| element(&link.name, true)).collect();
        let absent = LAYOUT.on(nft).absent(&elements)?;
        ours.retain(|link| absent.iter().any(|absent| absent.key == key_of(&link.name)));
    }
    Ok(ours.into_iter())
}

/// The links of the host that the result names and that exist.
pub fn links_in(host: &Netlink, result: &AddResult) -> Result<Vec<Link>> {
    let mut links = vec![];
    for interface in on_host(result) {
        links.extend(host.find_link(&interface.name)?);
    }
    Ok(links)
}

/// Finds the link that leads to the container. A stray route to the container's address may lead to
/// a link of others, whose settings are not the attachment's.
fn way(host: &Netlink, ports: &Publication<'_>, result: &AddResult) -> Result<Way> {
    let Some(ip) = forward_to(ports) else { return Ok(Way::None) };
    let index = match host.link_towards(ip) {
        Ok(LOOPBACK) => return Ok(Way::None), // the host's own address, not a container's
        Ok(index) => index,
        // then even the container's own network does not reach it
        Err(error) if error.is_unreachable() => return Ok(Way::None),
        Err(error) => return Err(error),
    };
    let Some(link) = host.find_link_by_index(index)? else { return Ok(Way::None) };
    if is_own(host, &link, result, ports.key)? {
        Ok(Way::Own(link))
    } else {
        Ok(Way::Other(link, ip))
    }
}

/// Whether a link of the host is one of the attachment: the result names it, or it is the host's end
/// that we made for the attachment, or the bridge of that. Results before 0.3.0 name no links.
fn is_own(host: &Netlink, link: &Link, result: &AddResult, key: &Key) -> Result<bool> {
    if on_host(result).any(|interface| interface.name == link.name) {
        return Ok(!link_alias::is_of_another(&link.alias, key));
    }
    let end = veth::find_host_end(host, key)?;
    Ok(end.is_some_and(|end| end.index == link.index || end.master == Some(link.index)))
}

/// The address that packets from 127.0.0.1 have to reach: only those that are masqueraded do.
fn forward_to(ports: &Publication<'_>) -> Option<IpAddr> {
    let first = ports.of_family(Family::V4).next().filter(|_| ports.conf.snat);
    first.map(|forward| forward.to.addr())
}

fn on_host(result: &AddResult) -> impl Iterator<Item = &Interface> {
    result.interfaces.iter().filter(|interface| interface.sandbox.is_empty())
}

fn of_link(name: &str) -> Sysctl {
    Sysctl::ipv4_conf(name, "route_localnet")
}

/// IN_DEV_ROUTE_LOCALNET of linux/inetdevice.h: for the link, or for all.
fn is_on(link: &Link) -> bool {
    link.route_localnet != 0 || is_on_for_all()
}

fn is_on_for_all() -> bool {
    of_link("all").read().is_ok_and(|value| value != "0")
}

/// A setting that cannot be read is not on either: its link may be gone.
fn require_on(setting: &Sysctl) -> Result<()> {
    if setting.read().is_ok_and(|value| value != "0") || is_on_for_all() {
        Ok(())
    } else {
        Err(is_off(setting))
    }
}

fn is_off(setting: &Sysctl) -> Error {
    Error::check(format!("sysctl {setting} is off, so the ports do not answer at 127.0.0.1"))
}

/// A link of several attachments, such as a bridge, has one element for all of them.
fn element(name: &str, is_shared: bool) -> OwnedElement {
    OwnedElement { set: LINKS.name, key: key_of(name), is_shared, ..OwnedElement::default() }
}

fn key_of(name: &str) -> Vec<u8> {
    let mut key = name.as_bytes().to_vec();
    key.resize(IFNAME, 0);
    key
}

/// Switches a link's setting off if it has our value. It was off before: no other is changed to
/// ours.
fn end(key: &[u8]) -> Result<()> {
    change(key, OURS, 0)
}

fn begin_again(key: &[u8]) -> Result<()> {
    change(key, 0, OURS)
}

fn change(key: &[u8], from: u32, to: u32) -> Result<()> {
    let setting = of_link(&read_text(key));
    match setting.read() {
        Ok(value) if value == from.to_string() => setting.write(&to.to_string()),
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()), // the link is gone, and the setting with it
        Err(error) => Err(error),
    }
}
