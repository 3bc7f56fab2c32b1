//! `bridge`: connects containers by a bridge on the host.
//! <https://www.cni.dev/plugins/current/main/bridge/>
//!
//! Without `ipam.type` the bridge is only a switch (layer 2); with it, containers get addresses,
//! and optionally the bridge is their gateway and the host masquerades for them.

mod conf;
mod creation;
mod gateway;
mod guard;
mod parts;
mod port;
pub mod spoofcheck;

use std::cell::RefCell;
use std::time::Duration;

use self::creation::{KIND, Member, require_bridge};
use self::parts::Seen;
use self::spoofcheck::SpoofChecks;
use crate::cni::conf::ValidAttachments;
use crate::cni::result::{AddResult, Interface};
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, Watch};
use crate::plugin::owned::{self, Owned, Removal};
use crate::plugin::part::Target;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin};
use crate::repair::Repairs;
use crate::rollback::{Rollback, transaction};
use crate::steps::fastpath::{self, FastPaths};
use crate::steps::ipam::{self, Ipam, Leases};
use crate::steps::masquerade::{self, Masquerading};
use crate::steps::veth::{self, Pairs};
use crate::steps::{container_link, interface, prev_result};

pub use self::conf::Conf;

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
        let ipam = Ipam::find_valid(cx)?;
        at.netns()?; // before anything is made: it may be gone
        let member = Member { cx, conf, at };
        let result = transaction(|rb| member.attach(ipam.as_ref(), rb))?;
        Ok(conf.dns.put_into(result))
    }

    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let mut found = ErrorList::default();
        found.push(ipam::check_if_any(cx, at));
        if let Some(result) = found.push(prev_result::require(cx)) {
            Member { cx, conf, at }.compare(&result, &mut found);
        }
        found.finish()
    }

    fn del(cx: &Context<'_>, _conf: &Conf, at: &Detachment) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Del(at))
    }

    fn status(cx: &Context<'_>, conf: &Conf) -> Result<()> {
        let ipam = Ipam::find(cx)?;
        container_link::require_kind(cx, veth::KIND)?;
        match cx.host()?.find_link(&conf.bridge)? {
            Some(found) => require_bridge(&found).map_err(|e| e.with_code(Code::NOT_AVAILABLE))?,
            None => container_link::require_kind(cx, KIND)?,
        }
        if conf.macspoofchk {
            spoofcheck::status(cx.handles())?;
        }
        if conf.fast_path {
            fastpath::status(cx.handles())?;
        }
        let Some(ipam) = ipam else { return Ok(()) };
        if conf.ip_masq {
            masquerade::status(cx.handles(), conf.ip_masq_backend)?;
        }
        ipam.status()
    }

    fn gc(cx: &Context<'_>, _conf: &Conf, valid: &ValidAttachments) -> Result<()> {
        owned::remove(OWNS, cx, Removal::Gc(valid))
    }

    fn repair(cx: &Context<'_>, conf: &Conf, at: &Attachment, repairs: &Repairs) -> Result<()> {
        let (result, member) = (prev_result::require(cx)?, Member { cx, conf, at });
        let inside = at.netlink()?.link(at.ifname())?;
        let port = veth::host_end(cx, at, &result, &inside)?;
        let found = prev_result::index_of(&result, at).map(|index| (&inside, index));
        let seen = member.seeing(&result, None, Some(&port), found);
        ipam::repair_before(cx, at, repairs, || {
            let mac = member.mac_of(&result);
            let mut parts = seen.bridge_parts();
            parts.append(seen.parts(mac.clone().ok().flatten()));
            ErrorList::of([mac.map(drop), parts.repair(member.target(), repairs)])
        })
    }
}

/// What the key of an attachment leads to, in the order of removal.
const OWNS: &[&dyn Owned] = &[&Masquerading, &Leases, &FastPaths, &Pairs, &SpoofChecks];

impl<'a> Member<'a> {
    fn target(self) -> Target<'a> {
        Target { cx: self.cx, at: self.at }
    }

    fn seeing<'p>(
        self,
        result: &'p AddResult,
        bridge: Option<&Link>,
        port: Option<&'p Link>,
        inside: Option<(&'p Link, usize)>,
    ) -> Seen<'p, 'a> {
        Seen { member: self, result, bridge: RefCell::new(bridge.cloned()), port, inside }
    }

    fn attach(self, ipam: Option<&Ipam<'a>>, rb: &mut Rollback<'a>) -> Result<AddResult> {
        // The guard keeps the undo of another ADD from deleting the bridge until the port exists.
        let guard = guard::joining(self.cx.deadline())?;
        let bridge = self.ensure_bridge(None, rb)?;
        let pair = veth::create(self.cx, self.at, &self.conf.wishes(), rb)?;
        // From here on the bridge is as it was before it had the port.
        let bridge = port::attach(self, bridge, &pair.host, rb)?;
        drop(guard);
        let mut result = AddResult::default();
        let seen = self.seeing(&result, Some(&bridge), Some(&pair.host), None);
        seen.before_addresses(Some(pair.mac.clone())).make(self.target(), rb)?;
        if let Some(ipam) = ipam {
            result = ipam.add(self.at, rb)?;
            interface::assign_addresses(&mut result, CONTAINER);
            gateway::plan(self.conf, &mut result)?;
        }
        let seen = self.seeing(&result, Some(&bridge), Some(&pair.host), None);
        seen.with_addresses().make(self.target(), rb)?;
        let host_end = self.wait_for_carrier(&bridge, &pair.host.name)?;
        result.interfaces = self.interfaces(&bridge, &host_end, &pair.mac)?;
        Ok(result)
    }

    /// Compares prevResult with the kernel; stops where a link is missing that the rest needs.
    fn compare(self, result: &AddResult, found: &mut ErrorList) -> Option<()> {
        let Member { cx, conf, at } = self;
        let (index, interface) = found.push(prev_result::container_interface(result, at))?;
        found.push(self.require_in_result(result));
        let seen = self.seeing(result, None, None, None);
        found.push(seen.bridge_parts().compare(self.target()));
        let inside = prev_result::verify_link(at, interface, Some(veth::KIND), found)?;
        let port = veth::host_end(cx, at, result, &inside);
        let port = found.push(port.map_err(|error| port::no_port(error, &conf.bridge)));
        let seen = Seen { port: port.as_ref(), inside: Some((&inside, index)), ..seen };
        let mac = found.push(self.mac_of(result)).flatten();
        found.push(seen.parts(mac).compare(self.target()));
        Some(())
    }

    /// The container's hardware address, if frames with another are dropped.
    fn mac_of(self, result: &AddResult) -> Result<Option<MacAddr>> {
        self.conf.macspoofchk.then(|| prev_result::container_mac(result, self.at)).transpose()
    }

    /// Requires the result to have the bridge, on the host.
    fn require_in_result(self, result: &AddResult) -> Result<()> {
        let name = &self.conf.bridge;
        match result.interfaces.iter().find(|interface| interface.name == *name) {
            None => Err(Error::check("prevResult does not have it")
                .saying(format_args!("CNI created bridge {name} in host namespace was not found"))),
            Some(told) if told.sandbox.is_empty() => Ok(()),
            Some(told) => Err(Error::check(format!("prevResult has it in {:?}", told.sandbox))
                .saying(format_args!("Interface {name} should not be in sandbox"))),
        }
    }

    /// Waits until the host's end has a carrier: before that the bridge forwards nothing to it.
    fn wait_for_carrier(self, bridge: &Link, host_end: &str) -> Result<Link> {
        let link = self.host()?.link(host_end)?;
        if link.master != Some(bridge.index) {
            // The undo of the ADD that created the bridge saw no ports yet.
            let msg = format!("bridge {:?} was deleted meanwhile", bridge.name);
            return Err(Error::new(Code::TRY_AGAIN, msg)
                .with_details(format_args!("{host_end:?} is not its port any more")));
        }
        if self.conf.disable_container_interface || link.is_operational() {
            return Ok(link);
        }
        let end = self.cx.deadline().of_wait(CARRIER_PATIENCE);
        let link = Watch::links()?.until_operational(self.host()?, host_end, end)?;
        if link.is_operational() {
            return Ok(link);
        }
        let msg = format!("bridge port in error state: {}", link.operstate_text());
        let details = format_args!("{host_end:?} did not carry within {CARRIER_PATIENCE:?}");
        Err(Error::new(Code::KERNEL, msg).with_details(details))
    }

    /// The interfaces of the result: bridge, host's end, container's end, and the gateway's own
    /// interface if the network has a VLAN.
    fn interfaces(self, bridge: &Link, host_end: &Link, mac: &MacAddr) -> Result<Vec<Interface>> {
        let bridge = self.host()?.link(&bridge.name)?; // with its current hardware address
        let container = interface::in_container(self.at, mac);
        let mut all = vec![interface::on_host(&bridge), interface::on_host(host_end), container];
        if let Some(name) = self.conf.gateway_interface().filter(|_| self.conf.is_gateway()) {
            all.extend(self.host()?.find_link(&name)?.iter().map(interface::on_host));
        }
        Ok(all)
    }
}
