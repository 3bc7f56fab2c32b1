//! D29x: the way of a container's packets to other networks, and back, as the kernel answers that
//! asks for it. No packet is sent.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::errno::Errno;

use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, Object, quoted};
use super::node::{Node, Reader};
use super::wiring::Wiring;
use crate::cni::result::IpConfig;
use crate::error::Result;
use crate::family::Family;
use crate::net::netlink::{Address, Link, Question, Way};
use crate::net::sysctl::Sysctl;

const NO_ROUTE: Fault = Fault::error("D290", "the host has no route to other networks");
const REFUSED: Fault = Fault::error("D291", "the host's routing refuses a container's packets");
const ELSEWHERE: Fault = Fault::error("D292", "the host routes answers to another link");
const UPLINK: Fault = Fault::error("D293", "the host's link to other networks is unusable");
const INSIDE: Fault = Fault::error("D294", "the container's routing refuses its packets");

/// The examination. It comes after those of links, addresses and settings, whose findings explain
/// many of these.
pub const EXAMINATION: Examination =
    Examination { faults: || vec![&NO_ROUTE, &REFUSED, &ELSEWHERE, &UPLINK, &INSIDE], examine };

/// An address of another network: a.root-servers.net.
fn outside(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(198, 41, 0, 4).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30).into(),
    }
}

fn examine(node: &Node<'_>, findings: &mut Findings) {
    // What several attachments need, with how many do.
    let mut of_host: BTreeMap<String, (Finding, usize)> = BTreeMap::new();
    for wiring in Wiring::all(node) {
        let object = wiring.attachment.object();
        if findings.0.iter().any(|known| known.object == object) {
            continue; // it may be the cause
        }
        let roads = Family::ALL.into_iter().filter_map(|family| Road::of(node, &wiring, family));
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
}

impl<'a> Road<'a> {
    /// None if it has no default route by the host.
    fn of(node: &'a Node<'_>, wiring: &'a Wiring<'a>, family: Family) -> Option<Road<'a>> {
        let result = wiring.attachment.result.as_ref()?;
        result.routes.iter().find(|route| route.dst == family.whole())?;
        let of_family = |ip: &&IpConfig| Family::of_net(ip.address) == family;
        let from = result.ips.iter().find(of_family)?.address.addr();
        let router = wiring.router(node, family).filter(|router| router.up)?; // else it is the cause
        Some(Road { wiring, interface: wiring.interface?, family, from, router })
    }

    /// The first thing on the way out and back that keeps packets from arriving.
    fn obstacle(&self, node: &Node<'_>) -> Result<Option<Finding>> {
        let (from, to) = (self.from, outside(self.family));
        let Some(netns) = self.wiring.attachment.open()? else { return Ok(None) };
        match netns.netlink()?.way(Question { from, to, comes_by: None })? {
            Way::Link(link) if link == self.interface.index => (),
            Way::Link(_) => return Ok(None), // another interface is for other networks
            Way::Nowhere(errno) => {
                let evidence = format!("packets from {from} to other networks {}", refusal(errno));
                let show = self.wiring.within(&format!("ip route get {to} from {from}"));
                return Ok(Some(self.found(&INSIDE, evidence).show(show)));
            }
        }
        let router = &self.router.name;
        let out = Question { from, to, comes_by: Some(self.router.index) };
        let uplink = match node.netlink.way(out)? {
            Way::Link(link) => node.link(link),
            Way::Nowhere(Errno::ENETUNREACH) => return Ok(self.without_route(node)),
            Way::Nowhere(errno) => return self.refused(errno, (from, to, router)),
        };
        let Some(uplink) = uplink else { return Ok(None) };
        if let Some(problem) = self.problem_of(uplink, node) {
            let evidence = format!("{:?}, the link to other networks, {problem}", uplink.name);
            let show = format!("ip addr show dev {}", quoted(&uplink.name));
            return Ok(Some(Finding::new(&UPLINK, Object::Node, evidence).show(show)));
        }
        let back = Question { from: to, to: from, comes_by: Some(uplink.index) };
        match node.netlink.way(back)? {
            Way::Link(link) if link == self.router.index => Ok(None),
            Way::Link(link) => {
                let other = node.link(link).map_or("another link", |link| &link.name);
                let evidence =
                    format!("packets to {from} leave by {other:?} in place of {router:?}");
                let show = format!("ip route get {from}");
                Ok(Some(self.found(&ELSEWHERE, evidence).show(show)))
            }
            Way::Nowhere(errno) => self.refused(errno, (to, from, &uplink.name)),
        }
    }

    fn found(&self, fault: &'static Fault, evidence: String) -> Finding {
        Finding::new(fault, self.wiring.attachment.object(), evidence)
    }

    /// A host whose only addresses are those of its containers' gateways needs no route to others.
    fn without_route(&self, node: &Node<'_>) -> Option<Finding> {
        let all = Wiring::all(node);
        let is_gateway = |index: u32| {
            all.iter().any(|it| it.router(node, self.family).is_some_and(|it| it.index == index))
        };
        let is_beside = |it: &&Address| {
            let ip = it.net.addr();
            Family::of(ip) == self.family && is_of_others(ip) && !is_gateway(it.link)
        };
        node.addresses.iter().find(is_beside)?;
        let (version, option) = match self.family {
            Family::V4 => ("IPv4", ""),
            Family::V6 => ("IPv6", "-6 "),
        };
        let evidence = format!("the host has no {version} route to other networks");
        let show = format!("ip {option}route show default");
        Some(Finding::new(&NO_ROUTE, Object::Node, evidence).show(show))
    }

    /// A refusal of the host's, for packets that come in by this link. That it does not forward is
    /// another finding.
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
        let is_strict = is_v4 && errno == Errno::EINVAL && all?.max(of_link?) == "1";
        let why = if is_strict { " (rp_filter is strict)" } else { "" };
        let refusal = refusal(errno);
        let evidence = format!("packets from {from} to {to} that come in by {by:?} {refusal}{why}");
        let show = format!("ip route get {to} from {from} iif {}; ip rule", quoted(by));
        Ok(Some(self.found(&REFUSED, evidence).show(show)))
    }

    /// What keeps the link from carrying packets of the family.
    fn problem_of(&self, uplink: &Link, node: &Node<'_>) -> Option<&'static str> {
        let is_of_family = |ip: IpAddr| Family::of(ip) == self.family;
        let has_address = || {
            let mut own = node.addresses.iter().filter(|it| it.link == uplink.index);
            own.any(|it| is_of_family(it.net.addr()))
        };
        match () {
            () if !uplink.up => Some("is down"),
            () if uplink.lacks_carrier() => Some("has no carrier"),
            // IPv6 needs only that of the link, which may be off.
            () if self.wiring.is_set("ipMasq") && !has_address() => Some("has no address"),
            () => None,
        }
    }
}

/// Whether other machines may know the address.
fn is_of_others(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
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
