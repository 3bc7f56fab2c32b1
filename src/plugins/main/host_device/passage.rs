//! Moves a device into the container and back.
//!
//! The link's alias holds its name on the host; the reference reads it there too. A record holds
//! the device's identity and its other state on the host: the container may write the alias, the
//! name and nearly everything else of the link, so only the device with that identity goes back to
//! the host.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use super::belongings::Belongings;
use super::identity::{Identity, Links, may_be_of_container};
use crate::cni::attachment::{IfName, Key};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::Stale;
use crate::deadline::Deadline;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::net::netns::Netns;
use crate::plugin::{Attachment, Context};
use crate::rollback::Rollback;
use crate::steps::records::{Found, Records, Site};
use crate::steps::{link_alias, link_record};

/// Kinds of links that stay on their lower link when it moves to another namespace, and send and
/// receive there.
const UPPER_KINDS: [&str; 6] = ["macvlan", "macvtap", "ipvlan", "ipvtap", "vlan", "macsec"];

/// How often a move is tried while processes in the container set names on the device that conflict
/// with names on the host.
const MOVE_TRIES: usize = 5;

/// How long the kernel may take to return hardware after its namespace is deleted.
const RETURN_PATIENCE: Duration = Duration::from_secs(2);
/// The pause between two searches for it.
const RETURN_PAUSE: Duration = Duration::from_millis(50);

fn records() -> Records {
    Records::of_plugin("host-device")
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
    records().write(at, &Belongings::of(cx.host()?, device, identity.clone())?)?;
    // Before the move: the kernel may move the link and then refuse the name.
    rb.undo(format_args!("give {:?} back", device.name), || leave(cx, &at.key, Some(at.netns()?)));
    move_in(cx.host()?, at, device)?;
    forget_others(&identity, &at.key)?;
    at.netlink()?.link(at.ifname())
}

fn forget_others(identity: &Identity, key: &Key) -> Result<()> {
    others_of(identity, key)?.iter().try_for_each(|ended| records().remove(&ended.key))
}

fn move_in(host: &Netlink, at: &Attachment, device: &Link) -> Result<()> {
    let naming = Naming { name: at.ifname(), alias: &device.name };
    match host.change_link(device, &naming.in_netns(at.netns()?)) {
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
    let of_earlier_version = own.filter(|own| own.kept.is_of_earlier_version(device));
    let of_device = records_of(identity)?;
    let mut device = device.clone();
    for found in of_earlier_version.into_iter().chain(of_device) {
        device = settle_unfinished(host.netlink(), device, &found.kept)?;
    }
    Ok(device)
}

fn settle_unfinished(host: &Netlink, device: Link, kept: &Belongings) -> Result<Link> {
    if is_unfinished(host, &device, kept)? { settle(host, &device, kept) } else { Ok(device) }
}

/// The records of this device.
fn records_of(identity: &Identity) -> Result<Vec<Found<Belongings>>> {
    let mut found = records().all::<Belongings>()?;
    found.retain(|found| found.kept.is_of(identity));
    Ok(found)
}

/// The records of this device, except that of the attachment.
fn others_of(identity: &Identity, key: &Key) -> Result<Vec<Found<Belongings>>> {
    let mut found = records_of(identity)?;
    found.retain(|found| found.key != *key);
    Ok(found)
}

/// Moves the device of an attachment back to the host and restores its state. A device that is
/// already there, because the container's namespace is gone, gets its name and the rest of its
/// state back.
pub fn leave(cx: &Context<'_>, key: &Key, netns: Option<&Netns>) -> Result<()> {
    match records().find(key)? {
        Some(found) => leave_recorded(cx, &found, netns),
        None => {
            netns.map_or(Ok(()), |netns| leave_unrecorded(cx, key, netns))?;
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
    let netns = match netns {
        Some(netns) if may_be_in(netns, found)? => Some(netns),
        _ => None,
    };
    Return { host: Links::of_host(cx)?, found, netns, deadline: cx.deadline() }.run()?;
    records().remove(&found.key)
}

fn may_be_in(netns: &Netns, found: &Found<Belongings>) -> Result<bool> {
    Ok(found.kept.identity.is_some() || is_youngest_in(netns, found)?)
}

/// Whether this is the newest record for the namespace. A record of an earlier version does not say
/// which namespace was at its path, and that may be another container's by now.
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

/// The return of a recorded device to the host.
struct Return<'a> {
    host: Links<'a>,
    found: &'a Found<Belongings>,
    /// The namespace of its ADD, if that can be reached.
    netns: Option<&'a Netns>,
    deadline: Deadline,
}

impl Return<'_> {
    /// Returns the device from the container, or finishes its return if it is on the host already.
    /// Fails if it may be elsewhere.
    fn run(&self) -> Result<()> {
        if let Some(netns) = self.netns
            && let Some(link) = self.find_inside(netns)?
        {
            return self.bring_and_restore(netns, &link);
        }
        match self.find_returned()? {
            Some(link) => settle_unfinished(self.host.netlink(), link, &self.found.kept).map(drop),
            None => self.require_gone(),
        }
    }

    /// Moves the device to the host and restores its state.
    fn bring_and_restore(&self, netns: &Netns, link: &Link) -> Result<()> {
        let kept = &self.found.kept;
        let device = bring(&self.host, netns, link, kept)?;
        kept.restore(self.host.netlink(), &device)
    }

    /// The device in the container.
    fn find_inside(&self, netns: &Netns) -> Result<Option<Link>> {
        let kept = &self.found.kept;
        match &kept.identity {
            Some(identity) => Links::of_netns(netns)?.find(identity, &kept.device),
            None => self.find_inside_by_alias(netns.netlink()?),
        }
    }

    /// The same for a record of an earlier version.
    fn find_inside_by_alias(&self, container: &Netlink) -> Result<Option<Link>> {
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

    /// The device if it is already on the host: the kernel returned it when the container's
    /// namespace was deleted, or a DEL that was killed moved it. Waits for hardware of a namespace
    /// that was just deleted.
    fn find_returned(&self) -> Result<Option<Link>> {
        match &self.found.kept.identity {
            Some(identity) => self.await_return(identity),
            None => self.find_returned_by_alias(),
        }
    }

    fn await_return(&self, identity: &Identity) -> Result<Option<Link>> {
        let end = self.deadline.of_wait(RETURN_PATIENCE);
        loop {
            let device = self.host.find(identity, &self.found.kept.device)?;
            let may_come = self.is_coming(identity) && Instant::now() < end;
            if device.is_some() || !may_come || self.is_known_to_be_gone(identity)? {
                return Ok(device);
            }
            thread::sleep(RETURN_PAUSE);
        }
    }

    /// The same for a record of an earlier version: the device still has its name in the container,
    /// and its alias. If a killed DEL moved it, it already has its own name.
    fn find_returned_by_alias(&self) -> Result<Option<Link>> {
        let host = self.host.netlink();
        let device = &self.found.kept.device;
        let link = match host.find_link(device)? {
            Some(link) => Some(link),
            None => host.find_link(self.found.key.ifname.as_str())?,
        };
        Ok(link.filter(|link| link.alias == *device))
    }

    /// Whether the kernel gives the device to the host by itself, now that its namespace is gone.
    fn is_coming(&self, identity: &Identity) -> bool {
        self.netns.is_none() && identity.returns_by_itself()
    }

    /// Whether the device is gone, or has moved to another attachment since.
    fn is_known_to_be_gone(&self, identity: &Identity) -> Result<bool> {
        Ok(!others_of(identity, &self.found.key)?.is_empty() || self.host.prove_gone(identity)?)
    }

    /// For a device that is neither in its namespace nor on the host: fails unless the device
    /// certainly does not exist any more.
    fn require_gone(&self) -> Result<()> {
        match &self.found.kept.identity {
            None => self.require_name_on_host(),
            Some(identity) if self.is_known_to_be_gone(identity)? => Ok(()),
            Some(identity) => self.require_deleted(identity),
        }
    }

    /// Fails unless the device was deleted with the namespace.
    fn require_deleted(&self, identity: &Identity) -> Result<()> {
        match self.netns {
            Some(netns) => Err(missing_inside(self.found, netns, identity.kind())?),
            None if self.is_coming(identity) => Err(not_yet_back(self.found)),
            None => Ok(()),
        }
    }

    /// The same for a record of an earlier version, which does not identify its device.
    fn require_name_on_host(&self) -> Result<()> {
        match self.netns {
            Some(netns) if self.host.netlink().find_link(&self.found.kept.device)?.is_none() => {
                Err(missing_inside(self.found, netns, "link")?)
            }
            _ => Ok(()),
        }
    }
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
fn leave_unrecorded(cx: &Context<'_>, key: &Key, netns: &Netns) -> Result<()> {
    let Some(link) = find_by_alias(netns.netlink()?, key)? else { return Ok(()) };
    let identity = Links::of_netns(netns)?.identify(&link)?;
    if records_of(&identity)?.is_empty() {
        bring_unrecorded(&Links::of_host(cx)?, netns, &link, &identity)
    } else {
        Ok(())
    }
}

fn bring_unrecorded(
    host: &Links<'_>,
    netns: &Netns,
    link: &Link,
    identity: &Identity,
) -> Result<()> {
    let device = move_out(host, netns, link, &Naming { name: &link.alias, alias: "" })?;
    if host.identify(&device)?.is_same_as(identity) {
        Ok(())
    } else {
        Err(send_back(host, netns, &device))
    }
}

/// Moves the device of a record to the host.
fn bring(host: &Links<'_>, netns: &Netns, link: &Link, kept: &Belongings) -> Result<Link> {
    // The alias marks a device whose state is not restored yet.
    let moved = move_out(host, netns, link, &Naming { name: &kept.device, alias: &kept.device })?;
    let Some(identity) = &kept.identity else { return Ok(moved) };
    match host.find(identity, &kept.device)? {
        Some(device) if device.index == moved.index => Ok(device),
        _ => Err(send_back(host, netns, &moved)),
    }
}

/// The names that a device gets with a move.
struct Naming<'a> {
    name: &'a str,
    alias: &'a str,
}

impl Naming<'_> {
    /// The move.
    fn in_netns(&self, netns: &Netns) -> LinkChange<'_> {
        LinkChange {
            netns: Some(netns.fd()),
            name: Some(self.name),
            alias: Some(self.alias),
            ..LinkChange::default()
        }
    }
}

/// Moves a link from the container to the host, without the altnames and the upper links that the
/// container added; returns the link on the host.
fn move_out(host: &Links<'_>, netns: &Netns, link: &Link, naming: &Naming<'_>) -> Result<Link> {
    refuse_taken_name(host.netlink(), link, naming.name)?;
    let container = netns.netlink()?;
    delete_uppers(container, link)?;
    let here = Netns::current()?;
    move_without_altnames(container, link, &naming.in_netns(&here))?;
    host.netlink().link(naming.name)
}

fn move_without_altnames(container: &Netlink, link: &Link, change: &LinkChange<'_>) -> Result<()> {
    for _ in 1..MOVE_TRIES {
        drop_alternative_names(container, link)?;
        match container.change_link(link, change) {
            Err(e) if e.is_exists() => (), // the container has just added a conflicting name
            moved => return moved,
        }
    }
    drop_alternative_names(container, link)?;
    container.change_link(link, change)
}

/// Fails if the host has another link with the device's name.
fn refuse_taken_name(host: &Netlink, link: &Link, name: &str) -> Result<()> {
    match host.find_link(name)? {
        Some(other) if other.index != link.index || other.name != link.name => {
            Err(name_taken(link, name))
        }
        _ => Ok(()),
    }
}

fn name_taken(link: &Link, name: &str) -> Error {
    let why = format_args!("the host has another link named {name:?}");
    unmoved(Code::CONFLICT, &link.name, why)
        .with_details("it stays in the container; rename the other link")
}

fn unmoved(code: Code, name: &str, why: impl fmt::Display) -> Error {
    Error::new(code, format!("move {name:?} back to the host: {why}"))
}

/// Deletes the links on top of the device: they would continue to send and receive through it on
/// the host.
fn delete_uppers(container: &Netlink, link: &Link) -> Result<()> {
    let links = container.links()?;
    let mut uppers = links.iter().filter(|upper| is_on(upper, link));
    uppers.try_for_each(|upper| link_record::delete_link(container, upper.index))
}

fn is_on(upper: &Link, lower: &Link) -> bool {
    upper.lower == Some(lower.index)
        && !upper.lower_is_elsewhere
        && UPPER_KINDS.contains(&upper.kind.as_str())
}

/// Removes altnames: they could prevent the move or come along to the host. The altnames that the
/// device had on the host are in its record.
fn drop_alternative_names(namespace: &Netlink, link: &Link) -> Result<()> {
    let Some(link) = namespace.find_link_by_index(link.index)? else { return Ok(()) };
    link.alternative_names
        .iter()
        .try_for_each(|name| namespace.delete_alternative_name(&link, name))
}

/// Sends back a link that arrived in the device's place: the container exchanged the two, with the
/// same ifindex, during the move.
fn send_back(host: &Links<'_>, netns: &Netns, arrived: &Link) -> Error {
    let error = unmoved(Code::TRY_AGAIN, &arrived.name, "another link arrived");
    let back = LinkChange { netns: Some(netns.fd()), ..LinkChange::default() };
    error.with_details(match host.netlink().change_link(arrived, &back) {
        Ok(()) => "it is in the container again; the container exchanged the two".to_owned(),
        Err(e) => format!("it is on the host: {}", e.msg),
    })
}

/// Whether a device on the host lacks its former state. A device that the reference's DEL moved
/// back and an operator has reconfigured since does not count.
fn is_unfinished(host: &Netlink, link: &Link, kept: &Belongings) -> Result<bool> {
    let is_as_it_came = link.alias == kept.device || link.name != kept.device;
    Ok(is_as_it_came || (!link.up && host.keep_addresses(link)?.is_empty()))
}

/// Restores name and state of a device on the host; returns the link with its new name.
fn settle(host: &Netlink, link: &Link, kept: &Belongings) -> Result<Link> {
    let name = &kept.device;
    if link.name != *name {
        rename(host, link, name)?;
    }
    kept.restore(host, &host.link(name)?)?;
    host.link(name)
}

fn rename(host: &Netlink, link: &Link, name: &str) -> Result<()> {
    drop_alternative_names(host, link)?;
    refuse_taken_name(host, link, name)?;
    host.change_link(link, &LinkChange { name: Some(name), ..LinkChange::default() })
}

fn missing_inside(found: &Found<Belongings>, netns: &Netns, kind: &str) -> Result<Error> {
    let kept = &found.kept;
    let ifname = found.key.ifname.as_str();
    let instead = describe_substitute(ifname, netns.netlink()?.find_link(ifname)?);
    let msg = format!("failed to find {ifname:?} in containerNS: Link not found");
    Ok(Error::new(Code::TRY_AGAIN, msg).with_details(format_args!(
        "the {kind} {:?} with address {} went into netns {:?} and is neither there nor on the host; {instead}; \
         move it back into that namespace, or delete the namespace, and repeat; its record stays in /run/cni/host-device",
        kept.device, kept.mac, found.netns_path
    )))
}

/// Describes the link in the device's place.
fn describe_substitute(ifname: &str, link: Option<Link>) -> String {
    match link {
        Some(link) => format!("{ifname:?} there is another link, with address {}", link.mac()),
        None => format!("no link there is named {ifname:?}"),
    }
}

fn not_yet_back(found: &Found<Belongings>) -> Error {
    let kept = &found.kept;
    unmoved(Code::TRY_AGAIN, &kept.device, "it is not there yet").with_details(format_args!(
        "netns {:?} is gone, and the kernel gives its device with address {} to the host when no process uses it any more; \
         repeat then; its record stays in /run/cni/host-device",
        found.netns_path, kept.mac
    ))
}
