//! The bridge itself: it is created or found, and set up; a failed ADD restores or deletes it.

use super::conf::Conf;
use super::guard;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{BridgeSpec, Link, LinkChange, Netlink};
use crate::plugin::{Attachment, Context};
use crate::rollback::Rollback;
use crate::steps::settings;

/// The kernel's name for this kind of link.
pub const KIND: &str = "bridge";

/// A container's interface and the bridge that it is, or will be, connected to.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    /// The call.
    pub cx: &'a Context<'a>,
    /// The configuration of the bridge and the port.
    pub conf: &'a Conf,
    /// The interface.
    pub at: &'a Attachment,
}

impl<'a> Member<'a> {
    /// The netlink socket of the host.
    pub fn host(self) -> Result<&'a Netlink> {
        self.cx.host()
    }

    /// Finds the bridge or creates it, with this hardware address if any. An existing bridge keeps its
    /// MTU and its VLAN filtering.
    pub fn ensure_bridge(self, mac: Option<MacAddr>, rb: &mut Rollback<'a>) -> Result<Link> {
        let bridge = match self.host()?.find_link(&self.conf.bridge)? {
            None => self.create_bridge(mac.unwrap_or_else(MacAddr::random), rb)?,
            Some(found) => found,
        };
        require_bridge(&bridge)?;
        self.set_up_bridge(&bridge, rb)?;
        Ok(bridge)
    }

    fn create_bridge(self, mac: MacAddr, rb: &mut Rollback<'a>) -> Result<Link> {
        let host = self.host()?;
        let name = &self.conf.bridge;
        // It is up from the start: another ADD that finds it down would take it for one that was
        // not created here, and set it down again when it fails. With an address of its own the
        // bridge does not take that of one port or another, which neighbours would have to learn
        // again each time.
        let Conf { vlan, vlan_trunk, .. } = self.conf;
        let vlan_filtering = *vlan != 0 || vlan_trunk.is_some();
        let spec = BridgeSpec { name, mtu: self.conf.mtu(), mac: Some(mac), vlan_filtering };
        match host.create_bridge(&spec) {
            Err(e) if e.is_exists() => return host.link(name), // lost race with another ADD
            created => {
                let failure =
                    format_args!("failed to create bridge {name:?}: could not add {name:?}");
                created.map_err(|e| e.worded(failure))?
            }
        }
        let bridge = host.link(name)?;
        let born = bridge.clone();
        rb.undo(format_args!("delete bridge {name:?}"), move || {
            let is_used = || Ok(!host.ports(&born)?.is_empty());
            guard::unless_used(self.cx.handles(), is_used, || host.delete_link(born.index))
        });
        Ok(bridge)
    }

    /// Sets the bridge up, promiscuous if configured, forwarding the configured groups, and makes it
    /// ignore router advertisements. A bridge that was not created here may be down, not promiscuous,
    /// or accept a container as its router.
    fn set_up_bridge(self, bridge: &Link, rb: &mut Rollback<'a>) -> Result<()> {
        let host = self.host()?;
        let change = LinkChange {
            up: (!bridge.up).then_some(true),
            promisc: (self.conf.promisc_mode && !bridge.promisc).then_some(true),
            ..LinkChange::default()
        };
        let mask = bridge.group_fwd_mask | self.conf.group_fwd_mask();
        let (is_other, is_changed) =
            (mask != bridge.group_fwd_mask, change != LinkChange::default());
        let accept_ra = settings::ra_accepted_by(&bridge.name)?;
        let accepts_advertisements = accept_ra.is_some();
        let ports = match accepts_advertisements || is_other || is_changed {
            true => host.ports(bridge)?.iter().map(|port| port.index).collect(),
            false => vec![],
        };
        let promisc = change.promisc.map(|promisc| !promisc);
        let before = Before { link: bridge.clone(), promisc, accept_ra, ports };
        rb.undo(format_args!("restore bridge {:?}", bridge.name), move || {
            let has_new_ports = || {
                let ports = host.ports(&before.link)?;
                Ok(ports.iter().any(|port| !before.ports.contains(&port.index)))
            };
            guard::unless_used(self.cx.handles(), has_new_ports, || before.restore(host))
        });
        if accepts_advertisements {
            settings::ignore_ra(&bridge.name)?;
        }
        if is_other {
            host.set_group_fwd_mask(bridge, mask)?;
        }
        if is_changed { host.change_link(bridge, &change) } else { Ok(()) }
    }
}

/// Fails unless the link is a bridge.
pub fn require_bridge(link: &Link) -> Result<()> {
    if link.kind == KIND {
        return Ok(());
    }
    let msg = format!("{:?} already exists but is not a bridge", link.name);
    Err(Error::new(Code::CONFLICT, msg).with_details(format_args!("it is a {}", link.kind_text())))
}

/// The state of the bridge before this ADD.
struct Before {
    link: Link,
    /// The promiscuous mode to restore.
    promisc: Option<bool>,
    /// The `accept_ra` to restore.
    accept_ra: Option<String>,
    /// The ifindexes of the ports, if there is anything to restore.
    ports: Vec<u32>,
}

impl Before {
    /// Restores the bridge's former state. A bridge without an address of its own took that of our
    /// port, and lost it with the port.
    fn restore(&self, host: &Netlink) -> Result<()> {
        let now = host.link(&self.link.name)?;
        let mac = self.link.mac();
        let change = LinkChange {
            up: Some(self.link.up),
            promisc: self.promisc,
            mac: (now.mac() != mac && !mac.is_zero()).then_some(mac),
            ..LinkChange::default()
        };
        let mut errors = ErrorList::default();
        errors.push(host.change_link(&self.link, &change));
        if now.group_fwd_mask != self.link.group_fwd_mask {
            errors.push(host.set_group_fwd_mask(&self.link, self.link.group_fwd_mask));
        }
        if let Some(accept_ra) = &self.accept_ra {
            errors.push(settings::restore_ra(&self.link.name, accept_ra));
        }
        errors.finish()
    }
}
