//! `loopback`: sets `lo` of the container up. <https://www.cni.dev/plugins/current/main/loopback/>

use ipnet::IpNet;
use nix::errno::Errno;
use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Interface, IpConfig};
use crate::error::{Aspect, Code, Error, Result};
use crate::family::Family;
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::rollback::transaction;
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
        addresses_of(container, &lo)?; // before any change
        let ips = transaction(|rb| {
            set_up(container, &lo, true)?;
            if !lo.up {
                rb.undo("set the loopback interface down", || set_up(container, &lo, false));
            }
            let ips = addresses_of(container, &lo)?; // which the kernel adds when it is set up
            records().write(at, &())?;
            Ok(ips)
        })?;
        Ok(previous.unwrap_or_else(|| {
            let interface = Interface { name: LO.into(), ..interface::in_container(at, &lo.mac()) };
            let mut result = AddResult { interfaces: vec![interface], ips, ..AddResult::default() };
            interface::assign_addresses(&mut result, 0);
            result
        }))
    }

    fn check(_cx: &Context<'_>, _conf: &Conf, at: &Attachment) -> Result<()> {
        match loopback(at.netlink()?)?.up {
            true => Ok(()),
            false => Err(Error::check("loopback interface is down").about(&Aspect::Interface)),
        }
    }

    /// CNI_NETNS may lead to another container's namespace by now. There is no record after an ADD of
    /// the reference or after an earlier DEL; then the namespace counts as the attachment's, unless
    /// it is another attachment's.
    fn del(_cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        if let Some(netns) = &at.netns {
            let is_its = match records().find::<()>(&at.key)? {
                Some(record) => record.is_of(netns)?,
                None => records().others_in::<()>(Site::of(at, netns))?.is_empty(),
            };
            if is_its {
                let container = netns.netlink()?;
                set_up(container, &loopback(container)?, false)?;
            }
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

/// The records of which namespace each attachment is in; their content is empty.
fn records() -> Records {
    Records::of_plugin(Loopback::NAME)
}

fn loopback(container: &Netlink) -> Result<Link> {
    container
        .find_link_by_index(LO_INDEX)?
        .ok_or_else(|| Error::kernel("find the loopback interface", Errno::ENODEV))
}

/// The first address of each family. Any address outside the loopback networks means that this `lo`
/// is not a plain loopback interface.
fn addresses_of(container: &Netlink, lo: &Link) -> Result<Vec<IpConfig>> {
    let addresses = container.addresses(lo)?;
    let nets: Vec<IpNet> = addresses.iter().map(|address| address.net).collect();
    if let Some(other) = nets.iter().find(|net| !net.addr().is_loopback()) {
        let address = other.addr().to_string();
        let msg = format!("loopback interface found with non-loopback address {address:?}");
        return Err(Error::new(Code::CONFLICT, msg));
    }
    let first_of = |family| nets.iter().copied().find(|net| Family::of_net(*net) == family);
    Ok(Family::ALL.into_iter().filter_map(first_of).map(IpConfig::new).collect())
}

fn set_up(container: &Netlink, lo: &Link, up: bool) -> Result<()> {
    container.change_link(lo, &LinkChange { up: Some(up), ..LinkChange::default() })
}
