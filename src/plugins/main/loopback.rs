//! `loopback`: sets `lo` of the container up. <https://www.cni.dev/plugins/current/main/loopback/>

use ipnet::IpNet;
use nix::errno::Errno;
use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Interface, IpConfig};
use crate::error::{Code, Error, Result};
use crate::family::Family;
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::net::netns::Netns;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::rollback::transaction;
use crate::steps::interface;
use crate::steps::records::Records;

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
        let container = at.netlink()?;
        let lo = loopback(container)?;
        loopback_addresses(at, &lo)?; // before any change
        let ips = transaction(|rb| {
            set_up(container, &lo, true)?;
            if !lo.up {
                rb.undo("set the loopback interface down", || set_up(container, &lo, false));
            }
            let ips = loopback_addresses(at, &lo)?; // the kernel adds them when the link is set up
            records().write(at, &())?;
            Ok(ips)
        })?;
        Ok(previous.unwrap_or_else(|| result(at, &lo, ips)))
    }

    fn check(_cx: &Context<'_>, _conf: &Conf, at: &Attachment) -> Result<()> {
        if loopback(at.netlink()?)?.up {
            Ok(())
        } else {
            Err(Error::check("loopback interface is down"))
        }
    }

    fn del(_cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        if let Some(netns) = &at.netns
            && is_attached_to(netns, at)?
        {
            let container = netns.netlink()?;
            set_up(container, &loopback(container)?, false)?;
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
        None => Ok(records().others_in::<()>(netns, &at.netns_path, &at.key)?.is_empty()),
    }
}

fn loopback(container: &Netlink) -> Result<Link> {
    container
        .find_link_by_index(LO_INDEX)?
        .ok_or_else(|| Error::kernel("find the loopback interface", Errno::ENODEV))
}

fn set_up(container: &Netlink, lo: &Link, up: bool) -> Result<()> {
    container.change_link(lo, &LinkChange { up: Some(up), ..LinkChange::default() })
}

/// The first address of each family. Any address outside the loopback networks means that this `lo`
/// is not a plain loopback interface.
fn loopback_addresses(at: &Attachment, lo: &Link) -> Result<Vec<IpConfig>> {
    let addresses = at.netlink()?.addresses(lo)?;
    let nets: Vec<IpNet> = addresses.iter().map(|address| address.net).collect();
    if let Some(other) = nets.iter().find(|net| !net.addr().is_loopback()) {
        return Err(not_a_loopback(*other));
    }
    let first = |family| nets.iter().find(|net| Family::of_net(**net) == family);
    Ok(Family::ALL.into_iter().filter_map(first).map(|net| IpConfig::new(*net)).collect())
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
