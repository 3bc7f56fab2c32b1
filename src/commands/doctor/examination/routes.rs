//! D29x: asks the kernel (RTM_GETROUTE) how it routes a container's packets to other networks, and the
//! replies back. Sends no packet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::errno::Errno;

use super::faults::{
    NO_ROUTE_OUT, ROUTE_BACK_ELSEWHERE, ROUTING_INSIDE_REFUSES, ROUTING_REFUSES, UPLINK_UNUSABLE,
};
use super::finding::{Finding, Findings, Object, quoted};
use super::node::{Node, Reader};
use super::wiring::Wiring;
use crate::cni::result::IpConfig;
use crate::error::{Aspect, Result};
use crate::family::Family;
use crate::net::netlink::{Link, Question, Way};
use crate::net::sysctl::Sysctl;

/// An address of another network: a.root-servers.net.
fn outside(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(198, 41, 0, 4).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30).into(),
    }
}

/// It runs after those of links, addresses and settings, and skips an attachment that
/// has a finding already: that finding may be the cause.
pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    let all = Wiring::all(node);
    let families = Family::ALL.map(|family| {
        let routers = all.iter().filter_map(|it| it.router(node, family)).map(|link| link.index);
        (family, is_known(node, family, &routers.collect()))
    });
    // Findings about the host, with the number of attachments that each concerns.
    let mut of_host: BTreeMap<String, (Finding, usize)> = BTreeMap::new();
    for wiring in &all {
        let object = wiring.attachment.object();
        if findings.0.iter().any(|known| known.object == object) {
            continue; // it may be the cause
        }
        let roads = families.iter().filter_map(|known| Road::of(node, wiring, known));
        let found: Vec<Finding> =
            roads.filter_map(|road| Reader(findings).keep(road.obstacle(node))).collect();
        for finding in found {
            match finding.object {
                Object::Node => {
                    let of_all = of_host.entry(finding.evidence.clone());
                    of_all.or_insert((finding, 0)).1 += 1;
                }
                _ => findings.add(finding),
            }
        }
    }
    for (finding, count) in of_host.into_values() {
        let needed = if count == 1 { "attachment needs" } else { "attachments need" };
        findings.add(finding.saying(&format!(", which {count} {needed}")));
    }
}

/// The way of an attachment's packets of a family to other networks.
struct Road<'a> {
    wiring: &'a Wiring<'a>,
    interface: &'a Link,
    family: Family,
    from: IpAddr,
    /// The host's link that routes them.
    router: &'a Link,
    /// Whether the host has an address of the family that others may know.
    is_known: bool,
}

impl<'a> Road<'a> {
    /// None if it has no default route by the host. In a VRF it would be in another table.
    fn of(
        node: &'a Node<'_>,
        wiring: &'a Wiring<'a>,
        &(family, is_known): &(Family, bool),
    ) -> Option<Road<'a>> {
        let interface = wiring.interface.filter(|link| link.master.is_none())?;
        let result = wiring.attachment.result.as_ref()?;
        result.routes.iter().find(|route| route.dst == family.whole())?;
        let of_family = |ip: &&IpConfig| Family::of_net(ip.address) == family;
        let from = result.ips.iter().find(of_family)?.address.addr();
        let router = wiring.router(node, family).filter(|router| router.up)?; // else it is the cause
        Some(Road { wiring, interface, family, from, router, is_known })
    }

    /// The first fault on the way out and back.
    fn obstacle(&self, node: &Node<'_>) -> Result<Option<Finding>> {
        let (from, to) = (self.from, outside(self.family));
        let Some(netns) = self.wiring.attachment.open()? else { return Ok(None) };
        match netns.netlink()?.way(Question { from, to, comes_by: None })? {
            Way::Link(link) if link == self.interface.index => (),
            Way::Link(_) => return Ok(None), // another interface is for other networks
            Way::Nowhere(errno) => {
                let evidence = format!("packets from {from} to other networks {}", refusal(errno));
                let show = self.wiring.within(&format!("ip route get {to} from {from}"));
                return Ok(Some(self.wiring.found(&ROUTING_INSIDE_REFUSES, evidence).show(show)));
            }
        }
        let router = &self.router.name;
        let out = Question { from, to, comes_by: Some(self.router.index) };
        let uplink = match node.netlink.way(out)? {
            Way::Link(link) => node.link(link),
            Way::Nowhere(Errno::ENETUNREACH) => return Ok(self.without_route()),
            Way::Nowhere(errno) => return self.refused(errno, (from, to, router)),
        };
        let Some(uplink) = uplink else { return Ok(None) };
        if let Some(problem) = self.problem_of(uplink) {
            let evidence = format!("{:?}, the link to other networks, {problem}", uplink.name);
            let show = format!("ip addr show dev {}", quoted(&uplink.name));
            return Ok(Some(Finding::new(&UPLINK_UNUSABLE, Object::Node, evidence).show(show)));
        }
        let back = Question { from: to, to: from, comes_by: Some(uplink.index) };
        match node.netlink.way(back)? {
            Way::Link(link) if link == self.router.index => Ok(None),
            Way::Link(link) => {
                let other = node.link(link).map_or("another link", |link| &link.name);
                let evidence =
                    format!("packets to {from} leave by {other:?} in place of {router:?}");
                let found = self
                    .wiring
                    .found(&ROUTE_BACK_ELSEWHERE, evidence)
                    .show(format!("ip route get {from}"));
                Ok(Some(found.explaining([Aspect::Route(from.into())])))
            }
            Way::Nowhere(errno) => self.refused(errno, (to, from, &uplink.name)),
        }
    }

    /// A host without an address that others may know needs no route to them.
    fn without_route(&self) -> Option<Finding> {
        if !self.is_known {
            return None;
        }
        let (version, option) = match self.family {
            Family::V4 => ("IPv4", ""),
            Family::V6 => ("IPv6", "-6 "),
        };
        let evidence = format!("the host has no {version} route to other networks");
        let show = format!("ip {option}route show default");
        Some(Finding::new(&NO_ROUTE_OUT, Object::Node, evidence).show(show))
    }

    /// The finding that the host refuses packets that come in by this link. Returns None if it does not
    /// forward: D220 reports that.
    fn refused(
        &self,
        errno: Errno,
        (from, to, by): (IpAddr, IpAddr, &str),
    ) -> Result<Option<Finding>> {
        let is_v4 = self.family == Family::V4;
        let forwarding = Sysctl::ipv4_conf(by, "forwarding");
        if is_v4 && errno == Errno::EHOSTUNREACH && forwarding.read()? == "0" {
            return Ok(None);
        }
        let [all, of_link] = ["all", by].map(|link| Sysctl::ipv4_conf(link, "rp_filter").read());
        let is_refusal = matches!(errno, Errno::EINVAL | Errno::EXDEV);
        let is_strict = is_v4 && is_refusal && all?.max(of_link?) == "1";
        let why = if is_strict { " (rp_filter is strict)" } else { "" };
        let refusal = refusal(errno);
        let evidence = format!("packets from {from} to {to} that come in by {by:?} {refusal}{why}");
        let show = format!("ip route get {to} from {from} iif {}; ip rule", quoted(by));
        let found = self.wiring.found(&ROUTING_REFUSES, evidence).show(show);
        Ok(Some(found.explaining([Aspect::Route(self.from.into())])))
    }

    /// Why the link carries no packets of the family.
    fn problem_of(&self, uplink: &Link) -> Option<&'static str> {
        match () {
            () if !uplink.up => Some("is down"),
            () if uplink.lacks_carrier() => Some("has no carrier"),
            // The kernel takes an address of another link for masquerading if this one has none.
            () if self.wiring.is_set("ipMasq") && !self.is_known => Some("has no address"),
            () => None,
        }
    }
}

/// Whether other machines may know an address of the host: one that is not on a bridge of containers
/// alone, and for IPv6 a global one.
fn is_known(node: &Node<'_>, family: Family, routers: &BTreeSet<u32>) -> bool {
    let leads_out = |index: u32| {
        let mut ports = node.links.iter().filter(|link| link.master == Some(index));
        match node.link(index).map_or("", |link| link.kind.as_str()) {
            "bridge" => ports.any(|port| port.kind != "veth"),
            kind => kind != "dummy",
        }
    };
    let is_global = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] >> 13 == 1, // 2000::/3
    };
    node.addresses.iter().any(|it| {
        let ip = it.net.addr();
        Family::of(ip) == family
            && is_global(ip)
            && !routers.contains(&it.link)
            && leads_out(it.link)
    })
}

/// What the kernel does with a packet that it sends nowhere.
fn refusal(errno: Errno) -> &'static str {
    match errno {
        Errno::ENETUNREACH => "have no route",
        Errno::EACCES => "are prohibited",
        Errno::EHOSTUNREACH => "are unreachable",
        _ => "are dropped: a blackhole, or their source is refused",
    }
}
