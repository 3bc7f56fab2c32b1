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
use crate::net::netlink::{BridgeSpec, Link, LinkChange, Watch};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::rollback::{Rollback, transaction};
use crate::steps::addresses::{self, Wiring};
use crate::steps::ipam::{self, Ipam};
use crate::steps::{forwarding, link_kind, masquerade, router_advertisements, spoofcheck, veth};

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
                spoofcheck::create(cx.handles(), &at.key, &pair.host.name, &pair.mac, rb)?;
            }
            let mut result = match &ipam {
                Some(ipam) => configure(member, ipam, &bridge, rb)?,
                None => set_up_container_end(conf, at)?,
            };
            let host_end = carrying(cx, conf, &bridge, &pair)?;
            result.interfaces = interfaces(member, &bridge, &host_end, &pair.mac)?;
            result.dns = conf.dns.or(result.dns);
            Ok(result)
        })
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        check::all(Member { cx, conf, at })
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        let mut errors = ErrorList::default();
        // First, so that the kernel's cleanup of it overlaps with the deletion of the link, which
        // waits for the same grace periods.
        errors.push(masquerade::delete(cx, at));
        errors.push(ipam::del_with_link(cx, at, &mut || veth::delete(cx, at)));
        errors.push(spoofcheck::delete(cx.handles(), &at.key));
        errors.push(spoofcheck::delete_of_reference(cx.handles(), &at.key));
        errors.finish()
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let ipam = Ipam::find(cx)?;
        link_kind::require(cx, veth::KIND)?;
        match cx.host()?.find_link(&conf.bridge)? {
            Some(found) => require_bridge(&found).map_err(|e| e.with_code(Code::NOT_AVAILABLE))?,
            None => link_kind::require(cx, KIND)?,
        }
        if conf.macspoofchk {
            spoofcheck::status(cx.handles())?;
        }
        let Some(ipam) = ipam else { return Ok(()) };
        if conf.ip_masq {
            masquerade::status(cx.handles(), conf.ip_masq_backend)?;
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
    let kind = if link.kind.is_empty() { "device" } else { &link.kind };
    Err(Error::new(Code::CONFLICT, format!("{:?} already exists but is not a bridge", link.name))
        .with_details(format_args!("it is a {kind}")))
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
    let host = cx.host()?;
    let up = (!bridge.up).then_some(true);
    let promisc = (conf.promisc_mode && !bridge.promisc).then_some(true);
    let accept_ra = router_advertisements::accepted_by(&bridge.name)?;
    let is_changed = up.is_some() || promisc.is_some() || accept_ra.is_some();
    let ports = if is_changed { host.ports(bridge)? } else { vec![] };
    let before = Before {
        link: bridge.clone(),
        promisc: promisc.map(|_| false),
        accept_ra,
        ports: ports.iter().map(|port| port.index).collect(),
    };
    rb.undo(format_args!("restore bridge {:?}", bridge.name), move || {
        guard::undo(cx.deadline(), || before.restore(cx))
    });
    router_advertisements::ignore(&bridge.name)?;
    match (up, promisc) {
        (None, None) => Ok(()),
        _ => host.change_link(bridge, &LinkChange { up, promisc, ..LinkChange::default() }),
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
    /// Restores the bridge's former state, unless it has new ports: another ADD then relies on the
    /// state that this one has set up. A bridge without an address of its own took that of our
    /// port, and lost it with the port.
    fn restore(&self, cx: &Context<'_>) -> Result<()> {
        let host = cx.host()?;
        if host.ports(&self.link)?.iter().any(|port| !self.ports.contains(&port.index)) {
            return Ok(());
        }
        let now = host.link(&self.link.name)?;
        let then = self.link.mac();
        let mac = (now.mac() != then && !then.is_zero()).then_some(then);
        let change = LinkChange {
            up: Some(self.link.up),
            promisc: self.promisc,
            mac,
            ..LinkChange::default()
        };
        let mut errors = ErrorList::default();
        errors.push(host.change_link(&self.link, &change));
        let accept_ra = |value: &String| router_advertisements::restore(&self.link.name, value);
        errors.push(self.accept_ra.as_ref().map_or(Ok(()), accept_ra));
        errors.finish()
    }
}

fn create<'a>(cx: &'a Context<'_>, conf: &Conf, rb: &mut Rollback<'a>) -> Result<Link> {
    let host = cx.host()?;
    // It is up from the start: another ADD that finds it down would take it for one that was not
    // created here, and set it down again when it fails. With an address of its own the bridge does
    // not take that of one port or another, which neighbours would have to learn again each time.
    let mac = Some(MacAddr::random());
    let spec = BridgeSpec {
        name: &conf.bridge,
        mtu: conf.mtu(),
        mac,
        vlan_filtering: conf.filters_vlans(),
    };
    match host.create_bridge(&spec) {
        Err(e) if e.is_exists() => return host.link(&conf.bridge), // lost race with another ADD
        created => {
            let what =
                format_args!("failed to create bridge {0:?}: could not add {0:?}", conf.bridge);
            created.map_err(|e| e.worded(what))?;
        }
    }
    let bridge = host.link(&conf.bridge)?;
    let made = bridge.clone();
    rb.undo(format_args!("delete bridge {:?}", conf.bridge), move || {
        guard::undo(cx.deadline(), || delete_unused(cx, &made))
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
    result.ips.iter_mut().for_each(|ip| ip.interface = Some(CONTAINER));
    gateway::plan(conf, &mut result)?;
    let wiring = Wiring { detection: conf.detection(), subnet_on_link: true, routes_first: vec![] };
    addresses::configure(cx, at, &result, &wiring)?;
    if conf.is_gateway() {
        gateway::ensure(member, bridge, &result, rb)?;
        forwarding::ensure(&result).map_err(|e| e.context("failed to enable forwarding"))?;
    }
    if conf.ip_masq {
        masquerade::create(cx.handles(), conf.ip_masq_backend, at, &result, rb)?;
    }
    Ok(result)
}

/// Layer 2: sets the interface up; everything else is left to the container.
fn set_up_container_end(conf: &Conf, at: &Attachment) -> Result<AddResult> {
    if !conf.disable_container_interface {
        let container = at.netlink()?;
        container.change_link(
            &container.link(at.ifname())?,
            &LinkChange { up: Some(true), ..LinkChange::default() },
        )?;
    }
    Ok(AddResult::default())
}

/// Waits until the host's end has a carrier: before that the bridge forwards nothing to it.
fn carrying(cx: &Context<'_>, conf: &Conf, bridge: &Link, pair: &veth::Pair) -> Result<Link> {
    let host = cx.host()?;
    let link = host.link(&pair.host.name)?;
    if link.master != Some(bridge.index) {
        // The undo of the ADD that created the bridge saw no ports yet.
        return Err(Error::new(
            Code::TRY_AGAIN,
            format!("bridge {:?} was deleted meanwhile", bridge.name),
        )
        .with_details(format_args!("{:?} is not its port any more", link.name)));
    }
    if conf.disable_container_interface || link.is_operational() {
        return Ok(link);
    }
    let end = cx.deadline().of_wait(CARRIER_PATIENCE);
    let link = Watch::links()?.until_operational(host, &pair.host.name, end)?;
    if link.is_operational() {
        Ok(link)
    } else {
        Err(Error::new(
            Code::KERNEL,
            format!("bridge port in error state: {}", link.operstate_text()),
        )
        .with_details(format_args!("{:?} did not carry within {CARRIER_PATIENCE:?}", link.name)))
    }
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
    let container = Interface {
        name: at.ifname().to_owned(),
        mac: container_mac.to_string(),
        sandbox: at.netns_path.clone(),
        ..Interface::default()
    };
    let bridge = cx.host()?.link(&bridge.name)?; // with its current hardware address
    let mut all = vec![host_interface(&bridge), host_interface(host_end), container];
    if let Some(name) = conf.gateway_interface().filter(|_| conf.is_gateway()) {
        all.extend(cx.host()?.find_link(&name)?.map(|link| host_interface(&link)));
    }
    Ok(all)
}

/// The result's entry for a link of the host.
fn host_interface(link: &Link) -> Interface {
    Interface { name: link.name.clone(), mac: link.mac().to_string(), ..Interface::default() }
}
