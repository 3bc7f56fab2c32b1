//! What an attachment to the bridge consists of.

use std::cell::RefCell;

use super::creation::{self, KIND, Member};
use super::{gateway, guard, port, spoofcheck};
use crate::cni::result::AddResult;
use crate::error::{Aspect, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, LinkChange};
use crate::plugin::part::{Part, Parts, Target};
use crate::rollback::{Rollback, transaction};
use crate::steps::addresses::{Inside, Wiring};
use crate::steps::fastpath::Path;
use crate::steps::masquerade::Masquerade;
use crate::steps::settings::{self, Forwarding};

/// What ADD has made so far, or what CHECK or a repair has found.
pub struct Seen<'p, 'a> {
    pub member: Member<'a>,
    pub result: &'p AddResult,
    /// The bridge as it was read last; None while it is gone.
    pub bridge: RefCell<Option<Link>>,
    /// The host's end of the pair.
    pub port: Option<&'p Link>,
    /// The container's end and its index in the result, as CHECK has found it.
    pub inside: Option<(&'p Link, usize)>,
}

impl<'a> Seen<'_, 'a> {
    /// The bridge, which ADD makes by hand, since it must have the port before another ADD's undo
    /// looks.
    pub fn bridge_parts(&self) -> Parts<'_, 'a> {
        let conf = self.member.conf;
        let mut parts = Parts::default();
        for (name, of, is_wanted) in [
            ("bridge", Property::There, true),
            ("promiscuous mode", Property::Promiscuous, conf.promisc_mode),
            ("forwarded groups", Property::Groups, conf.group_fwd_mask() != 0),
            ("bridge up", Property::Up, true),
        ] {
            parts.extend(name, is_wanted.then_some(HostBridge { seen: self, of }));
        }
        parts
    }

    /// All that an attachment has on the bridge and beside it, for CHECK and repairs.
    pub fn parts(&self, mac: Option<MacAddr>) -> Parts<'_, 'a> {
        let mut parts = Parts::default();
        parts.extend("port", self.port.map(|port| BridgePort { seen: self, port }));
        parts.append(self.before_addresses(mac));
        parts.append(self.with_addresses());
        parts
    }

    /// What must be there before the IPAM plugin, which may set the interface up, is asked.
    pub fn before_addresses(&self, mac: Option<MacAddr>) -> Parts<'_, 'a> {
        let conf = self.member.conf;
        let mut parts = Parts::default();
        parts.push("accept_ra", conf.accept_ra);
        let port = self.port.filter(|_| conf.macspoofchk);
        parts.extend(
            "spoof check",
            port.zip(mac).map(|(port, mac)| spoofcheck::Port { name: &port.name, mac }),
        );
        parts
    }

    /// What depends on the addresses.
    pub fn with_addresses(&self) -> Parts<'_, 'a> {
        let (Member { conf, cx, .. }, result) = (self.member, self.result);
        let has_ipam = cx.config.ipam_type().is_ok_and(|name| !name.is_empty());
        let mut parts = Parts::default();
        if !conf.disable_container_interface {
            let wiring = has_ipam.then(|| Wiring::to_subnet(conf.detection()));
            parts.push("addresses and routes", Inside { result, wiring, found: self.inside });
        }
        if conf.is_gateway() && has_ipam {
            parts.push("gateways", Gateways { seen: self });
            let failure = "failed to enable forwarding";
            parts.extend("forwarding", Forwarding::of(result, &conf.gateway_link(), failure));
        }
        if conf.ip_masq && has_ipam {
            let exempt = &conf.non_masquerade_cidrs;
            parts.push("masquerade", Masquerade::of(conf.ip_masq_backend, exempt, result));
        }
        let port = self.port.filter(|_| conf.fast_path);
        parts.extend("fast path", port.map(|port| Path::through(&port.name, result)));
        parts
    }

    /// The bridge as it is now, which must be one.
    fn read_bridge(&self) -> Result<Link> {
        let bridge = self.member.host()?.link(&self.member.conf.bridge)?;
        creation::require_bridge(&bridge)?;
        self.bridge.replace(Some(bridge.clone()));
        Ok(bridge)
    }
}

/// The difference of what belongs to a bridge that is gone.
fn without_bridge() -> Error {
    Error::check("the bridge is gone").about(&Aspect::Cause)
}

/// A property of the bridge.
struct HostBridge<'p, 'a> {
    seen: &'p Seen<'p, 'a>,
    of: Property,
}

enum Property {
    There,
    /// Another program may have turned it on: only a missing setting is a difference.
    Promiscuous,
    /// Another network may have added others.
    Groups,
    Up,
}

impl<'a> Part<'a> for HostBridge<'_, 'a> {
    fn what(&self) -> String {
        let conf = self.seen.member.conf;
        let name = &conf.bridge;
        match self.of {
            Property::There => format!("create bridge {name:?}"),
            Property::Promiscuous => format!("set bridge {name:?} promiscuous"),
            Property::Groups => {
                let mask = conf.group_fwd_mask();
                format!("set bits {mask:#x} of group_fwd_mask of {name:?}")
            }
            Property::Up => format!("set bridge {name:?} up"),
        }
    }

    /// For a repair. A bridge that is gone gets the hardware address that the containers know: their
    /// connections go on.
    fn make(&self, _: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let (seen, host) = (self.seen, self.seen.member.host()?);
        match self.of {
            Property::There => {
                let mut told = seen.result.interfaces.iter();
                let told = told.find(|told| told.name == seen.member.conf.bridge);
                let mac = told.and_then(|bridge| bridge.mac.parse().ok());
                seen.member.ensure_bridge(mac, rb)?;
                seen.read_bridge().map(drop)
            }
            Property::Promiscuous => {
                let change = LinkChange { promisc: Some(true), ..LinkChange::default() };
                host.change_link(&seen.read_bridge()?, &change)
            }
            Property::Groups => {
                let bridge = seen.read_bridge()?;
                let mask = bridge.group_fwd_mask | seen.member.conf.group_fwd_mask();
                host.set_group_fwd_mask(&bridge, mask)
            }
            Property::Up => {
                let bridge = seen.read_bridge()?;
                settings::ignore_ra(&bridge.name)?;
                host.set_up(&bridge)
            }
        }
    }

    /// The hardware address may have changed: a bridge that was not created here follows its ports. A
    /// bridge that is gone gets its properties when it is made.
    fn compare(&self, _: Target<'a>) -> Result<()> {
        let Member { conf, .. } = self.seen.member;
        let name = &conf.bridge;
        if let Property::There = self.of {
            let found = self.seen.member.host()?.find_link(name)?;
            let missing = || Error::check(format!("Interface name {name} not found"));
            let bridge = found.ok_or_else(|| missing().about(&Aspect::Bridge))?;
            if bridge.kind != KIND {
                let problem = format!("Interface {name} does not have link type of bridge");
                return Err(Error::check(problem));
            }
            self.seen.bridge.replace(Some(bridge));
        }
        let bridge = self.seen.bridge.borrow();
        let Some(bridge) = &*bridge else { return Ok(()) };
        let missing = conf.group_fwd_mask() & !bridge.group_fwd_mask;
        match self.of {
            Property::Promiscuous if !bridge.promisc => Err(Error::check(format!(
                "Bridge interface {name} configured Promisc Mode true doesn't match current state: 0 "
            ))),
            Property::Groups if missing != 0 => Err(Error::check(format!(
                "bridge {name:?} lacks bits {missing:#x} of group_fwd_mask"
            ))),
            Property::Up => require_up(bridge).map_err(|error| error.about(&Aspect::Bridge)),
            _ => Ok(()),
        }
    }

    /// A link of that name may be of others.
    fn is_base(&self) -> bool {
        matches!(self.of, Property::There)
    }
}

/// Verifies that the link is up.
pub fn require_up(link: &Link) -> Result<()> {
    if link.up {
        return Ok(());
    }
    Err(Error::check(format!("{} {:?} is down", link.kind_text(), link.name)))
}

/// The host's end as a port of the bridge, with its flags and its VLANs.
struct BridgePort<'p, 'a> {
    seen: &'p Seen<'p, 'a>,
    port: &'p Link,
}

impl<'a> Part<'a> for BridgePort<'_, 'a> {
    fn what(&self) -> String {
        format!("connect {:?} to bridge {:?}", self.port.name, self.seen.member.conf.bridge)
    }

    /// For a repair.
    fn make(&self, on: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let _guard = guard::joining(on.cx.deadline())?;
        port::attach(self.seen.member, self.seen.read_bridge()?, self.port, rb).map(drop)
    }

    fn compare(&self, _: Target<'a>) -> Result<()> {
        match &*self.seen.bridge.borrow() {
            Some(bridge) => port::verify(self.seen.member, self.port, bridge),
            None => Err(without_bridge()),
        }
    }
}

/// The gateways' addresses on the bridge, or on its interface in the VLAN.
struct Gateways<'p, 'a> {
    seen: &'p Seen<'p, 'a>,
}

impl<'a> Part<'a> for Gateways<'_, 'a> {
    fn what(&self) -> String {
        let addresses = gateway::addresses(self.seen.result);
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        format!("give {} to {:?}", addresses.join(", "), self.seen.member.conf.gateway_link())
    }

    /// The bridge is as it was before it had the port: it may have taken the port's hardware address.
    fn make(&self, _: Target<'a>, rb: &mut Rollback<'a>) -> Result<()> {
        let bridge = self.seen.bridge.borrow();
        let bridge = bridge.as_ref().ok_or_else(without_bridge)?;
        gateway::ensure(self.seen.member, bridge, self.seen.result, rb)
    }

    /// The addresses stay where the interface in the VLAN cannot be connected.
    fn make_again(&self, _: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        let (member, bridge) = (self.seen.member, self.seen.read_bridge()?);
        transaction(|rb| gateway::ensure(member, &bridge, self.seen.result, rb))?;
        gateway::reconnect(member, &bridge)
    }

    fn compare(&self, _: Target<'a>) -> Result<()> {
        match &*self.seen.bridge.borrow() {
            Some(bridge) => gateway::verify(self.seen.member, bridge, self.seen.result),
            None => Err(without_bridge()),
        }
    }
}
