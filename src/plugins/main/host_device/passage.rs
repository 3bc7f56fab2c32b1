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
use crate::steps::records::{Found, Records};
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
    for ended in others_of(&identity, &at.key)? {
        records().remove(&ended.key)?;
    }
    at.netlink()?.link(at.ifname())
}

fn move_in(host: &Netlink, at: &Attachment, device: &Link) -> Result<()> {
    let naming = Naming { name: at.ifname(), alias: &device.name };
    let moved = host.change_link(device, &naming.in_netns(at.netns()?));
    if moved.as_ref().is_err_and(|error| error.is_not_found()) {
        records().remove(&at.key)?; // lost race: the other ADD has a record of its own
    }
    moved
}

/// Restores the state of a device that came back to the host without a DEL of its attachment, or by
/// a DEL that was killed.
fn finish_return(host: &Links<'_>, key: &Key, device: &Link, identity: &Identity) -> Result<Link> {
    let own = records().find::<Belongings>(key)?.map(|found| found.kept);
    let of_earlier_version = own.filter(|own| own.is_of_earlier_version(device));
    let of_device = records_of(identity)?.into_iter().map(|found| found.kept);
    let mut device = device.clone();
    for kept in of_earlier_version.into_iter().chain(of_device) {
        if is_unfinished(host.netlink(), &device, &kept)? {
            device = settle(host.netlink(), &device, &kept)?;
        }
    }
    Ok(device)
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
    let Some(found) = records().find::<Belongings>(key)? else {
        netns.map_or(Ok(()), |netns| leave_unrecorded(cx, key, netns))?;
        return records().remove(key); // a draft, or a record that cannot be parsed
    };
    match netns {
        Some(netns) if found.is_of(netns)? => give_back(cx, &found, Some(netns)),
        // CNI_NETNS leads to another container's namespace by now.
        _ => give_back(cx, &found, found.netns()?.as_ref()),
    }
}

/// Moves the devices of this network's attachments that are not valid back to the host.
pub fn collect_garbage(cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
    let mut errors = ErrorList::default();
    for stale in records().stale::<Belongings>(&cx.config.name, valid)? {
        errors.push(valid.remove(
            || Stale { what: format!("device {}", stale.kept.device), ..stale.as_stale() },
            || stale.netns().and_then(|netns| give_back(cx, &stale, netns.as_ref())),
        ));
    }
    errors.push(records().forget_torn::<Belongings>(&cx.config.name, valid));
    errors.finish()
}

/// Returns the device of a record to the host, from the namespace of its ADD if that can be
/// reached. The record is kept while the device may be in a container.
fn give_back(cx: &Context<'_>, found: &Found<Belongings>, netns: Option<&Netns>) -> Result<()> {
    let netns = match netns {
        Some(netns) if found.kept.identity.is_some() || is_youngest_in(netns, found)? => {
            Some(netns)
        }
        _ => None,
    };
    Return { host: Links::of_host(cx)?, found, netns, deadline: cx.deadline() }.run()?;
    records().remove(&found.key)
}

/// Whether this is the newest record for the namespace. A record of an earlier version does not say
/// which namespace was at its path, and that may be another container's by now.
fn is_youngest_in(netns: &Netns, found: &Found<Belongings>) -> Result<bool> {
    let written = records().written(&found.key)?;
    let mut others = records().others_in::<Belongings>(netns, &found.netns_path, &found.key)?;
    others.retain(|other| other.key.container_id != found.key.container_id);
    for other in others {
        if records().written(&other.key)? > written {
            return Ok(false);
        }
    }
    Ok(true)
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
        let host = self.host.netlink();
        let kept = &self.found.kept;
        if let Some(netns) = self.netns
            && let Some(link) = self.find_inside(netns)?
        {
            return kept.restore(host, &bring(&self.host, netns, &link, kept)?);
        }
        match self.find_returned()? {
            Some(link) if is_unfinished(host, &link, kept)? => settle(host, &link, kept).map(drop),
            Some(_) => Ok(()),
            None => self.require_gone(),
        }
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
        let kept = &self.found.kept;
        let renamed = find_by_alias(container, &self.found.key)?;
        if let Some(link) = renamed.filter(|link| link.alias == kept.device) {
            return Ok(Some(link));
        }
        // The kernel may have moved the link before it refused the new name.
        let stray = container.find_link(&kept.device)?;
        Ok(stray.filter(|link| link.mac().to_string() == kept.mac && !may_be_of_container(link)))
    }

    /// The device if it is already on the host: the kernel returned it when the container's
    /// namespace was deleted, or a DEL that was killed moved it. Waits for hardware of a namespace
    /// that was just deleted.
    fn find_returned(&self) -> Result<Option<Link>> {
        let Some(identity) = &self.found.kept.identity else {
            return self.find_returned_by_alias();
        };
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
        let Some(identity) = &self.found.kept.identity else {
            return self.require_name_on_host();
        };
        if self.is_known_to_be_gone(identity)? {
            return Ok(());
        }
        match self.netns {
            Some(netns) => Err(missing_inside(self.found, netns, identity.kind())?),
            None if self.is_coming(identity) => Err(not_yet_back(self.found)),
            None => Ok(()), // it was deleted with the namespace
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
    if !records_of(&identity)?.is_empty() {
        return Ok(());
    }
    let host = Links::of_host(cx)?;
    let device = move_out(&host, netns, &link, &Naming { name: &link.alias, alias: "" })?;
    if host.identify(&device)?.is_same_as(&identity) {
        Ok(())
    } else {
        Err(send_back(&host, netns, &device))
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
            let why = format_args!("the host has another link named {name:?}");
            Err(unmoved(Code::CONFLICT, &link.name, why)
                .with_details("it stays in the container; rename the other link"))
        }
        _ => Ok(()),
    }
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
    match host.netlink().change_link(arrived, &back) {
        Ok(()) => {
            error.with_details("it is in the container again; the container exchanged the two")
        }
        Err(e) => error.with_details(format_args!("it is on the host: {}", e.msg)),
    }
}

/// Whether a device on the host lacks its former state. A device that the reference's DEL moved
/// back and an operator has reconfigured since does not count.
fn is_unfinished(host: &Netlink, link: &Link, kept: &Belongings) -> Result<bool> {
    let is_as_it_came = link.alias == kept.device || link.name != kept.device;
    Ok(is_as_it_came || (!link.up && host.keep_addresses(link)?.is_empty()))
}

/// Restores name and state of a device on the host; returns the link with its new name.
fn settle(host: &Netlink, link: &Link, kept: &Belongings) -> Result<Link> {
    if link.name != kept.device {
        drop_alternative_names(host, link)?;
        refuse_taken_name(host, link, &kept.device)?;
        host.change_link(link, &LinkChange { name: Some(&kept.device), ..LinkChange::default() })?;
    }
    kept.restore(host, &host.link(&kept.device)?)?;
    host.link(&kept.device)
}

fn missing_inside(found: &Found<Belongings>, netns: &Netns, kind: &str) -> Result<Error> {
    let kept = &found.kept;
    let ifname = found.key.ifname.as_str();
    let instead = match netns.netlink()?.find_link(ifname)? {
        Some(link) => format!("{ifname:?} there is another link, with address {}", link.mac()),
        None => format!("no link there is named {ifname:?}"),
    };
    let msg = format!("failed to find {ifname:?} in containerNS: Link not found");
    Ok(Error::new(Code::TRY_AGAIN, msg).with_details(format_args!(
        "the {kind} {:?} with address {} went into netns {:?} and is neither there nor on the host; {instead}; \
         move it back into that namespace, or delete the namespace, and repeat; its record stays in /run/cni/host-device",
        kept.device, kept.mac, found.netns_path
    )))
}

fn not_yet_back(found: &Found<Belongings>) -> Error {
    let kept = &found.kept;
    unmoved(Code::TRY_AGAIN, &kept.device, "it is not there yet").with_details(format_args!(
        "netns {:?} is gone, and the kernel gives its device with address {} to the host when no process uses it any more; \
         repeat then; its record stays in /run/cni/host-device",
        found.netns_path, kept.mac
    ))
}
