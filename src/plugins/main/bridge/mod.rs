//! `bridge`: connects containers by a bridge on the host.
//! <https://www.cni.dev/plugins/current/main/bridge/>
//!
//! Without `ipam.type` the bridge is only a switch (layer 2); with it, containers get addresses,
//! and optionally the bridge is their gateway and the host masquerades for them.

mod check;
mod conf;
mod creation;
mod gateway;
mod guard;
mod member;
mod port;
mod repair;
pub mod vlan;

pub use self::conf::Conf;
use self::creation::{KIND, require_bridge};
use self::member::Member;

use std::time::Duration;

use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Interface};
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, Watch};
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
use crate::steps::addresses::{self, Wiring};
use crate::steps::ipam::{self, Ipam};
use crate::steps::{fastpath, forwarding, interface, link_kind, masquerade, spoofcheck, veth};

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
        errors.push(fastpath::del_with_pair(cx, at));
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
        if conf.fast_path {
            fastpath::status(cx.handles())?;
        }
        let Some(ipam) = ipam else { return Ok(()) };
        if conf.ip_masq {
            conf.masquerade(cx).status()?;
        }
        ipam.status()
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        let mut errors = ErrorList::default();
        errors.push(ipam::gc_with_links(cx, valid, &mut || fastpath::gc_with_pairs(cx, valid)));
        errors.push(spoofcheck::collect_garbage(cx.handles(), &cx.config.name, valid));
        errors.push(masquerade::collect_garbage(cx.handles(), &cx.config.name, valid));
        errors.finish()
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        repair::all(Member { cx, conf, at }, repairs)
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
        self.conf.accept_ra.set(self.cx, self.at)?;
        if self.conf.macspoofchk {
            self.drop_spoofed(&pair, rb)?;
        }
        let mut result = match ipam {
            Some(ipam) => self.configure(ipam, &bridge, rb)?,
            None => self.leave_unconfigured()?,
        };
        if self.conf.fast_path {
            let path = fastpath::Path::through(&pair.host.name, &result);
            fastpath::create(self.cx, &self.at.key, &path, rb)?;
        }
        let host_end = self.carrying(&bridge, &pair.host.name)?;
        result.interfaces = self.interfaces(&bridge, &host_end, &pair.mac)?;
        Ok(result)
    }

    /// Adds the attachment to the bridge. Returns the bridge as it was before it had the port, and
    /// the pair; its end on the host is the port. The guard keeps the undo of another ADD from deleting
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
