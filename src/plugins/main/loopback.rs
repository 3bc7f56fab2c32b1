//! `loopback`: sets `lo` of the container up. <https://www.cni.dev/plugins/current/main/loopback/>

use serde::Deserialize;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Interface, IpConfig};
use crate::error::{Code, Error, Result};
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::rollback::transaction;

/// The link's name, whatever CNI_IFNAME says: Nomad calls with `eth0`.
const LO: &str = "lo";

/// The plugin.
pub struct Loopback;

/// It has no keys of its own.
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
        let lo = container.link(LO)?;
        loopback_addresses(at, &lo)?; // before anything is changed
        let ips = transaction(|rb| {
            set_up(container, &lo, true)?;
            if !lo.up {
                rb.undo("set the loopback interface down", || set_up(container, &lo, false));
            }
            loopback_addresses(at, &lo) // the kernel adds them when the link is set up
        })?;
        Ok(previous.unwrap_or_else(|| result(at, &lo, ips)))
    }

    fn check(_cx: &Context<'_>, _conf: &Conf, at: &Attachment) -> Result<()> {
        match at.netlink()?.link(LO)?.up {
            true => Ok(()),
            false => Err(Error::check("loopback interface is down")),
        }
    }

    fn del(_cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        let Some(netns) = &at.netns else { return Ok(()) };
        let container = netns.netlink()?;
        set_up(container, &container.link(LO)?, false)
    }

    /// Every namespace has a loopback interface.
    fn status(_cx: &Context<'_>, _conf: &Conf) -> Result<()> {
        Ok(())
    }

    /// Nothing outlives the namespace.
    fn gc(_cx: &Context<'_>, _conf: &Conf, _valid: &ValidAttachments) -> Result<()> {
        Ok(())
    }
}

fn set_up(container: &Netlink, lo: &Link, up: bool) -> Result<()> {
    container.change_link(lo, &LinkChange { up: Some(up), ..LinkChange::default() })
}

/// The first address of each family. One that is not of the loopback networks means that this `lo` is not what it seems.
fn loopback_addresses(at: &Attachment, lo: &Link) -> Result<Vec<IpConfig>> {
    let addresses = at.netlink()?.addresses(lo)?;
    if let Some(other) = addresses.iter().find(|address| !address.net.addr().is_loopback()) {
        return Err(Error::new(
            Code::CONFLICT,
            format!("loopback interface found with non-loopback address {:?}", other.net.addr().to_string()),
        ));
    }
    let first = |is_v6: bool| addresses.iter().find(|address| address.net.addr().is_ipv6() == is_v6);
    let ip = |net| IpConfig { interface: Some(0), ..IpConfig::new(net) };
    Ok([first(false), first(true)].into_iter().flatten().map(|address| ip(address.net)).collect())
}

fn result(at: &Attachment, lo: &Link, ips: Vec<IpConfig>) -> AddResult {
    let interface = Interface {
        name: LO.into(),
        mac: lo.mac().to_string(),
        sandbox: at.netns_path.clone(),
        ..Interface::default()
    };
    AddResult { interfaces: vec![interface], ips, ..AddResult::default() }
}
