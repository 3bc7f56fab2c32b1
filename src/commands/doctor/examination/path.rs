//! D54x: what drops a container's packets. Each probe is a packet that is sent and followed: two traces
//! of the kernel have the links that saw it, and the rule or the function that dropped it.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use nix::errno::Errno;

use super::faults::{
    DROPPED_BETWEEN, DROPPED_FROM_HOST, FOREIGN_SOURCE, NO_DNS_SERVER, NO_ECHO, PACKET_DROPPED,
    PORT_NOT_LED, PORT_UNSERVED,
};
use super::finding::{Finding, Findings, quoted};
use super::follower::{Follower, Packet, Passage, Why};
use super::node::{Node, Reader};
use super::outside::{self, Outside};
use super::wiring::{Protocol, Wiring};
use crate::cni::json::Value;
use crate::commands::fault::Severity;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::net::dns_query::{DnsQuery, PORT};
use crate::net::echo::Echo;
use crate::net::netlink::{FoundRoute, Link, Question, Way};
use crate::net::netns::Netns;
use crate::net::nft::trace::{Dropped, Step};
use crate::net::request::{self, Answer, Request};
use crate::net::syn::Syn;
use crate::net::xtables_legacy::{self, Ending};

/// The port of a connection to the host's gateway, which a firewall that opens few has opened.
const HTTPS: u16 = 443;
/// How long an answer may take: the first packets of a new link are lost.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// The same on a link that is just made: the kernel repeats a question about a neighbour after a second.
const PATIENCE_OF_NEW: Duration = Duration::from_millis(2500);
/// What a socket answers where rules or routes of this namespace refuse a packet.
const REFUSALS: [Errno; 4] = [Errno::EPERM, Errno::EACCES, Errno::ENETUNREACH, Errno::EINVAL];
/// What a socket answers if the container uses its port, or has no such family.
const UNUSABLE: [Errno; 3] = [Errno::EADDRINUSE, Errno::EADDRNOTAVAIL, Errno::EAFNOSUPPORT];
/// How many gateways beside those of the record are asked: the container may have any number.
const MOST_GATEWAYS: usize = 2;
/// How many published ports are tried.
const MOST_PORTS: usize = 8;

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    if !node.request.sends_packets() {
        return;
    }
    let follower = Follower::begin(&mut Reader(findings));
    let (all, asked) = Wiring::with_others(node);
    for wiring in &all[..asked] {
        if follower.is_interrupted() {
            break;
        }
        // The echo socket is not bound to the interface: it would not use the table of a VRF.
        let interface = wiring.interface.filter(|link| link.up && link.master.is_none());
        let Some(interface) = interface else { continue };
        let object = wiring.attachment.object();
        let id = wiring.attachment.id.map(|id| id.file());
        let servers = id.and_then(|id| node.servers.borrow().get(&id).cloned()).unwrap_or_default();
        for family in Family::ALL {
            if findings.has_error(&object) {
                continue;
            }
            let (all, servers, follower) = (&all[..], &servers[..], &follower);
            let walk = Walk { node, wiring, interface, family, all, servers, follower };
            let mut found = Reader(findings).keep_of(object.clone(), walk.walk());
            let is_error = |it: &Finding| it.fault.severity == Severity::Error;
            if !found.iter().any(is_error) {
                found.extend(Reader(findings).keep_of(object.clone(), walk.ports()));
            }
            if found.iter().any(is_error) {
                findings.0.retain(|it| it.object != object || *it.fault != NO_ECHO);
            }
            // What breaks one family often breaks both.
            let is_known = |it: &Finding| {
                findings.0.iter().any(|known| {
                    known.object == object
                        && known.fault == it.fault
                        && (*it.fault != NO_ECHO || known.evidence == it.evidence)
                })
            };
            found.retain(|it| !is_known(it));
            findings.0.extend(found);
        }
    }
}

/// What a probe was answered, and how many packets were sent.
type Asked = Result<(Result<Option<Answer>>, usize)>;

/// The way of a container's packets of one family.
pub struct Walk<'a> {
    /// The facts.
    pub node: &'a Node<'a>,
    /// The attachment.
    pub wiring: &'a Wiring<'a>,
    /// Its interface.
    pub interface: &'a Link,
    /// That of the addresses.
    pub family: Family,
    /// All attachments, also those beside the named container.
    all: &'a [Wiring<'a>],
    /// The container's name servers.
    servers: &'a [IpAddr],
    follower: &'a Follower,
}

/// A packet that is sent, with its destination.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// An echo request to a gateway of the container.
    Gateway(IpAddr),
    /// An echo request from the host to the container.
    FromHost(IpAddr),
    /// An echo request to another container of the network.
    Beside(IpAddr),
    /// An echo request to the host's gateway.
    Outside(IpAddr),
    /// A request for a connection with the host's gateway.
    Connection(IpAddr),
    /// A query to a name server.
    Query(IpAddr),
    /// A request for a connection with a published port, or a query to it, from outside.
    Published(SocketAddr, Protocol),
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Probe::Gateway(ip) => write!(f, "a packet to the gateway, {ip},"),
            Probe::FromHost(ip) => write!(f, "a packet from the host to {ip}"),
            Probe::Beside(ip) => write!(f, "a packet to another container, {ip},"),
            Probe::Outside(ip) => write!(f, "a packet to the host's gateway, {ip},"),
            Probe::Connection(ip) => {
                write!(f, "a connection to port {HTTPS} of the host's gateway, {ip},")
            }
            Probe::Query(ip) => write!(f, "a DNS query to {ip}"),
            Probe::Published(at, Protocol::Tcp) => write!(f, "a connection from outside to {at}"),
            Probe::Published(at, Protocol::Udp) => write!(f, "a datagram from outside to {at}"),
        }
    }
}

impl Walk<'_> {
    /// Sends each probe, and stops at the first error.
    fn walk(&self) -> Result<Vec<Finding>> {
        let mut found = vec![];
        let (mut no_echo, mut is_beyond) = (vec![], false);
        let mut by_echo: Option<(Finding, bool)> = None;
        let mut unserved = vec![];
        let mut is_resolved = false;
        for probe in self.probes()? {
            if is_resolved && matches!(probe, Probe::Query(_)) {
                continue; // the other servers need not answer
            }
            let Some(passage) = self.send(probe)? else { continue };
            let (ip, is_answered) = (probe.ip(), matches!(passage.answer, Ok(Some(_))));
            let is_passed = is_answered || passage.has_left(ip);
            match (probe, &passage.answer) {
                (Probe::Query(_), Ok(Some(Answer::Yes))) => is_resolved = true,
                (Probe::Query(_), Ok(Some(Answer::Refused))) => unserved.push(ip.to_string()),
                _ => (),
            }
            // A host that passes connections and nothing else is healthy.
            if matches!(probe, Probe::Connection(_))
                && let Some((finding, has_left)) = by_echo.take()
                && !(is_answered || passage.has_left(ip) && !has_left)
            {
                return Ok(vec![finding]);
            }
            let finding = match (probe, &passage.answer) {
                (Probe::Gateway(ip), Ok(None)) => self.silence(ip)?,
                _ => self.judge(probe, &passage)?,
            };
            let Some(finding) = finding else {
                let is_to_outside =
                    matches!(probe, Probe::Outside(_) | Probe::Connection(_) | Probe::Query(_));
                let is_host = self.node.addresses.iter().any(|it| it.net.addr() == ip);
                is_beyond |= is_passed && !is_host && is_to_outside;
                if let Probe::Outside(ip) = probe
                    && !is_answered
                    && let Some(unknown) = self.unknown(ip, &passage)
                {
                    return Ok(vec![unknown]);
                }
                continue;
            };
            match finding.fault.severity {
                _ if matches!(probe, Probe::Outside(_)) => {
                    by_echo = Some((finding, passage.has_left(ip)));
                }
                // One cause has one finding: what it breaks besides is left out.
                Severity::Error => return Ok(vec![finding]),
                // A host that drops echoes, and passes packets, is healthy.
                Severity::Warning if *finding.fault == NO_ECHO => {
                    is_beyond |= passage.rule().is_some();
                    no_echo.push(finding);
                }
                Severity::Warning => found.push(finding),
            }
        }
        if !unserved.is_empty() && !is_resolved {
            let evidence = format!("no socket is bound at {} for DNS", unserved.join(", "));
            found.push(self.wiring.found(&NO_DNS_SERVER, evidence));
        }
        if found.is_empty() && !is_beyond {
            found.extend(no_echo);
        }
        Ok(found)
    }

    /// What is sent, in this order: the gateways of the record, then those of the default routes, which a
    /// router may have advertised; from the host, and to another container,
    /// if the host is on the network; the host's gateway, if the container has its default route by the
    /// host; the name servers.
    fn probes(&self) -> Result<Vec<Probe>> {
        let is_default =
            |it: &&FoundRoute| it.is_default(self.family) && it.link == Some(self.interface.index);
        let mut routes: Vec<&FoundRoute> =
            self.wiring.inside.routes.iter().filter(is_default).collect();
        routes.sort_by_key(|route| route.metric);
        let recorded = self.wiring.used_gateways();
        let mut advertised: Vec<IpAddr> =
            routes.iter().flat_map(|it| &it.gateways).copied().collect();
        advertised.dedup();
        advertised.retain(|ip| !recorded.contains(ip));
        advertised.truncate(MOST_GATEWAYS);
        let gateways = recorded.into_iter().chain(advertised);
        let gateways = gateways.filter(|ip| Family::of(*ip) == self.family);
        let mut probes: Vec<Probe> = gateways.map(Probe::Gateway).collect();
        let router = self.wiring.router(self.node, self.family);
        if let Some(own) = self.wiring.ip(self.family).filter(|_| router.is_some()) {
            probes.push(Probe::FromHost(own));
            let beside = self.beside().and_then(|it| it.ip(self.family));
            probes.extend(beside.filter(|_| !self.wiring.isolates()).map(Probe::Beside));
        }
        let whole = self.family.whole();
        let mut routes = self.wiring.attachment.result.iter().flat_map(|it| &it.routes);
        if routes.any(|route| route.dst == whole) && router.is_some() {
            let defaults = self.node.routes.iter().filter(|route| route.is_default(self.family));
            let next = defaults.flat_map(|it| &it.gateways).copied().find(|ip| !is_link_local(*ip));
            if let Some(ip) = next
                && self.leaves_by_it(ip)?
            {
                probes.extend([Probe::Outside(ip), Probe::Connection(ip)]);
            }
        }
        let is_its = |ip: &&IpAddr| {
            Family::of(**ip) == self.family && !ip.is_loopback() && !is_link_local(**ip)
        };
        probes.extend(self.servers.iter().filter(is_its).map(|ip| Probe::Query(*ip)));
        Ok(probes)
    }

    /// Another container of the network.
    fn beside(&self) -> Option<&Wiring<'_>> {
        self.all.iter().find(|it| {
            it.attachment.at().netns != self.wiring.attachment.at().netns
                && it.network() == self.wiring.network()
                && it.interface.is_some_and(|link| link.up)
        })
    }

    /// Whether the container sends packets for this address by this interface.
    fn leaves_by_it(&self, to: IpAddr) -> Result<bool> {
        let Some(from) = self.wiring.ip(self.family) else { return Ok(false) };
        let Some(netns) = self.wiring.attachment.open()? else { return Ok(false) };
        let way = netns.netlink()?.way(Question { from, to, comes_by: None })?;
        Ok(matches!(way, Way::Link(link) if link == self.interface.index))
    }

    /// Tries the published ports from outside, the first ones.
    fn ports(&self) -> Result<Vec<Finding>> {
        let mut found = vec![];
        let Some(uplink) = self.node.uplink(self.family) else { return Ok(found) };
        let own = self.node.addresses.iter().filter(|it| it.link == uplink.index);
        let mut own = own.map(|it| it.net.addr());
        let own = own.find(|ip| Family::of(*ip) == self.family && !is_link_local(*ip));
        let Some((own, end)) = own.zip(self.wiring.below.filter(|_| self.wiring.is_pair())) else {
            return Ok(found);
        };
        let mut ports = self.wiring.published(own);
        ports.sort_by_key(|(_, protocol)| *protocol); // those of TCP have an answer
        if ports.len() > MOST_PORTS {
            let numbers: Vec<String> =
                ports[..MOST_PORTS].iter().map(|(at, of)| format!("{}/{of}", at.port())).collect();
            let note =
                format!("of {} published ports, {} were tried", ports.len(), numbers.join(", "));
            *self.node.note.borrow_mut() = note;
        }
        if ports.is_empty() {
            return Ok(found);
        }
        let outside = Outside::make(&self.node.netlink, own, uplink)?;
        if !self.leads_to(&outside)? {
            return Ok(found); // a policy of routing sends the answers to the real uplink
        }
        for (at, protocol) in ports.into_iter().take(MOST_PORTS) {
            if self.follower.is_interrupted() {
                break;
            }
            let probe = Probe::Published(at, protocol);
            let passage = self.follow(probe, Some(&outside.netns))?;
            let Packet { links, .. } = passage.packet(outside::IFNAME);
            let is_to_own = |step: &Step| matches!(step, Step::Left { to, .. } if Some(*to) == self.wiring.ip(self.family));
            let is_delivered = links.contains(&end.name) || passage.steps.iter().any(is_to_own);
            let is_followed = self.follower.packets.is_some() || self.follower.rules.is_some();
            found.extend(match passage.answer {
                Ok(Some(Answer::Yes)) if is_delivered || !is_followed => None,
                Ok(Some(Answer::Refused)) if is_delivered => {
                    let evidence =
                        format!("{probe} reaches the container, where no socket is bound");
                    Some(
                        self.wiring
                            .found(&PORT_UNSERVED, evidence)
                            .show(self.wiring.within("ss -ltun")),
                    )
                }
                Ok(Some(answer)) => {
                    let how = if answer == Answer::Yes { "answered" } else { "refused" };
                    let evidence = format!("{probe} is {how}, but not by the container");
                    let finding = self.wiring.found(&PORT_NOT_LED, evidence).seen_by(links);
                    Some(finding.show("sudo nft list ruleset"))
                }
                _ if let Some(finding) = self.judge(probe, &passage)? => Some(finding),
                // Not every program answers a datagram.
                _ if protocol == Protocol::Udp && (is_delivered || !is_followed) => None,
                _ => {
                    let evidence = format!("{probe} is not answered");
                    let finding = self.wiring.found(&PORT_NOT_LED, evidence).seen_by(links);
                    Some(finding.show("sudo nft list ruleset"))
                }
            });
        }
        Ok(found)
    }

    /// Whether the host routes the container's answers to the machine.
    fn leads_to(&self, outside: &Outside<'_>) -> Result<bool> {
        let Some(from) = self.wiring.ip(self.family) else { return Ok(false) };
        let comes_by = self.wiring.router(self.node, self.family).map(|link| link.index);
        let way = self.node.netlink.way(Question { from, to: outside.address, comes_by })?;
        Ok(matches!(way, Way::Link(link) if link == outside.end))
    }

    /// Sends the probe, and follows it. None if the namespace is gone, or a signal asks for the end.
    pub fn send(&self, probe: Probe) -> Result<Option<Passage>> {
        if self.follower.is_interrupted() {
            return Ok(None);
        }
        let Some(netns) = self.wiring.attachment.open()? else { return Ok(None) };
        let is_from_host = matches!(probe, Probe::FromHost(_));
        self.follow(probe, Some(&netns).filter(|_| !is_from_host)).map(Some)
    }

    /// Sends the probe from this namespace, or the host's, and follows it.
    fn follow(&self, probe: Probe, from: Option<&Netns>) -> Result<Passage> {
        let (link, Follower { length, port, .. }) = (self.interface.index, self.follower);
        let ask = || -> Asked {
            let mut request: Box<dyn Request> = match probe {
                Probe::Connection(ip) => Box::new(Syn::open(*port, (ip, HTTPS).into(), *length)?),
                Probe::Published(at, Protocol::Tcp) => Box::new(Syn::open(*port, at, *length)?),
                Probe::Published(at, Protocol::Udp) => {
                    Box::new(DnsQuery::open(*port, at, *length)?)
                }
                Probe::Query(ip) => Box::new(DnsQuery::open(*port, (ip, PORT).into(), *length)?),
                Probe::Gateway(ip)
                | Probe::FromHost(ip)
                | Probe::Beside(ip)
                | Probe::Outside(ip) => Box::new(Echo::open(ip, link)?.of_length(*length)),
            };
            let mut sent = 0;
            let is_new = matches!(probe, Probe::Published(_, Protocol::Tcp));
            let patience = if is_new { PATIENCE_OF_NEW } else { PATIENCE };
            let answer = request::ask(&mut *request, patience, &mut sent);
            Ok((answer.map(|it| it.map(|(answer, _)| answer)), sent))
        };
        let asked = from.map_or_else(ask, |netns| netns.enter(ask));
        let answer = asked.and_then(|(answer, sent)| {
            self.node.sent.set(self.node.sent.get() + sent);
            answer
        });
        self.follower.passage(answer, self.family)
    }

    /// What the passage says is wrong. None if the probe was answered, or no drop was traced: it has left
    /// the host, and not every router answers.
    pub fn judge(&self, probe: Probe, passage: &Passage) -> Result<Option<Finding>> {
        match &passage.answer {
            Ok(Some(_)) => return Ok(None),
            Err(error) if !matches!(probe, Probe::FromHost(_)) => {
                return Ok(self.refused(probe, error));
            }
            _ => (),
        }
        let router = self.wiring.router(self.node, self.family);
        let start = match probe {
            Probe::Published(..) => outside::IFNAME,
            Probe::FromHost(_) => router.map_or("", |link| link.name.as_str()),
            _ => self.interface.name.as_str(),
        };
        let Packet { links, end } = passage.packet(start);
        let last = links.last().map(String::as_str).unwrap_or_default();
        let is_inside = self.is_inside(probe, &links);
        let uplink = self.node.uplink(self.family);
        let is_out = !is_inside && uplink.is_some_and(|uplink| uplink.name == last);
        let end = end.as_ref().map(|(function, reason)| (function.as_str(), reason.as_deref()));
        let why = end.map_or(Why::Other, |(function, reason)| Why::of(function, reason));
        if is_out && why == Why::Routing && passage.rule().is_none() {
            return Ok(None); // a machine outside, in another namespace of this one, does not know the way
        }
        // Without the kernel's trace, its counters may still tell.
        let may_be_legacy = why == Why::Filter || self.follower.packets.is_none();
        let is_legacy = passage.rule().is_none() && may_be_legacy && !is_inside;
        let legacy = if is_legacy { self.legacy(probe)? } else { None };
        let by = match (passage.rule(), end) {
            (Some(rule), _) => rule.to_string(),
            _ if let Some((rule, _)) = &legacy => rule.clone(),
            (None, Some((function, reason))) => {
                let names = [Some(function).filter(|it| !it.is_empty()), reason];
                let names: Vec<&str> = names.into_iter().flatten().collect();
                format!("{} ({})", why.text(is_inside), names.join(", "))
            }
            (None, None) => return Ok(None),
        };
        let is_filtered = passage.rule().is_some() || legacy.is_some() || why == Why::Filter;
        let fault = match probe {
            // A host accepts for itself what it likes, and so does a container.
            Probe::Gateway(_) if is_filtered && !is_inside => return Ok(None),
            Probe::FromHost(_) | Probe::Beside(_) if passage.rule().is_none() && is_inside => {
                return Ok(None);
            }
            Probe::FromHost(_) => &DROPPED_FROM_HOST,
            Probe::Beside(_) => &DROPPED_BETWEEN,
            Probe::Published(..) => &PORT_NOT_LED,
            _ => &PACKET_DROPPED,
        };
        let evidence = format!("{probe} is dropped by {by}");
        let show = match passage.rule() {
            _ if let Some((_, show)) = legacy => show,
            Some(Dropped { family, table, chain, .. }) => {
                let words = [family, table.as_str(), chain.as_str()].map(quoted).join(" ");
                format!("sudo nft -a list chain {words}")
            }
            None if is_inside && why == Why::Filter => self.wiring.within("nft list ruleset"),
            None if is_inside => self.wiring.within(&why.show(probe.ip(), last)),
            None => why.show(probe.ip(), last),
        };
        Ok(Some(self.wiring.found(fault, evidence).seen_by(links).show(show)))
    }

    /// The finding that the container cannot send the probe.
    fn refused(&self, probe: Probe, error: &Error) -> Option<Finding> {
        let is_one_of = |all: &[Errno]| all.iter().any(|errno| error.is_errno(*errno));
        match probe {
            // The examination of names says that there is no route.
            Probe::Query(_) if error.is_no_route() || is_one_of(&UNUSABLE) => return None,
            // A container that refuses pings may pass all else.
            Probe::Gateway(_) | Probe::Beside(_) if is_one_of(&[Errno::EPERM]) => return None,
            _ => (),
        }
        let how = if is_one_of(&REFUSALS) { "is refused in the container" } else { "is not sent" };
        let evidence = format!("{probe} {how}: {}", error.msg);
        Some(
            self.wiring
                .found(&PACKET_DROPPED, evidence)
                .show(self.wiring.within("nft list ruleset")),
        )
    }

    /// Whether the last of the links that have seen a packet is the container's, or the other container's.
    /// The host's uplink may have the same name: each time that the packet was at the host's end, it
    /// left the container or came into it.
    fn is_inside(&self, probe: Probe, links: &[String]) -> bool {
        let is_in = |wiring: &Wiring<'_>, begins_inside: bool| {
            let end = wiring.below.map_or("", |end| end.name.as_str());
            let is_crossed = links.iter().filter(|link| *link == end).count() % 2 == 1;
            let own = wiring.interface.map(|link| &link.name);
            is_crossed != begins_inside && links.last() == own
        };
        let begins_inside = !matches!(probe, Probe::FromHost(_) | Probe::Published(..));
        let is_beside = matches!(probe, Probe::Beside(_));
        is_in(self.wiring, begins_inside)
            || is_beside && self.beside().is_some_and(|other| is_in(other, false))
    }

    /// The rule or policy of iptables-legacy that counts the probes, which are sent again, and the
    /// command that shows it. Those of published ports come from elsewhere.
    fn legacy(&self, probe: Probe) -> Result<Option<(String, String)>> {
        if matches!(probe, Probe::Published(..)) {
            return Ok(None);
        }
        let (before, sent) = (xtables_legacy::endings(self.family)?, self.node.sent.get());
        let before: HashMap<(String, String, Option<usize>), u64> =
            before.into_iter().map(|it| ((it.table, it.chain, it.rule), it.packets)).collect();
        self.send(probe)?;
        let sent = (self.node.sent.get() - sent) as u64;
        let counted = xtables_legacy::endings(self.family)?.into_iter().filter_map(|it| {
            let key = (it.table.clone(), it.chain.clone(), it.rule);
            let more = it.packets.checked_sub(*before.get(&key)?)?;
            (sent..2 * sent).contains(&more).then_some((more, it)) // others send packets as well
        });
        let counted = counted.min_by_key(|(more, _)| *more).map(|(_, it)| it);
        Ok(counted.map(|Ending { table, chain, rule, .. }| {
            let word = self.family.word();
            let what = rule.map_or("the policy".to_owned(), |number| format!("rule {number}"));
            let chain = quoted(&chain);
            (
                format!("{what} of {chain} in {table} of {word}tables-legacy"),
                format!("sudo {word}tables-legacy -t {table} -nvL {chain} --line-numbers"),
            )
        }))
    }

    /// The finding that a packet of a network that is masqueraded has left from an address that is not the
    /// host's: other machines do not know the way back.
    fn unknown(&self, gateway: IpAddr, passage: &Passage) -> Option<Finding> {
        let from = passage.steps.iter().rev().find_map(|step| match step {
            Step::Left { from, to } if *to == gateway => Some(*from),
            _ => None,
        })?;
        let is_host = self.node.addresses.iter().any(|it| it.net.addr() == from);
        let exempt = self.wiring.plugin.value.get("nonMasqueradeCIDRs").map(Value::items);
        let mut exempt = exempt.into_iter().flatten().filter_map(|it| it.as_str()?.parse().ok());
        let is_exempt = exempt.any(|net: IpNet| net.contains(&gateway));
        if is_host || is_exempt || !self.wiring.is_set("ipMasq") {
            return None;
        }
        let own = if Some(from) == self.wiring.ip(self.family) {
            ", its own: no rule masquerades it"
        } else {
            ""
        };
        let evidence =
            format!("a packet to the host's gateway, {gateway}, leaves from {from}{own}");
        let show = "sudo nft list ruleset; sudo iptables-legacy-save -t nat";
        Some(self.wiring.found(&FOREIGN_SOURCE, evidence).show(show))
    }
}

impl Probe {
    fn ip(self) -> IpAddr {
        match self {
            Probe::Gateway(ip)
            | Probe::FromHost(ip)
            | Probe::Beside(ip)
            | Probe::Outside(ip)
            | Probe::Connection(ip)
            | Probe::Query(ip) => ip,
            Probe::Published(at, _) => at.ip(),
        }
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}
