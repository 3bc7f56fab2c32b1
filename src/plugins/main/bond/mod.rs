//! `bond`: an interface of several links, which share the traffic or stand in for each other.
//! <https://github.com/k8snetworkplumbingwg/bond-cni>
//!
//! The links are the host's, and move into the container and back, or the container's own, from
//! earlier attachments.

mod conf;
mod returning;

use std::fmt;

pub use self::conf::Conf;
use self::returning::{Kept, Own};
use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, LinkChange, LinkKind};
use crate::plugin::owned::{self, Owned, Removal};
use crate::plugin::part::{Part as _, Target};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
use crate::steps::addresses::DuplicateDetection;
use crate::steps::container_link::{self, Addressing};
use crate::steps::ipam::{Ipam, Leases};
use crate::steps::link_record::PluginLinks;
use crate::steps::moved_link::{self, Links, MovedDevice};
use crate::steps::prev_result;

/// The kernel's name for this kind of link.
const KIND: &str = "bond";
/// The bonds in containers.
const BONDS: PluginLinks = PluginLinks { plugin: "bond", kind: KIND };

/// The plugin.
pub struct Bond;

impl Plugin for Bond {
    const NAME: &'static str = "bond";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "an interface of several links, which stand in for each other";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let addressing = Addressing::by_ipam_if_any(cx, DuplicateDetection::Shared)?;
        container_link::require_free_name(at)?;
        // What an ADD of this attachment took that had no DEL.
        returning::leave_recorded(cx, &Detachment::from(at))?;
        let links = find_ports(cx, conf, at)?;
        let mtu = conf.mtu_on(&links)?;
        let result = transaction(|rb| {
            let ports = take_ports(cx, conf, at, &links, rb)?;
            let bond = conf.plan(&ports, mtu).create(cx, at, rb)?;
            enslave_ports(at, &bond, &ports)?;
            addressing.set_up(at, &at.netlink()?.link(at.ifname())?, rb)
        })?;
        Ok(conf.dns.put_into(result))
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        container_link::check(cx, at, |on| compare(on, conf))
    }

    fn del(cx: &Context<'_>, conf: &Conf, at: &Detachment) -> Result<()> {
        owned::remove(&[&Leases, &Bonds(conf)], cx, Removal::Del(at))
    }

    /// Does not look for the links: those that are not on the host may be in use in a container.
    fn status(cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        let ipam = Ipam::find(cx)?;
        container_link::require_kind(cx, KIND)?;
        ipam.map_or(Ok(()), |ipam| ipam.status())
    }

    fn gc(cx: &Context<'_>, conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        owned::remove(&[&Leases, &Bonds(conf)], cx, Removal::Gc(valid))
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        container_link::repair(cx, at, repairs, |on| compare(on, conf))
    }
}

/// The bonds of attachments. Their links go back to where they were.
struct Bonds<'c>(&'c Conf);

impl Owned for Bonds<'_> {
    fn remove(&self, cx: &Context<'_>, at: &Detachment) -> Result<()> {
        returning::leave(cx, self.0, at)
    }

    fn collect(&self, cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
        returning::collect_garbage(cx, valid)
    }
}

/// Compares the bond with prevResult and the configuration.
fn compare(on: Target<'_>, conf: &Conf) -> Result<()> {
    let mut result = prev_result::require(on.cx);
    if let Ok(result) = &mut result
        && conf.fail_over_mac == 1
    {
        // The bond's hardware address changes with its active link.
        result.interfaces.iter_mut().for_each(|interface| interface.mac.clear());
    }
    container_link::compare(on, result, Some(KIND), |bond| {
        let name = &bond.name;
        let mut found = ErrorList::default();
        if let Some(LinkKind::Bond(detail)) = &bond.detail
            && detail.mode != conf.mode()
        {
            let problem = format!("bonding mode {}, expected {}", detail.mode, conf.mode());
            found.add(Error::check(format!("interface {name:?} has {problem}")));
        }
        if let Some(mtu) = conf.mtu().filter(|mtu| *mtu != bond.mtu) {
            let problem = format!("MTU {}, expected {mtu}", bond.mtu);
            found.add(Error::check(format!("interface {name:?} has {problem}")));
        }
        if let Some(ports) = found.push(on.at.netlink().and_then(|netlink| netlink.ports(bond))) {
            let is_port = |name: &&str| {
                let mut others = ports.iter().flat_map(|port| &port.alternative_names);
                ports.iter().any(|port| port.name == *name) || others.any(|other| other == name)
            };
            for link in conf.names().filter(|name| !is_port(name)) {
                let problem = format!("link {link:?} is not a port of {name:?}");
                found.add(Error::check(problem));
            }
        }
        found.push(conf.accept_ra.compare(on));
        found.finish()
    })
}

/// Finds the links of the configuration, on the host or in the container. Changes nothing.
fn find_ports(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<Vec<Link>> {
    let mut links: Vec<Link> = vec![];
    for (index, name) in conf.names().enumerate() {
        let wanted = Wanted { conf, index, name };
        let link = wanted.find(cx, at)?;
        if let Some(first) = links.iter().position(|other| other.index == link.index) {
            return Err(wanted.mistake(format_args!("is links[{first}] as well")));
        }
        links.push(link);
    }
    Ok(links)
}

/// A link of the configuration.
struct Wanted<'a> {
    conf: &'a Conf,
    index: usize,
    name: &'a str,
}

impl Wanted<'_> {
    fn find(&self, cx: &Context<'_>, at: &Attachment) -> Result<Link> {
        let name = self.name;
        if self.conf.links_in_container {
            let link = at.netlink()?.find_link(name)?.ok_or_else(|| {
                self.not_a_link_of("container").saying(format_args!(
                    "failed to confirm that link ({name}) exists, error: Link not found"
                ))
            })?;
            return self.require_no_master(link);
        }
        let link = cx.host()?.find_link(name)?.ok_or_else(|| {
            let why = format!("failed to lookup link interface {name:?}: Link not found");
            self.not_a_link_of("host")
                .with_details("a link that is in a container already is not on the host")
                .saying(self.moving(&why))
        })?;
        let link = self.require_no_master(link)?;
        // The device keeps its name in the container.
        let Some(other) = at.netlink()?.find_link(&link.name)? else { return Ok(link) };
        let why = format!("failed to move link interface to container netns {name:?}: file exists");
        Err(Error::new(Code::CONFLICT, self.moving(&why)).with_details(format_args!(
            "links[{}].name: the container has a {} of this name, with address {}; rename one of the two",
            self.index,
            other.kind_text(),
            other.mac()
        )))
    }

    /// A link leaves its bridge, bond or VRF when it moves, and would not come back to it.
    fn require_no_master(&self, link: Link) -> Result<Link> {
        if link.master.is_none() {
            return Ok(link);
        }
        Err(self
            .mistake("is a port of another link")
            .expecting("a link without a master: take it out of its bridge, bond or VRF first"))
    }

    fn not_a_link_of(&self, place: &str) -> Error {
        self.mistake(format_args!("is not a link of the {place}")).expecting("the name of one")
    }

    fn mistake(&self, problem: impl fmt::Display) -> Error {
        let path = format!("links[{}].name", self.index);
        Error::config(path, format_args!("{:?} {problem}", self.name))
    }

    /// The original's sentence for links that cannot be moved.
    fn moving(&self, why: &str) -> String {
        let links: Vec<String> =
            self.conf.names().map(|name| format!("map[name:{name}]")).collect();
        format!(
            "failed to move the links ([{}]) in container network namespace, error: {why}",
            links.join(" ")
        )
    }
}

/// Records the links and moves those of the host into the container; returns them as they are
/// there. DEL, or the undo, puts them back.
fn take_ports<'a>(
    cx: &'a Context<'_>,
    conf: &Conf,
    at: &'a Attachment,
    links: &[Link],
    rb: &mut Rollback<'a>,
) -> Result<Vec<Link>> {
    if conf.links_in_container {
        let container = at.netlink()?;
        let own = links.iter().map(|link| Own::of(container, link)).collect::<Result<_>>()?;
        record_ports(cx, at, &Kept { own, ..Kept::default() }, rb)?;
        return Ok(links.to_vec());
    }
    let host = Links::of_host(cx)?;
    let mut devices = vec![];
    for link in links {
        let identity = host.identify(link)?;
        let device = moved_link::settle_returned(host.netlink(), link.clone(), &identity)?;
        let state = MovedDevice::of(host.netlink(), &device, identity)?;
        devices.push((device, state));
    }
    let states = devices.iter().map(|(_, state)| state.clone()).collect();
    record_ports(cx, at, &Kept { devices: states, ..Kept::default() }, rb)?;
    let mut moved = vec![];
    for (device, state) in devices {
        let name = &device.name;
        moved_link::move_in(host.netlink(), at.netns()?, &device, name).map_err(|e| {
            e.worded(format_args!("failed to move link interface to container netns {name:?}"))
        })?;
        moved_link::forget_others(&state.identity, returning::RECORDS, &at.key)?;
        moved.push(at.netlink()?.link(name)?);
    }
    Ok(moved)
}

/// Writes the record before anything moves, with the undo for all of it.
fn record_ports<'a>(
    cx: &'a Context<'_>,
    at: &'a Attachment,
    kept: &Kept,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    returning::records().write(at, kept)?;
    rb.undo("give the links back", move || returning::leave_recorded(cx, &Detachment::from(at)));
    Ok(())
}

/// Makes the links ports of the bond.
fn enslave_ports(at: &Attachment, bond: &Link, links: &[Link]) -> Result<()> {
    let container = at.netlink()?;
    for (index, link) in links.iter().enumerate() {
        let mut changes = vec![];
        // The kernel enslaves only links that are down.
        if link.up {
            changes.push(LinkChange { up: Some(false), ..LinkChange::default() });
        }
        let is_double = links[..index].iter().any(|other| other.mac == link.mac);
        if is_double {
            changes.push(LinkChange { mac: Some(MacAddr::random()), ..LinkChange::default() });
        }
        // The kernel sets its ports up.
        changes.push(LinkChange { master: Some(bond.index), ..LinkChange::default() });
        let mut changes = changes.iter();
        changes
            .try_for_each(|change| container.change_link(link, change))
            .map_err(|e| e.context(format_args!("bond {:?}", link.name)))?;
    }
    Ok(())
}
