//! `bridge`: connects containers by a bridge on the host.
//! <https://www.cni.dev/plugins/current/main/bridge/>
//!
//! Without `ipam.type` the bridge is only a switch (layer 2); with it, containers get addresses,
//! and optionally the bridge is their gateway and the host masquerades for them.

mod check;
mod conf;
mod gateway;
mod guard;
mod member;
mod port;
pub mod vlan;

pub use self::conf::Conf;
use self::member::Member;

use std::time::Duration;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Interface};
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, LinkChange, Netlink, Watch};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::rollback::{Rollback, transaction};
use crate::steps::addresses::{self, Wiring};
use crate::steps::ipam::{self, Ipam};
use crate::steps::{
    forwarding, interface, link_kind, masquerade, router_advertisements, spoofcheck, veth,
};

/// The kernel's name for this kind of link.
const KIND: &str = "bridge";
/// The index of the container's interface in the result.
const CONTAINER: i64 = 2;
/// How long a port may take to get its carrier; the reference waits as long.
const CARRIER_PATIENCE: Duration = Duration::from_millis(2550);

/// The plugin.
pub struct Bridge;

impl Plugin for Bridge {
    const NAME: &'static str = "bridge";
    const KIND: Kind = Kind::Main;
    const ABOUT: &'static str = "connects containers by a bridge of the host";
    type Conf = Conf;

    fn add(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<AddResult> {
        let ipam = Ipam::find_unless_layer_two(cx)?;
        at.netns()?;
        let member = Member { cx, conf, at };
        let result = transaction(|rb| member.attach(ipam.as_ref(), rb))?;
        Ok(conf.dns.put_into(result))
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        check::all(Member { cx, conf, at })
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        let mut errors = ErrorList::default();
        errors.push(masquerade::del_with_pair(cx, at));
        errors.push(spoofcheck::delete(cx.handles(), &at.key));
        errors.push(spoofcheck::delete_of_reference(cx.handles(), &at.key));
        errors.finish()
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let ipam = Ipam::find(cx)?;
        link_kind::require(cx, veth::KIND)?;
        status_of_bridge(cx, conf)?;
        if conf.macspoofchk {
            spoofcheck::status(cx.handles())?;
        }
        let Some(ipam) = ipam else { return Ok(()) };
        if conf.ip_masq {
            conf.masquerade(cx).status()?;
        }
        ipam.status()
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        let mut errors = ErrorList::default();
        errors.push(ipam::gc_with_links(cx, valid, &mut || veth::collect_garbage(cx, valid)));
        errors.push(spoofcheck::collect_garbage(cx.handles(), &cx.config.name, valid));
        errors.push(masquerade::collect_garbage(cx.handles(), &cx.config.name, valid));
        errors.finish()
    }
}

fn status_of_bridge(cx: &Context<'_>, conf: &Conf) -> Result<()> {
    match cx.host()?.find_link(&conf.bridge)? {
        Some(found) => require_bridge(&found).map_err(|e| e.with_code(Code::NOT_AVAILABLE)),
        None => link_kind::require(cx, KIND),
    }
}

impl<'a> Member<'a> {
    fn attach(self, ipam: Option<&Ipam<'a>>, rb: &mut Rollback<'a>) -> Result<AddResult> {
        let (bridge, pair) = self.join(rb)?;
        if self.conf.macspoofchk {
            self.drop_spoofed(&pair, rb)?;
        }
        let mut result = match ipam {
            Some(ipam) => self.configure(ipam, &bridge, rb)?,
            None => self.leave_unconfigured()?,
        };
        let host_end = self.carrying(&bridge, &pair.host.name)?;
        result.interfaces = self.interfaces(&bridge, &host_end, &pair.mac)?;
        Ok(result)
    }

    /// Adds the attachment to the bridge. Returns the bridge as it was before it had the port, and
    /// the pair whose host's end is the port. The guard keeps the undo of another ADD from deleting
    /// the bridge until the port exists.
    fn join(self, rb: &mut Rollback<'a>) -> Result<(Link, veth::Pair)> {
        let _guard = guard::joining(self.cx.deadline())?;
        let bridge = self.ensure_bridge(rb)?;
        let pair = veth::create(self.cx, self.at, &self.conf.wishes(), rb)?;
        let bridge = port::attach(self, bridge, &pair.host, rb)?;
        Ok((bridge, pair))
    }

    fn drop_spoofed(self, pair: &veth::Pair, rb: &mut Rollback<'a>) -> Result<()> {
        let port = spoofcheck::Port { name: &pair.host.name, mac: &pair.mac };
        spoofcheck::create(self.cx.handles(), &self.at.key, &port, rb)
    }

    /// Finds the bridge or creates it. An existing bridge keeps its MTU and its VLAN filtering.
    fn ensure_bridge(self, rb: &mut Rollback<'a>) -> Result<Link> {
        let bridge = match self.host()?.find_link(&self.conf.bridge)? {
            None => self.create_bridge(rb)?,
            Some(found) => found,
        };
        require_bridge(&bridge)?;
        self.set_up_bridge(&bridge, rb)?;
        Ok(bridge)
    }
}

fn require_bridge(link: &Link) -> Result<()> {
    if link.kind == KIND {
        return Ok(());
    }
    Err(not_a_bridge(link))
}

fn not_a_bridge(link: &Link) -> Error {
    let msg = format!("{:?} already exists but is not a bridge", link.name);
    Error::new(Code::CONFLICT, msg).with_details(format_args!("it is a {}", link.kind_text()))
}

impl<'a> Member<'a> {
    /// Sets the bridge up, promiscuous if configured, and makes it ignore router advertisements. A
    /// bridge that was not created here may be down, not promiscuous, or accept a container as its
    /// router.
    fn set_up_bridge(self, bridge: &Link, rb: &mut Rollback<'a>) -> Result<()> {
        let change = missing_on(bridge, self.conf);
        Before::read(self.cx, bridge, &change)?.restore_on_failure(self.cx, rb);
        router_advertisements::ignore(&bridge.name)?;
        if change == LinkChange::default() {
            return Ok(());
        }
        self.host()?.change_link(bridge, &change)
    }
}

/// The change that makes the bridge what the configuration wants.
fn missing_on(bridge: &Link, conf: &Conf) -> LinkChange<'static> {
    LinkChange {
        up: (!bridge.up).then_some(true),
        promisc: (conf.promisc_mode && !bridge.promisc).then_some(true),
        ..LinkChange::default()
    }
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
    /// Reads the state before this change.
    fn read(cx: &Context<'_>, bridge: &Link, change: &LinkChange<'_>) -> Result<Before> {
        let accept_ra = router_advertisements::accepted_by(&bridge.name)?;
        let is_changed = accept_ra.is_some() || *change != LinkChange::default();
        let ports = if is_changed { ports_of(bridge, cx.host()?)? } else { vec![] };
        let promisc = change.promisc.map(|promisc| !promisc);
        Ok(Before { link: bridge.clone(), promisc, accept_ra, ports })
    }

    fn restore_on_failure<'a>(self, cx: &'a Context<'_>, rb: &mut Rollback<'a>) {
        let what = format!("restore bridge {:?}", self.link.name);
        rb.undo(what, move || guard::undo(cx.handles(), || self.restore(cx.host()?)));
    }

    /// Restores the bridge's former state, unless it has new ports: another ADD then relies on the
    /// state that this one has set up.
    fn restore(&self, host: &Netlink) -> Result<()> {
        if self.has_new_ports(host)? {
            return Ok(());
        }
        let now = host.link(&self.link.name)?;
        let mut errors = ErrorList::default();
        errors.push(host.change_link(&self.link, &self.missing_on(&now)));
        errors.push(self.restore_accept_ra());
        errors.finish()
    }

    fn has_new_ports(&self, host: &Netlink) -> Result<bool> {
        Ok(ports_of(&self.link, host)?.iter().any(|port| !self.ports.contains(port)))
    }

    fn restore_accept_ra(&self) -> Result<()> {
        match &self.accept_ra {
            Some(accept_ra) => router_advertisements::restore(&self.link.name, accept_ra),
            None => Ok(()),
        }
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

impl<'a> Member<'a> {
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
        self.delete_on_failure(bridge.clone(), rb);
        Ok(bridge)
    }

    fn delete_on_failure(self, bridge: Link, rb: &mut Rollback<'a>) {
        let cx = self.cx;
        rb.undo(format_args!("delete bridge {:?}", self.conf.bridge), move || {
            guard::undo(cx.handles(), || delete_unused(cx.host()?, &bridge))
        });
    }
}

fn uncreated(error: Error, name: &str) -> Error {
    error.worded(format_args!("failed to create bridge {name:?}: could not add {name:?}"))
}

/// Deletes the bridge that this ADD created, unless another ADD has joined it.
fn delete_unused(host: &Netlink, bridge: &Link) -> Result<()> {
    if host.ports(bridge)?.is_empty() { host.delete_link(bridge.index) } else { Ok(()) }
}

impl<'a> Member<'a> {
    /// Layer 3: addresses and routes in the container, and what the host does for them.
    fn configure(self, ipam: &Ipam<'a>, bridge: &Link, rb: &mut Rollback<'a>) -> Result<AddResult> {
        let mut result = ipam.add(self.at, rb)?;
        interface::assign_addresses(&mut result, CONTAINER);
        gateway::plan(self.conf, &mut result)?;
        let wiring = Wiring::to_subnet(self.conf.detection());
        addresses::configure(self.cx, self.at, &result, &wiring)?;
        if self.conf.is_gateway() {
            self.route(bridge, &result, rb)?;
        }
        if self.conf.ip_masq {
            self.conf.masquerade(self.cx).create(self.at, &result, rb)?;
        }
        Ok(result)
    }

    /// Makes the bridge the gateway.
    fn route(self, bridge: &Link, result: &AddResult, rb: &mut Rollback<'a>) -> Result<()> {
        gateway::ensure(self, bridge, result, rb)?;
        enable_forwarding(result)
    }

    /// Layer 2: sets the interface up; everything else is left to the container.
    fn leave_unconfigured(self) -> Result<AddResult> {
        if !self.conf.disable_container_interface {
            self.set_up_container_end()?;
        }
        Ok(AddResult::default())
    }

    fn set_up_container_end(self) -> Result<()> {
        let container = self.at.netlink()?;
        container.set_up(&container.link(self.at.ifname())?)
    }

    /// Waits until the host's end has a carrier: before that the bridge forwards nothing to it.
    fn carrying(self, bridge: &Link, host_end: &str) -> Result<Link> {
        let link = self.host()?.link(host_end)?;
        if link.master != Some(bridge.index) {
            return Err(deleted_meanwhile(bridge, &link));
        }
        if self.conf.disable_container_interface || link.is_operational() {
            return Ok(link);
        }
        self.await_carrier(host_end)
    }

    fn await_carrier(self, port: &str) -> Result<Link> {
        let end = self.cx.deadline().of_wait(CARRIER_PATIENCE);
        let link = Watch::links()?.until_operational(self.host()?, port, end)?;
        if link.is_operational() { Ok(link) } else { Err(without_carrier(&link)) }
    }

    /// The interfaces of the result: bridge, host's end, container's end, and the gateway's own
    /// interface if the network has a VLAN.
    fn interfaces(self, bridge: &Link, host_end: &Link, mac: &MacAddr) -> Result<Vec<Interface>> {
        let bridge = self.host()?.link(&bridge.name)?; // with its current hardware address
        let container = interface::in_container(self.at, mac);
        let mut all = vec![interface::on_host(&bridge), interface::on_host(host_end), container];
        all.extend(self.find_gateway_interface()?.iter().map(interface::on_host));
        Ok(all)
    }

    fn find_gateway_interface(self) -> Result<Option<Link>> {
        match self.conf.gateway_interface() {
            Some(name) if self.conf.is_gateway() => self.host()?.find_link(&name),
            _ => Ok(None),
        }
    }
}

fn enable_forwarding(result: &AddResult) -> Result<()> {
    forwarding::ensure(result).map_err(|e| e.context("failed to enable forwarding"))
}

/// The undo of the ADD that created the bridge saw no ports yet.
fn deleted_meanwhile(bridge: &Link, port: &Link) -> Error {
    Error::new(Code::TRY_AGAIN, format!("bridge {:?} was deleted meanwhile", bridge.name))
        .with_details(format_args!("{:?} is not its port any more", port.name))
}

fn without_carrier(port: &Link) -> Error {
    let state = port.operstate_text();
    Error::new(Code::KERNEL, format!("bridge port in error state: {state}"))
        .with_details(format_args!("{:?} did not carry within {CARRIER_PATIENCE:?}", port.name))
}
