//! `loopback`: sets `lo` of the container up. <https://www.cni.dev/plugins/current/main/loopback/>

use ipnet::IpNet;
use nix::errno::Errno;
use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Interface, IpConfig};
use crate::error::{Aspect, Code, Error, Result};
use crate::family::Family;
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::net::netns::Netns;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
use crate::steps::interface;
use crate::steps::records::{Records, Site};

/// The link's name in results, whatever CNI_IFNAME says: Nomad calls with `eth0`.
const LO: &str = "lo";
/// LOOPBACK_IFINDEX of the kernel, the same in every namespace. The name is not reliable: any link
/// of a container can be renamed to `lo`.
const LO_INDEX: u32 = 1;

/// The plugin.
pub struct Loopback;

/// The configuration, which has no keys of its own.
#[derive(Debug, Default, Deserialize)]
pub struct Conf {}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[];

    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        Ok(())
    }
}

impl Plugin for Loopback {
    const NAME: &'static str = "loopback";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "sets the container's loopback interface up";
    type Conf = Conf;

    fn add(cx: &Context<'_>, _conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let previous = cx.config.prev_result()?;
        let lo = loopback(at.netlink()?)?;
        loopback_addresses(at, &lo)?; // before any change
        let ips = transaction(|rb| attach(at, &lo, rb))?;
        Ok(previous.unwrap_or_else(|| result(at, &lo, ips)))
    }

    fn check(_cx: &Context<'_>, _conf: &Conf, at: &Attachment) -> Result<()> {
        require_up(&loopback(at.netlink()?)?)
    }

    fn del(_cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        if let Some(netns) = &at.netns
            && is_attached_to(netns, at)?
        {
            set_down(netns.netlink()?)?;
        }
        records().remove(&at.key)
    }

    /// Always succeeds: every namespace has a loopback interface.
    fn status(_cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        Ok(())
    }

    /// Removes records: nothing else outlives the namespace.
    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        records().forget_stale::<()>(&cx.config.name, valid)
    }

    /// Nothing is on the host.
    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        repairs.leave(Self::check(cx, conf, at))
    }
}

fn require_up(lo: &Link) -> Result<()> {
    let down = || Error::check("loopback interface is down").about(&Aspect::Interface);
    if lo.up { Ok(()) } else { Err(down()) }
}

/// Sets the interface up; returns its addresses, which the kernel adds then.
fn attach<'a>(at: &'a Attachment, lo: &'a Link, rb: &mut Rollback<'a>) -> Result<Vec<IpConfig>> {
    let container = at.netlink()?;
    set_up(container, lo, true)?;
    if !lo.up {
        rb.undo("set the loopback interface down", || set_up(container, lo, false));
    }
    let ips = loopback_addresses(at, lo)?;
    records().write(at, &())?;
    Ok(ips)
}

/// The records of which namespace each attachment is in; their content is empty.
fn records() -> Records {
    Records::of_plugin(Loopback::NAME)
}

/// Whether the namespace at CNI_NETNS is the attachment's: the path may be another container's by
/// now. There is no record after an ADD of the reference or after an earlier DEL; then the
/// namespace counts as the attachment's, unless it is another attachment's.
fn is_attached_to(netns: &Netns, at: &Detachment) -> Result<bool> {
    match records().find::<()>(&at.key)? {
        Some(record) => record.is_of(netns),
        None => Ok(records().others_in::<()>(Site::of(at, netns))?.is_empty()),
    }
}

fn loopback(container: &Netlink) -> Result<Link> {
    container
        .find_link_by_index(LO_INDEX)?
        .ok_or_else(|| Error::kernel("find the loopback interface", Errno::ENODEV))
}

fn set_down(container: &Netlink) -> Result<()> {
    set_up(container, &loopback(container)?, false)
}

fn set_up(container: &Netlink, lo: &Link, up: bool) -> Result<()> {
    container.change_link(lo, &LinkChange { up: Some(up), ..LinkChange::default() })
}

/// The first address of each family. Any address outside the loopback networks means that this `lo`
/// is not a plain loopback interface.
fn loopback_addresses(at: &Attachment, lo: &Link) -> Result<Vec<IpConfig>> {
    let addresses = at.netlink()?.addresses(lo)?;
    let nets: Vec<IpNet> = addresses.iter().map(|address| address.net).collect();
    match nets.iter().find(|net| !net.addr().is_loopback()) {
        Some(other) => Err(not_a_loopback(*other)),
        None => Ok(Family::ALL.into_iter().filter_map(|family| first_of(family, &nets)).collect()),
    }
}

fn first_of(family: Family, nets: &[IpNet]) -> Option<IpConfig> {
    let mut nets = nets.iter().copied();
    nets.find(|net| Family::of_net(*net) == family).map(IpConfig::new)
}

fn not_a_loopback(net: IpNet) -> Error {
    let address = net.addr().to_string();
    Error::new(
        Code::CONFLICT,
        format!("loopback interface found with non-loopback address {address:?}"),
    )
}

fn result(at: &Attachment, lo: &Link, ips: Vec<IpConfig>) -> AddResult {
    let interface = Interface { name: LO.into(), ..interface::in_container(at, &lo.mac()) };
    let mut result = AddResult { interfaces: vec![interface], ips, ..AddResult::default() };
    interface::assign_addresses(&mut result, 0);
    result
}
