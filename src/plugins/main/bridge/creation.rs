//! The bridge itself: it is created or found, and set up; a failed ADD restores or deletes it.

use super::guard;
use super::member::Member;
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::plugin::Context;
use crate::rollback::Rollback;
use crate::steps::router_advertisements;

/// The kernel's name for this kind of link.
pub const KIND: &str = "bridge";

impl<'a> Member<'a> {
    /// Finds the bridge or creates it. An existing bridge keeps its MTU and its VLAN filtering.
    pub fn ensure_bridge(self, rb: &mut Rollback<'a>) -> Result<Link> {
        let bridge = match self.host()?.find_link(&self.conf.bridge)? {
            None => self.create_bridge(rb)?,
            Some(found) => found,
        };
        require_bridge(&bridge)?;
        self.set_up_bridge(&bridge, rb)?;
        Ok(bridge)
    }

    fn create_bridge(self, rb: &mut Rollback<'a>) -> Result<Link> {
        let host = self.host()?;
        let name = &self.conf.bridge;
        // It is up from the start: another ADD that finds it down would take it for one that was
        // not created here, and set it down again when it fails. With an address of its own the
        // bridge does not take that of one port or another, which neighbours would have to learn
        // again each time.
        match host.create_bridge(&self.conf.bridge_spec(MacAddr::random())) {
            Err(e) if e.is_exists() => return host.link(name), // lost race with another ADD
            created => created.map_err(|e| uncreated(e, name))?,
        }
        let bridge = host.link(name)?;
        let (cx, born) = (self.cx, bridge.clone());
        rb.undo(format_args!("delete bridge {name:?}"), move || {
            let is_used = || Ok(!ports_of(&born, cx.host()?)?.is_empty());
            guard::undo(cx.handles(), is_used, || cx.host()?.delete_link(born.index))
        });
        Ok(bridge)
    }

    /// Creates a bridge that is gone, with this hardware address.
    pub fn recreate_bridge(self, mac: MacAddr) -> Result<()> {
        let name = &self.conf.bridge;
        match self.host()?.create_bridge(&self.conf.bridge_spec(mac)) {
            Err(e) if e.is_exists() => Ok(()), // lost race with an ADD
            created => created.map_err(|e| uncreated(e, name)),
        }
    }

    /// Sets the bridge up, promiscuous if configured, forwarding the configured groups, and makes it
    /// ignore router advertisements. A bridge that was not created here may be down, not promiscuous,
    /// or accept a container as its router.
    fn set_up_bridge(self, bridge: &Link, rb: &mut Rollback<'a>) -> Result<()> {
        let change = LinkChange {
            up: (!bridge.up).then_some(true),
            promisc: (self.conf.promisc_mode && !bridge.promisc).then_some(true),
            ..LinkChange::default()
        };
        let mask = bridge.group_fwd_mask | self.conf.group_fwd_mask();
        let is_other = mask != bridge.group_fwd_mask;
        let before = Before::read(self.cx, bridge, is_other || change != LinkChange::default())?;
        let promisc = change.promisc.map(|promisc| !promisc);
        let accepts_advertisements = before.accept_ra.is_some();
        Before { promisc, ..before }.restore_on_failure(self.cx, rb);
        if accepts_advertisements {
            router_advertisements::ignore(&bridge.name)?;
        }
        if is_other {
            self.host()?.set_group_fwd_mask(bridge, mask)?;
        }
        if change == LinkChange::default() {
            return Ok(());
        }
        self.host()?.change_link(bridge, &change)
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
    /// Reads the state before a change of the bridge, if there will be one.
    fn read(cx: &Context<'_>, bridge: &Link, is_changed: bool) -> Result<Before> {
        let accept_ra = router_advertisements::accepted_by(&bridge.name)?;
        let needs_ports = accept_ra.is_some() || is_changed;
        let ports = if needs_ports { ports_of(bridge, cx.host()?)? } else { vec![] };
        Ok(Before { link: bridge.clone(), promisc: None, accept_ra, ports })
    }

    fn restore_on_failure<'a>(self, cx: &'a Context<'_>, rb: &mut Rollback<'a>) {
        let what = format!("restore bridge {:?}", self.link.name);
        rb.undo(what, move || {
            let is_used = || self.has_new_ports(cx.host()?);
            guard::undo(cx.handles(), is_used, || self.restore(cx.host()?))
        });
    }

    /// Restores the bridge's former state.
    fn restore(&self, host: &Netlink) -> Result<()> {
        let now = host.link(&self.link.name)?;
        let mut errors = ErrorList::default();
        errors.push(host.change_link(&self.link, &self.missing_on(&now)));
        if now.group_fwd_mask != self.link.group_fwd_mask {
            errors.push(host.set_group_fwd_mask(&self.link, self.link.group_fwd_mask));
        }
        if let Some(accept_ra) = &self.accept_ra {
            errors.push(router_advertisements::restore(&self.link.name, accept_ra));
        }
        errors.finish()
    }

    fn has_new_ports(&self, host: &Netlink) -> Result<bool> {
        Ok(ports_of(&self.link, host)?.iter().any(|port| !self.ports.contains(port)))
    }

    /// The change that makes the bridge what it was. A bridge without an address of its own took
    /// that of our port, and lost it with the port.
    fn missing_on(&self, now: &Link) -> LinkChange<'static> {
        let mac = self.link.mac();
        LinkChange {
            up: Some(self.link.up),
            promisc: self.promisc,
            mac: (now.mac() != mac && !mac.is_zero()).then_some(mac),
            ..LinkChange::default()
        }
    }
}

/// The ifindexes of the bridge's ports.
fn ports_of(bridge: &Link, host: &Netlink) -> Result<Vec<u32>> {
    Ok(host.ports(bridge)?.iter().map(|port| port.index).collect())
}

fn uncreated(error: Error, name: &str) -> Error {
    error.worded(format_args!("failed to create bridge {name:?}: could not add {name:?}"))
}
