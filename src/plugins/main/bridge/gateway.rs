//! The bridge as the containers' gateway.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use sha2::{Digest as _, Sha512};

use super::conf::Conf;
use super::creation::Member;
use super::parts::require_up;
use super::{guard, port};
use crate::cni::attachment::hex;
use crate::cni::conf::Config;
use crate::cni::decode;
use crate::cni::json::Value;
use crate::cni::result::{AddResult, Route};
use crate::error::{Code, Error, ErrorList, Result};
use crate::family::Family;
use crate::net::mac::MacAddr;
use crate::net::netlink::{
    AddressOptions, Link, LinkChange, Netlink, PeerSpec, VethSpec, VlanFlags, VlanRange,
};
use crate::rollback::Rollback;
use crate::steps::allocation::ranges::{RangeConf, RangeSet};
use crate::steps::{link_alias, settings, veth};

/// Completes the result: adds gateways where the IPAM plugin named none, and default routes if they
/// are configured.
pub fn plan(conf: &Conf, result: &mut AddResult) -> Result<()> {
    if conf.is_gateway() {
        for ip in result.ips.iter_mut().filter(|ip| ip.gateway.is_none()) {
            ip.gateway = Some(first_of(ip.address)?);
        }
    }
    // A default route without a gateway of its own takes the family's gateway anyway, so a second route
    // would be the same.
    for ip in result.ips.iter().filter(|_| conf.is_default_gateway) {
        let to_all = Family::of_net(ip.address).whole();
        if !result.routes.iter().any(|route| route.dst.trunc() == to_all) {
            result.routes.push(Route { gw: ip.gateway, ..Route::to(to_all) });
        }
    }
    Ok(())
}

/// The address after the network's own.
fn first_of(net: IpNet) -> Result<IpAddr> {
    let next = match net.network() {
        IpAddr::V4(ip) => u32::from(ip).checked_add(1).map(|next| IpAddr::V4(next.into())),
        IpAddr::V6(ip) => u128::from(ip).checked_add(1).map(|next| IpAddr::V6(next.into())),
    };
    next.ok_or_else(|| {
        Error::new(Code::INVALID_CONFIG, format!("no address can be the gateway of {net}"))
    })
}

/// The addresses of the bridge: each gateway, with the prefix length of the container's address.
pub fn addresses(result: &AddResult) -> Vec<IpNet> {
    result
        .ips
        .iter()
        .filter_map(|ip| IpNet::new(ip.gateway?, ip.address.prefix_len()).ok())
        .collect()
}

/// The gateways of all subnets in the range sets that the addresses are from: once a subnet is full,
/// host-local takes the next one of its set, and the containers of the full one keep their gateway.
fn of_range_sets(config: &Config, result: &AddResult) -> Vec<IpNet> {
    let places = [("ipam", "ranges"), ("runtimeConfig", "ipRanges")];
    let lists = places.into_iter().filter_map(|(of, key)| config.value.get(of)?.get(key));
    let sets = lists.flat_map(Value::items).filter_map(|set| {
        let confs: Vec<RangeConf> = decode::from_value(set).ok()?;
        RangeSet::new(&confs, "").ok() // another program's IPAM may have ranges of another form
    });
    let is_used = |set: &RangeSet| result.ips.iter().any(|ip| set.contains(ip.address.addr()));
    let used: Vec<RangeSet> = sets.filter(is_used).collect();
    let ranges = used.iter().flat_map(RangeSet::ranges);
    ranges.map(|range| range.with_prefix(range.gateway)).collect()
}

/// Ensures that the bridge, or its interface in the VLAN, has the gateways' addresses.
pub fn ensure<'a>(
    member: Member<'a>,
    bridge: &Link,
    result: &AddResult,
    rb: &mut Rollback<'a>,
) -> Result<()> {
    let link = match VlanInterface::of(member, bridge) {
        None => bridge.clone(),
        Some(interface) => interface.ensure(rb)?,
    };
    let wanted = addresses(result);
    let beside = of_range_sets(member.cx.config, result);
    let gateway =
        Gateway { member, host: member.host()?, bridge: bridge.clone(), link, wanted, beside };
    let ensured = gateway.wanted.iter().try_for_each(|net| gateway.ensure_address(*net, rb));
    // The reference's words.
    let failure = match member.conf.gateway_interface() {
        None => "failed to set bridge addr",
        Some(_) => "failed to set vlan interface for bridge with addr",
    };
    ensured.map_err(|e| e.context(failure))
}

/// Verifies that the bridge, or its interface in the VLAN, has the gateways' addresses, and that the
/// other end of the latter is a port of the bridge in the VLAN. An interface that was not created here
/// need not have one.
pub fn verify(member: Member<'_>, bridge: &Link, result: &AddResult) -> Result<()> {
    let (host, conf) = (member.host()?, member.conf);
    let addresses: Vec<IpAddr> = addresses(result).iter().map(IpNet::addr).collect();
    let of = |link| veth::verify_gateways(host, link, &addresses, member.at.ifname());
    let Some(name) = conf.gateway_interface() else { return of(bridge) };
    let missing = || Error::check(format!("gateway interface {name:?} not found"));
    let link = host.find_link(&name)?.ok_or_else(missing)?;
    require_up(&link)?;
    let connected = find_peer(host, &link).and_then(|peer| match peer {
        Some(peer) if peer.master == Some(bridge.index) => {
            port::verify_vlans(host, &peer, &own_vlan(conf))
        }
        Some(_) => {
            let bridge = &bridge.name;
            let problem = "is not connected to bridge";
            Err(Error::check(format!("gateway interface {name:?} {problem} {bridge:?}")))
        }
        None => Ok(()),
    });
    ErrorList::of([connected, of(&link)])
}

/// Makes the other end of the VLAN's interface a port of the bridge in the VLAN, if the
/// configuration names a VLAN and we created the interface.
pub fn reconnect(member: Member<'_>, bridge: &Link) -> Result<()> {
    let Some(interface) = VlanInterface::of(member, bridge) else { return Ok(()) };
    let host = member.host()?;
    match find_peer(host, &host.link(&interface.name)?)? {
        Some(peer) => interface.make_port(host, &peer),
        None => Ok(()),
    }
}

/// The VLAN of the gateway's port.
fn own_vlan(conf: &Conf) -> [VlanRange; 1] {
    [VlanRange::one(conf.vlan(), VlanFlags::NativeUntagged)]
}

/// The link that has the gateways' addresses, and the attachment that needs it.
struct Gateway<'a> {
    member: Member<'a>,
    host: &'a Netlink,
    bridge: Link,
    link: Link,
    /// The addresses that it should have.
    wanted: Vec<IpNet>,
    /// Those that it may have besides.
    beside: Vec<IpNet>,
}

impl<'a> Gateway<'a> {
    fn ensure_address(&self, net: IpNet, rb: &mut Rollback<'a>) -> Result<()> {
        let Gateway { host, ref link, .. } = *self;
        let present = host.addresses(link)?;
        if present.iter().any(|address| address.net == net) {
            return Ok(());
        }
        // Those that conflict are an error, unless `forceAddress` is set and they are deleted.
        let own = || self.wanted.iter().chain(&self.beside);
        let others = present.iter().map(|address| address.net);
        for other in
            others.filter(|other| is_in_the_way(*other, net) && own().all(|own| own != other))
        {
            if !self.member.conf.force_address {
                return Err(self.conflict(other, net));
            }
            host.delete_address(link, other)?;
            let what = format!("restore address {other} of {:?}", link.name);
            self.undo(rb, what, move |host, link| host.add_address(link, other, AT_ONCE));
        }
        match host.add_address(link, net, AT_ONCE) {
            Err(e) if e.is_exists() => return Ok(()), // lost race with another ADD
            added => added.map_err(|e| {
                e.worded(format_args!("could not add IP address {net} to {:?}", link.name))
            })?,
        }
        let what = format!("delete address {net} of {:?}", link.name);
        self.undo(rb, what, move |host, link| host.delete_address(link, net));
        self.pin_mac()
    }

    fn conflict(&self, other: IpNet, net: IpNet) -> Error {
        let name = &self.link.name;
        let msg = format!("{name:?} already has an IP address different from {net}");
        let own = &self.member.at.key;
        let is_other = |port: &Link| !link_alias::is_of(&port.alias, own);
        let ports = self.host.ports(&self.bridge);
        let remedy = if ports.is_ok_and(|ports| !ports.iter().any(is_other)) {
            "forceAddress replaces it"
        } else {
            "what is on it may have that as its gateway: use another bridge, or that subnet"
        };
        Error::new(Code::CONFLICT, msg).with_details(format_args!("it has {other}; {remedy}"))
    }

    /// A bridge takes the lowest hardware address of its ports unless one is set, and then
    /// neighbours' caches go stale with every container. A bridge that was not created here may
    /// still do that: set the address that it had before our port was added, or the current one if
    /// it had none.
    fn pin_mac(&self) -> Result<()> {
        let mac = match self.link.mac() {
            none if none.is_zero() => self.host.link(&self.link.name)?.mac(),
            before => before,
        };
        if mac.is_zero() {
            return Ok(()); // it has no ports
        }
        let change = LinkChange { mac: Some(mac), ..LinkChange::default() };
        self.host.change_link(&self.link, &change)
    }

    /// Registers an undo that is skipped if other attachments have joined the bridge: they rely on
    /// the addresses that they found.
    fn undo(
        &self,
        rb: &mut Rollback<'a>,
        what: impl fmt::Display,
        undo: impl FnOnce(&Netlink, &Link) -> Result<()> + 'a,
    ) {
        let Gateway { member: Member { cx, at, .. }, host, .. } = *self;
        let bridge = self.bridge.clone();
        let link = self.link.clone();
        rb.undo(what, move || {
            let is_joined = || Ok(!veth::others(host, &bridge, &at.key)?.is_empty());
            guard::unless_used(cx.handles(), is_joined, || undo(host, &link))
        });
    }
}

/// Without duplicate detection: containers need their gateway now, and no other host can have its
/// address in a network that consists of this bridge.
const AT_ONCE: AddressOptions = AddressOptions { detect_duplicates: false, subnet_on_link: true };

/// Whether two addresses conflict: IPv4 addresses always do, IPv6 addresses if their networks
/// overlap.
fn is_in_the_way(present: IpNet, wanted: IpNet) -> bool {
    match (present, wanted) {
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(_), IpNet::V6(_)) => {
            present.contains(&wanted.addr()) || wanted.contains(&present.addr())
        }
        _ => false,
    }
}

/// `<bridge>.<vlan>`: a veth pair on the host, with the other end as a port of the bridge in the
/// VLAN.
/// It stays for later containers.
#[derive(Clone)]
struct VlanInterface<'a> {
    member: Member<'a>,
    bridge: Link,
    name: String,
}

impl<'a> VlanInterface<'a> {
    /// The interface that the configuration needs, if it names a VLAN.
    fn of(member: Member<'a>, bridge: &Link) -> Option<VlanInterface<'a>> {
        let name = member.conf.gateway_interface()?;
        Some(VlanInterface { member, bridge: bridge.clone(), name })
    }

    /// Finds the interface or creates it, makes the other end a port in the VLAN and sets the
    /// interface up. That is the last step, so an interface that is down is incomplete: another ADD
    /// is creating it, or was killed before the end. An interface that we did not create is left
    /// alone, except that it ignores router advertisements.
    fn ensure(&self, rb: &mut Rollback<'a>) -> Result<Link> {
        let host = self.member.host()?;
        let link = match host.find_link(&self.name)? {
            Some(found) => found,
            None => self.create(rb)?,
        };
        // Before the link is up: the containers of the VLAN can reach it.
        if let Some(before) = settings::ra_accepted_by(&link.name)? {
            let name = link.name.clone();
            let what = format!("restore accept_ra of {name:?}");
            self.undo(rb, what, move || settings::restore_ra(&name, &before));
            settings::ignore_ra(&link.name)?;
        }
        if let Some(peer) = find_peer(host, &link)?
            && (!link.up || peer.master != Some(self.bridge.index))
        {
            self.make_port(host, &peer)?;
            host.set_up(&link)?;
        }
        Ok(link)
    }

    fn create(&self, rb: &mut Rollback<'a>) -> Result<Link> {
        let host = self.member.host()?;
        let peer_name = peer_name(&self.name);
        let spec = VethSpec {
            name: &self.name,
            mac: MacAddr::random(),
            peer: PeerSpec { name: &peer_name, mac: MacAddr::random_of_port(), netns: None },
            mtu: Some(self.bridge.mtu),
        };
        match host.create_veth(&spec) {
            Err(e) if e.is_exists() => return host.link(&self.name), // lost race with another ADD
            created => created?,
        }
        let link = host.link(&self.name)?;
        let index = link.index;
        let what = format!("delete link {:?}", self.name);
        self.undo(rb, what, move || host.delete_link(index));
        Ok(link)
    }

    fn make_port(&self, host: &Netlink, peer: &Link) -> Result<()> {
        settings::ignore_ra(&peer.name)?;
        port::enslave(host, &self.bridge, peer)?;
        let conf = self.member.conf;
        port::set_vlans(host, peer, &own_vlan(conf), conf.left_vlan(&self.bridge))
    }

    /// Registers an undo that is skipped if other attachments use the interface.
    fn undo(
        &self,
        rb: &mut Rollback<'a>,
        what: impl fmt::Display,
        undo: impl FnOnce() -> Result<()> + 'a,
    ) {
        let interface = self.clone();
        let handles = self.member.cx.handles();
        rb.undo(what, move || guard::unless_used(handles, || interface.is_used(), undo));
    }

    /// Whether other attachments are in the VLAN and rely on the interface as it is.
    fn is_used(&self) -> Result<bool> {
        let host = self.member.host()?;
        for port in veth::others(host, &self.bridge, &self.member.at.key)? {
            let vlans = host.port_vlans(&port)?;
            if vlans.iter().any(|(id, _)| *id == self.member.conf.vlan()) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The other end of the interface, if we created it.
fn find_peer(host: &Netlink, link: &Link) -> Result<Option<Link>> {
    let peer = host.find_link(&peer_name(&link.name))?;
    Ok(peer.filter(|peer| link.lower == Some(peer.index)))
}

fn peer_name(name: &str) -> String {
    format!("veth{}", hex(&Sha512::digest(format!("gateway {name}").as_bytes())[..4]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::result::IpConfig;

    fn result(addresses: &[&str], routes: &[&str]) -> AddResult {
        AddResult {
            ips: addresses.iter().map(|net| IpConfig::new(net.parse().unwrap())).collect(),
            routes: routes.iter().map(|dst| Route::to(dst.parse().unwrap())).collect(),
            ..AddResult::default()
        }
    }

    #[test]
    fn the_gateway_is_the_first_address_of_the_network() {
        for (net, gateway) in [
            ("10.1.2.3/24", "10.1.2.1"),
            ("10.1.2.3/32", "10.1.2.4"),
            ("10.1.2.3/31", "10.1.2.3"),
            ("fd00::7/64", "fd00::1"),
        ] {
            assert_eq!(first_of(net.parse().unwrap()).unwrap().to_string(), gateway);
        }
        assert!(first_of("255.255.255.255/32".parse().unwrap()).is_err());
    }

    #[test]
    fn a_default_route_is_added_once_per_family_and_not_twice() {
        let mut conf = Conf::default();
        conf.is_default_gateway = true;
        let mut both = result(&["10.1.2.3/24", "10.2.2.3/24", "fd00::7/64"], &["0.0.0.0/0"]);
        plan(&conf, &mut both).unwrap();
        let routes: Vec<String> =
            both.routes.iter().map(|route| format!("{} {:?}", route.dst, route.gw)).collect();
        assert_eq!(routes, ["0.0.0.0/0 None", "::/0 Some(fd00::1)"]);
    }

    #[test]
    fn what_is_in_the_way_depends_on_the_family() {
        let way = |present: &str, wanted: &str| {
            is_in_the_way(present.parse().unwrap(), wanted.parse().unwrap())
        };
        assert!(way("10.0.0.1/8", "192.168.0.1/24"));
        assert!(way("fd00::1/32", "fd00:0:1::1/64") && way("fd00:0:1::1/64", "fd00::1/32"));
        assert!(!way("fd00::1/64", "fd01::1/64") && !way("10.0.0.1/8", "fd00::1/64"));
    }
}
