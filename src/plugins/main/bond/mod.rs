//! `bond`: an interface of several links, which share the traffic or stand in for each other.
//! <https://github.com/k8snetworkplumbingwg/bond-cni>
//!
//! The links are the host's, and move into the container and back, or the container's own, from
//! earlier attachments.

mod conf;
mod ports;
mod returning;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::AddResult;
use crate::error::{Error, ErrorList, Result};
use crate::net::netlink::LinkKind;
use crate::plugin::owned::{self, Owned, Removal};
use crate::plugin::part::{Part as _, Target};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::addresses::DuplicateDetection;
use crate::steps::container_link::{self, Addressing};
use crate::steps::ipam::{Ipam, Leases};
use crate::steps::link_record::PluginLinks;
use crate::steps::prev_result;

pub use self::conf::Conf;

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
        let links = ports::find(cx, conf, at)?;
        let mtu = conf.mtu_on(&links)?;
        let result = transaction(|rb| {
            let ports = ports::take(cx, conf, at, &links, rb)?;
            let bond = conf.plan(&ports, mtu).create(cx, at, rb)?;
            ports::enslave(at, &bond, &ports)?;
            addressing.set_up(at, &at.netlink()?.link(at.ifname())?, rb)
        })?;
        Ok(conf.dns.put_into(result))
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let on = Target { cx, at };
        container_link::check(on, || compare(on, conf))
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
        let on = Target { cx, at };
        container_link::repair(on, repairs, || compare(on, conf))
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
