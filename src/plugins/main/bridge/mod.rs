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
use crate::net::netlink::{Link, LinkChange, Watch};
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
        transaction(|rb| {
            let (bridge, pair) = join(member, rb)?;
            if conf.macspoofchk {
                drop_spoofed(member, &pair, rb)?;
            }
            let mut result = match &ipam {
                Some(ipam) => configure(member, ipam, &bridge, rb)?,
                None => set_up_container_end(conf, at)?,
            };
            let host_end = carrying(cx, conf, &bridge, &pair)?;
            result.interfaces = interfaces(member, &bridge, &host_end, &pair.mac)?;
            Ok(conf.dns.put_into(result))
        })
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

fn drop_spoofed<'a>(member: Member<'a>, pair: &veth::Pair, rb: &mut Rollback<'a>) -> Result<()> {
    let port = spoofcheck::Port { name: &pair.host.name, mac: &pair.mac };
    spoofcheck::create(member.cx.handles(), &member.at.key, &port, rb)
}

/// Adds the attachment to the bridge. Returns the bridge as it was before it had the port, and the
/// pair whose host's end is the port. The guard keeps the undo of another ADD from deleting the
/// bridge until the port exists.
fn join<'a>(member: Member<'a>, rb: &mut Rollback<'a>) -> Result<(Link, veth::Pair)> {
    let Member { cx, conf, at } = member;
    let _guard = guard::joining(cx.deadline())?;
    let bridge = ensure(cx, conf, rb)?;
    let pair = veth::create(cx, at, &conf.wishes(), rb)?;
    let bridge = port::attach(member, bridge, &pair.host, rb)?;
    Ok((bridge, pair))
}

/// Finds the bridge or creates it. An existing bridge keeps its MTU and its VLAN filtering.
fn ensure<'a>(cx: &'a Context<'_>, conf: &Conf, rb: &mut Rollback<'a>) -> Result<Link> {
    let bridge = match cx.host()?.find_link(&conf.bridge)? {
        None => create(cx, conf, rb)?,
        Some(found) => found,
    };
    require_bridge(&bridge)?;
    set_up_bridge(cx, conf, &bridge, rb)?;
    Ok(bridge)
}

fn require_bridge(link: &Link) -> Result<()> {
    if link.kind == KIND {
        return Ok(());
    }
    Err(Error::new(Code::CONFLICT, format!("{:?} already exists but is not a bridge", link.name))
        .with_details(format_args!("it is a {}", link.kind_text())))
}

/// Sets the bridge up, promiscuous if configured, and makes it ignore router advertisements. A
/// bridge that was not created here may be down, not promiscuous, or accept a container as its
/// router.
fn set_up_bridge<'a>(
    cx: &'a Context<'_>,
    conf: &Conf,
    bridge: &Link,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    let change = LinkChange {
        up: (!bridge.up).then_some(true),
        promisc: (conf.promisc_mode && !bridge.promisc).then_some(true),
        ..LinkChange::default()
    };
    let before = Before::read(cx, bridge, &change)?;
    rb.undo(format_args!("restore bridge {:?}", bridge.name), move || {
        guard::undo(cx.handles(), || before.restore(cx))
    });
    router_advertisements::ignore(&bridge.name)?;
    if change == LinkChange::default() {
        return Ok(());
    }
    cx.host()?.change_link(bridge, &change)
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
        let ports = if is_changed { cx.host()?.ports(bridge)? } else { vec![] };
        Ok(Before {
            link: bridge.clone(),
            promisc: change.promisc.map(|promisc| !promisc),
            accept_ra,
            ports: ports.iter().map(|port| port.index).collect(),
        })
    }

    /// Restores the bridge's former state, unless it has new ports: another ADD then relies on the
    /// state that this one has set up.
    fn restore(&self, cx: &Context<'_>) -> Result<()> {
        let host = cx.host()?;
        if host.ports(&self.link)?.iter().any(|port| !self.ports.contains(&port.index)) {
            return Ok(());
        }
        let now = host.link(&self.link.name)?;
        let mut errors = ErrorList::default();
        errors.push(host.change_link(&self.link, &self.missing_on(&now)));
        if let Some(accept_ra) = &self.accept_ra {
            errors.push(router_advertisements::restore(&self.link.name, accept_ra));
        }
        errors.finish()
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

fn create<'a>(cx: &'a Context<'_>, conf: &Conf, rb: &mut Rollback<'a>) -> Result<Link> {
    let host = cx.host()?;
    // It is up from the start: another ADD that finds it down would take it for one that was not
    // created here, and set it down again when it fails. With an address of its own the bridge does
    // not take that of one port or another, which neighbours would have to learn again each time.
    match host.create_bridge(&conf.bridge_spec(MacAddr::random())) {
        Err(e) if e.is_exists() => return host.link(&conf.bridge), // lost race with another ADD
        created => created.map_err(|e| {
            let name = &conf.bridge;
            e.worded(format_args!("failed to create bridge {name:?}: could not add {name:?}"))
        })?,
    }
    let bridge = host.link(&conf.bridge)?;
    let made = bridge.clone();
    rb.undo(format_args!("delete bridge {:?}", conf.bridge), move || {
        guard::undo(cx.handles(), || delete_unused(cx, &made))
    });
    Ok(bridge)
}

/// Deletes the bridge that this ADD created, unless another ADD has joined it.
fn delete_unused(cx: &Context<'_>, bridge: &Link) -> Result<()> {
    let host = cx.host()?;
    if host.ports(bridge)?.is_empty() { host.delete_link(bridge.index) } else { Ok(()) }
}

/// Layer 3: addresses and routes in the container, and what the host does for them.
fn configure<'a>(
    member: Member<'a>,
    ipam: &Ipam<'a>,
    bridge: &Link,
    rb: &mut Rollback<'a>,
) -> Result<AddResult> {
    let Member { cx, conf, at } = member;
    let mut result = ipam.add(at, rb)?;
    interface::assign_addresses(&mut result, CONTAINER);
    gateway::plan(conf, &mut result)?;
    addresses::configure(cx, at, &result, &Wiring::to_subnet(conf.detection()))?;
    if conf.is_gateway() {
        gateway::ensure(member, bridge, &result, rb)?;
        forwarding::ensure(&result).map_err(|e| e.context("failed to enable forwarding"))?;
    }
    if conf.ip_masq {
        conf.masquerade(cx).create(at, &result, rb)?;
    }
    Ok(result)
}

/// Layer 2: sets the interface up; everything else is left to the container.
fn set_up_container_end(conf: &Conf, at: &Attachment) -> Result<AddResult> {
    if !conf.disable_container_interface {
        let container = at.netlink()?;
        container.set_up(&container.link(at.ifname())?)?;
    }
    Ok(AddResult::default())
}

/// Waits until the host's end has a carrier: before that the bridge forwards nothing to it.
fn carrying(cx: &Context<'_>, conf: &Conf, bridge: &Link, pair: &veth::Pair) -> Result<Link> {
    let host = cx.host()?;
    let link = host.link(&pair.host.name)?;
    if link.master != Some(bridge.index) {
        return Err(deleted_meanwhile(bridge, &link));
    }
    if conf.disable_container_interface || link.is_operational() {
        return Ok(link);
    }
    let end = cx.deadline().of_wait(CARRIER_PATIENCE);
    let link = Watch::links()?.until_operational(host, &pair.host.name, end)?;
    if link.is_operational() { Ok(link) } else { Err(without_carrier(&link)) }
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

/// The interfaces of the result: bridge, host's end, container's end, and the gateway's own
/// interface if the network has a VLAN.
fn interfaces(
    member: Member<'_>,
    bridge: &Link,
    host_end: &Link,
    container_mac: &MacAddr,
) -> Result<Vec<Interface>> {
    let Member { cx, conf, at } = member;
    let host = cx.host()?;
    let bridge = host.link(&bridge.name)?; // with its current hardware address
    let container = interface::in_container(at, container_mac);
    let mut all = vec![interface::on_host(&bridge), interface::on_host(host_end), container];
    if let Some(name) = conf.gateway_interface().filter(|_| conf.is_gateway()) {
        all.extend(host.find_link(&name)?.iter().map(interface::on_host));
    }
    Ok(all)
}
