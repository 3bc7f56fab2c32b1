//! What the host has lost of an attachment is made again, in the steps of ADD; the container is left
//! alone.

use super::member::Member;
use super::{check, creation, gateway, guard, port};
use crate::cni::result::AddResult;
use crate::error::{Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::Link;
use crate::repair::Repairs;
use crate::rollback::transaction;
use crate::steps::{fastpath, forwarding, ipam, prev_result, spoofcheck, veth};

/// Repairs the lease, the bridge, the port, and what the host does for the container's packets.
pub fn all(member: Member<'_>, repairs: &Repairs) -> Result<()> {
    let Member { cx, at, .. } = member;
    let result = &prev_result::require(cx)?;
    let container = at.netlink()?.link(at.ifname())?;
    let port = veth::host_end(cx, at, result, &container)?;
    let lost = Lost { member, result, container, port, repairs };
    ipam::repair_before(cx, at, repairs, || lost.host_side())
}

/// What may be missing.
struct Lost<'a> {
    member: Member<'a>,
    result: &'a AddResult,
    container: Link,
    /// The host's end of the pair.
    port: Link,
    repairs: &'a Repairs,
}

impl Lost<'_> {
    fn host_side(&self) -> Result<()> {
        self.bridge()?;
        let Member { cx, conf, .. } = self.member;
        // None for a look at a bridge that is gone.
        let bridge = cx.host()?.find_link(&conf.bridge)?;
        let mut errors = ErrorList::default();
        errors.push(self.port(bridge.as_ref()));
        if !cx.config.ipam_type()?.is_empty() {
            errors.push(self.routing(bridge.as_ref()));
        }
        errors.finish()
    }

    /// A bridge that is gone gets the hardware address that the containers know: their connections
    /// go on.
    fn bridge(&self) -> Result<()> {
        let name = &self.member.conf.bridge;
        let ensure = || transaction(|rb| self.member.ensure_bridge(rb)).map(drop);
        match self.member.host()?.find_link(name)? {
            None => self.repairs.make(format_args!("create bridge {name:?}"), || {
                self.member.recreate_bridge(self.recorded_mac())?;
                ensure()
            }),
            Some(found) => {
                creation::require_bridge(&found)?;
                let verified = check::require_up(&found);
                self.repairs.make_unless(
                    verified,
                    format_args!("set bridge {name:?} up"),
                    ensure,
                )?;
                let mask = self.member.conf.group_fwd_mask();
                let verified = check::require_groups(&found, mask);
                let what = format_args!("set bits {mask:#x} of group_fwd_mask of {name:?}");
                self.repairs.make_unless(verified, what, ensure)
            }
        }
    }

    /// The hardware address of the bridge at the time of ADD, or else a new one.
    fn recorded_mac(&self) -> MacAddr {
        let name = &self.member.conf.bridge;
        let told = self.result.interfaces.iter().find(|interface| interface.name == *name);
        told.and_then(|bridge| bridge.mac.parse().ok()).unwrap_or_else(MacAddr::random)
    }

    /// The host's end as a port of the bridge, and its spoof check.
    fn port(&self, bridge: Option<&Link>) -> Result<()> {
        let port = &self.port;
        let verified =
            bridge.map_or_else(no_bridge, |bridge| check::port(self.member, port, bridge));
        let what = format!("connect {:?} to bridge {:?}", port.name, self.member.conf.bridge);
        self.repairs.make_unless(verified, what, || self.connect())?;
        let Member { cx, conf, at } = self.member;
        if conf.macspoofchk {
            self.spoofcheck()?;
        }
        if conf.fast_path {
            let path = fastpath::Path::through(&port.name, self.result);
            fastpath::repair(cx, at, &path, self.repairs)?;
        }
        Ok(())
    }

    fn connect(&self) -> Result<()> {
        let _guard = guard::joining(self.member.cx.deadline())?;
        let bridge = self.member.host()?.link(&self.member.conf.bridge)?;
        transaction(|rb| port::attach(self.member, bridge, &self.port, rb)).map(drop)
    }

    fn spoofcheck(&self) -> Result<()> {
        let Member { cx, at, .. } = self.member;
        let mac = &prev_result::container_mac(self.result, at)?;
        let port = spoofcheck::Port { name: &self.port.name, mac };
        let verified = spoofcheck::verify(cx.handles(), &at.key, &port);
        let what = format_args!("drop frames of other addresses from {:?}", self.port.name);
        self.repairs.make_unless(verified, what, || {
            transaction(|rb| spoofcheck::create(cx.handles(), &at.key, &port, rb))
        })
    }

    /// The gateways' addresses, forwarding and masquerading.
    fn routing(&self, bridge: Option<&Link>) -> Result<()> {
        let Member { cx, conf, at } = self.member;
        let mut errors = ErrorList::default();
        if conf.is_gateway() {
            errors.push(self.gateway(bridge));
        }
        if conf.ip_masq {
            errors.push(conf.masquerade(cx).repair(at, self.result, self.repairs));
        }
        errors.finish()
    }

    fn gateway(&self, bridge: Option<&Link>) -> Result<()> {
        let verified = bridge.map_or_else(no_bridge, |bridge| {
            check::gateways(self.member, bridge.clone(), self.result, &self.container)
        });
        let addresses: Vec<String> =
            gateway::addresses(self.result).iter().map(ToString::to_string).collect();
        let link = self.member.conf.gateway_interface();
        let link = link.unwrap_or_else(|| self.member.conf.bridge.clone());
        let what = format!("give {} to {link:?}", addresses.join(", "));
        self.repairs.make_unless(verified, what, || self.give_addresses())?;
        forwarding::repair(self.result, &link, self.repairs)
    }

    fn give_addresses(&self) -> Result<()> {
        let bridge = self.member.host()?.link(&self.member.conf.bridge)?;
        transaction(|rb| gateway::ensure(self.member, &bridge, self.result, rb))?;
        gateway::reconnect(self.member, &bridge)
    }
}

/// A look at a bridge that is gone finds nothing of what belongs to it.
fn no_bridge() -> Result<()> {
    Err(Error::check("the bridge is gone"))
}
