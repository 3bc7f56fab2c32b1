//! D54x: what drops a container's packets. Each probe is a packet that is sent and followed: two traces
//! of the kernel have the links that saw it, and the rule or the function that dropped it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::process;
use std::time::Duration;

use nix::errno::Errno;

use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, Object, Severity, quoted};
use super::node::{Node, Reader};
use super::outside::Outside;
use super::resolver::Resolvers;
use super::wiring::Wiring;
use crate::error::Result;
use crate::family::Family;
use crate::net::dns_query::DnsQuery;
use crate::net::echo::Echo;
use crate::net::netlink::{FoundRoute, Link, Question, Way};
use crate::net::nft::trace::{Dropped, Step, Trace};
use crate::net::packet_trace::{Event, PacketTrace};
use crate::net::request::{self, Answer, Request};
use crate::net::syn::Syn;
use crate::net::xtables_legacy::{self, Ending};
use crate::runtime::find;
use crate::sys::process::Uninterrupted;

const DROPPED: Fault = Fault::error("D540", "a container's packet is dropped on its way");
const BY_GATEWAY: Fault = Fault::warning("D541", "the host drops packets to the gateway itself");
const FROM_HOST: Fault = Fault::warning("D542", "the host's packets to a container are dropped");
const BESIDE: Fault = Fault::warning("D543", "packets between containers of a network are dropped");
const REFUSED: Fault = Fault::error("D544", "nothing listens at the container's name servers");
const UNKNOWN: Fault = Fault::error("D545", "packets leave from an address that is not the host's");
const ASTRAY: Fault = Fault::error("D546", "a published port does not lead to its container");
const UNSERVED: Fault = Fault::warning("D547", "nothing listens at a published port");

/// The examination. A finding of it replaces D530 or D531 of the same gateway.
pub const EXAMINATION: Examination = Examination {
    faults: || {
        vec![
            &DROPPED, &BY_GATEWAY, &FROM_HOST, &BESIDE, &REFUSED, &UNKNOWN, &ASTRAY, &UNSERVED,
        ]
    },
    examine,
};

/// The codes of a gateway that does not answer.
const SILENCE: [&str; 2] = ["D530", "D531"];
/// The least length of a probe, IP header included. The traces select probes by their length, so it is
/// an unusual one; the process number adds to it, so that two runs do not trace each other's.
const LENGTH: u32 = 731;
const LENGTHS: u32 = 64;
/// The first port of probes, above those that the kernel gives to clients.
const PORT: u16 = 61_000;
const PORTS: u32 = 4096;
/// The port of a connection to the host's gateway, which a firewall that opens few has opened.
const HTTPS: u16 = 443;
/// The command that makes a kernel's trace available.
const MOUNT: &str = "sudo mount -t tracefs tracefs /sys/kernel/tracing";
/// How long an answer may take: the first packets of a new link are lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same on a link that is just made: the kernel repeats a question about a neighbour after a second.
const PATIENCE_OF_NEW: Duration = Duration::from_millis(2500);
/// What a socket answers where rules or routes of this namespace refuse a packet.
const REFUSALS: [Errno; 4] = [Errno::EPERM, Errno::EACCES, Errno::ENETUNREACH, Errno::EINVAL];
/// How many published ports are tried.
const MOST_PORTS: usize = 8;
/// The main routing table.
const MAIN: u32 = 254;

fn examine(node: &Node<'_>, findings: &mut Findings) {
    if !node.request.sends_packets() {
        return;
    }
    let _whole = Uninterrupted::begin(); // or the traces would stay
    let follower = Reader(findings).keep(Follower::begin().map(Some));
    let Some(follower) = follower else { return };
    let all = Wiring::with_others(node);
    for wiring in all.iter().take(Wiring::all(node).len()) {
        let object = wiring.attachment.object();
        // A gateway that does not answer is looked into, unless it is known why.
        let is_silence = |it: &Finding| {
            it.object == object && SILENCE.contains(&it.fault.code) && it.fix.is_empty()
        };
        let is_cause = |it: &Finding| {
            [&object, &Object::Node].contains(&&it.object)
                && it.fault.severity == Severity::Error
                && !is_silence(it)
        };
        // The echo socket is not bound to the interface: it would not use the table of a VRF.
        let interface = wiring.interface.filter(|link| link.up && link.master.is_none());
        let Some(interface) = interface else { continue };
        for family in Family::ALL {
            if findings.0.iter().any(is_cause) {
                break; // what breaks one family often breaks both
            }
            let walk = Walk { node, wiring, interface, family, all: &all, follower: &follower };
            let Walked { found, is_beyond } = Reader(findings).keep(walk.walk());
            let is_error = found.iter().any(|it| it.fault.severity == Severity::Error);
            let is_of_family = |it: &Finding| {
                let gateway = it.evidence.split(' ').next().and_then(|ip| ip.parse().ok());
                gateway.is_none_or(|ip| Family::of(ip) == family)
            };
            let is_deaf = |it: &Finding| it.fault.code == "D530" && is_silence(it) && is_of_family(it);
            if follower.packets.is_none() {
                let silent = findings.0.iter_mut().filter(|it| is_silence(it));
                silent.for_each(|it| MOUNT.clone_into(&mut it.show));
            }
            if is_error {
                findings.0.retain(|it| !is_silence(it));
            } else if findings.0.iter().any(is_deaf) {
                continue; // a host that is not found is not reached
            } else if is_beyond || !found.is_empty() {
                findings.0.retain(|it| !is_silence(it) || !is_of_family(it));
            }
            findings.0.extend(found);
        }
    }
}

/// Follows the packets of this process, on the whole machine.
struct Follower {
    length: u32,
    port: u16,
    /// None without tracefs.
    packets: Option<PacketTrace>,
    /// None without nf_tables.
    rules: Option<Trace>,
}

/// What has become of a probe.
struct Passage {
    answer: Result<Option<Answer>>,
    seen: Vec<Event>,
    steps: Vec<Step>,
}

/// What a probe was answered, and how many packets were sent.
type Asked = Result<(Result<Option<Answer>>, usize)>;

impl Follower {
    fn begin() -> Result<Follower> {
        let id = process::id();
        let (length, port) = (LENGTH + id % LENGTHS, PORT + (id % PORTS) as u16);
        let packets = PacketTrace::begin(length)?;
        Ok(Follower { length, port, packets, rules: Trace::begin(length, port)? })
    }

    /// What has become of it since the last call.
    fn passage(&self, answer: Result<Option<Answer>>) -> Result<Passage> {
        let seen = self.packets.as_ref().map_or(Ok(vec![]), PacketTrace::events)?;
        let steps = self.rules.as_ref().map_or(Ok(vec![]), Trace::steps)?;
        Ok(Passage { answer, seen: seen.into_iter().map(|(_, event)| event).collect(), steps })
    }
}

impl Passage {
    /// The links that have seen the packet, and what has freed it: function and reason.
    fn links(&self) -> (Vec<&str>, Option<(&str, Option<&str>)>) {
        let mut links: Vec<&str> = vec![];
        for event in &self.seen {
            match event {
                Event::Seen { link } if links.last() != Some(&link.as_str()) => links.push(link),
                Event::Seen { .. } => (),
                // It has arrived; ping and connections are answered by the kernel.
                Event::Freed { function, reason }
                    if reason.as_deref() == Some("NO_SOCKET")
                        || ["icmp", "tcp_v"].iter().any(|it| function.starts_with(it)) => {}
                Event::Freed { function, reason } => {
                    return (links, Some((function, reason.as_deref())));
                }
            }
        }
        (links, None)
    }

    fn rule(&self) -> Option<&Dropped> {
        self.steps.iter().find_map(|step| match step {
            Step::Dropped(rule) => Some(rule),
            Step::Left { .. } => None,
        })
    }
}

/// The way of a container's packets of one family.
struct Walk<'a> {
    node: &'a Node<'a>,
    wiring: &'a Wiring<'a>,
    interface: &'a Link,
    family: Family,
    /// All attachments, also those beside the named container.
    all: &'a [Wiring<'a>],
    follower: &'a Follower,
}

/// A packet that is sent, with its destination.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Probe {
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
    /// A request for a connection with a published port, from outside.
    Published(SocketAddr),
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
            Probe::Published(at) => write!(f, "a connection from outside to {at}"),
        }
    }
}

/// What was found, and whether packets pass the gateway.
#[derive(Default)]
struct Walked {
    found: Vec<Finding>,
    is_beyond: bool,
}

impl Walk<'_> {
    /// Sends each probe, and stops at the first error.
    fn walk(&self) -> Result<Walked> {
        let mut walked = Walked::default();
        let mut by_gateway = None;
        let mut unserved = vec![];
        for probe in self.probes()? {
            let Some(passage) = self.send(probe)? else { continue };
            let is_answered = matches!(passage.answer, Ok(Some(_)));
            if let (Probe::Query(server), Ok(answer)) = (probe, &passage.answer) {
                match answer {
                    Some(Answer::Yes) => break, // the others need not answer
                    Some(Answer::Refused) => unserved.push(server.to_string()),
                    None => (),
                }
            }
            let Some(finding) = self.judge(probe, &passage)? else {
                walked.is_beyond |= matches!(probe, Probe::Outside(_) | Probe::Connection(_));
                if let Probe::Outside(ip) = probe
                    && !is_answered
                    && let Some(unknown) = self.unknown(ip, &passage)
                {
                    walked.found.push(unknown);
                    return Ok(walked);
                }
                continue;
            };
            match finding.fault {
                &BY_GATEWAY => by_gateway = Some(finding),
                fault => {
                    walked.found.push(finding);
                    if fault.severity == Severity::Error {
                        return Ok(walked);
                    }
                }
            }
        }
        if !unserved.is_empty() {
            let evidence = format!("nothing listens at {} for DNS", unserved.join(", "));
            walked.found.push(self.found(&REFUSED, evidence));
        }
        walked.found.extend(self.ports()?);
        if !walked.is_beyond {
            walked.found.extend(by_gateway); // a host that accepts little for itself is healthy
        }
        Ok(walked)
    }

    /// What is sent, in this order: the gateways of the record; from the host, and to another container,
    /// if the host is on the network; the host's gateway, if the container has its default route by the
    /// host; the name servers.
    fn probes(&self) -> Result<Vec<Probe>> {
        let result = self.wiring.attachment.result.iter();
        let gateways = self.wiring.used_gateways().into_iter();
        let gateways = gateways.filter(|ip| Family::of(*ip) == self.family);
        let mut probes: Vec<Probe> = gateways.map(Probe::Gateway).collect();
        let router = self.wiring.router(self.node, self.family);
        if let Some(own) = self.wiring.ip(self.family).filter(|_| router.is_some()) {
            probes.push(Probe::FromHost(own));
            let is_beside = |it: &&Wiring<'_>| {
                it.attachment.at().netns != self.wiring.attachment.at().netns
                    && it.network() == self.wiring.network()
                    && it.interface.is_some_and(|link| link.up)
            };
            let beside = self.all.iter().filter(is_beside).find_map(|it| it.ip(self.family));
            probes.extend(beside.filter(|_| !self.wiring.isolates()).map(Probe::Beside));
        }
        let whole = self.family.whole();
        let has_default = result.flat_map(|it| &it.routes).any(|route| route.dst == whole);
        if has_default && router.is_some() {
            let is_default = |route: &&FoundRoute| route.dst == whole && route.table == MAIN;
            let next = self.node.routes.iter().filter(is_default).flat_map(|it| &it.gateways);
            let next = next.copied().find(|ip| !is_link_local(*ip));
            probes.extend(next.into_iter().flat_map(|ip| [Probe::Outside(ip), Probe::Connection(ip)]));
        }
        let at = self.wiring.attachment;
        let name = find::netns_name(&at.at().netns);
        if let Some(identity) = at.id.map(|id| id.file())
            && let Some(resolver) = Resolvers::look()?.of(identity, name)?
        {
            let of_family = |ip: &IpAddr| Family::of(*ip) == self.family && !ip.is_loopback();
            probes.extend(resolver.servers.into_iter().filter(of_family).map(Probe::Query).take(3));
        }
        Ok(probes)
    }

    /// Tries the published ports from outside, the first ones.
    fn ports(&self) -> Result<Vec<Finding>> {
        let mut found = vec![];
        let Some(uplink) = self.node.uplink(self.family) else { return Ok(found) };
        let own = self.node.addresses.iter().filter(|it| it.link == uplink.index);
        let mut own = own.map(|it| it.net.addr());
        let own = own.find(|ip| Family::of(*ip) == self.family && !is_link_local(*ip));
        let Some((own, end)) = own.zip(self.wiring.below) else { return Ok(found) };
        let ports = self.wiring.published(own);
        if ports.len() > MOST_PORTS {
            let numbers: Vec<String> =
                ports[..MOST_PORTS].iter().map(|at| at.port().to_string()).collect();
            let note = format!("of {} published ports, {} were tried", ports.len(), numbers.join(", "));
            *self.node.note.borrow_mut() = note;
        }
        if ports.is_empty() {
            return Ok(found);
        }
        let outside = Outside::make(&self.node.netlink, own, uplink)?;
        if !self.leads_to(&outside)? {
            return Ok(found); // a policy of routing sends the answers to the real uplink
        }
        for at in ports.into_iter().take(MOST_PORTS) {
            let probe = Probe::Published(at);
            let passage = self.follow(probe, |ask| outside.netns.enter(ask))?;
            let (links, _) = passage.links();
            let is_delivered = links.contains(&end.name.as_str());
            let is_followed = self.follower.packets.is_some();
            let seen = links.join(", ");
            found.extend(match passage.answer {
                Ok(Some(Answer::Yes)) if is_delivered || !is_followed => None,
                Ok(Some(Answer::Refused)) if is_delivered => {
                    let evidence = format!("{probe} reaches the container, where nothing listens");
                    Some(self.found(&UNSERVED, evidence).show(self.wiring.within("ss -ltn")))
                }
                Ok(Some(answer)) => {
                    let how = if answer == Answer::Yes { "answered" } else { "refused" };
                    let evidence =
                        format!("{probe} is {how}, but not by the container; seen by {seen}");
                    Some(self.found(&ASTRAY, evidence).show("sudo nft list ruleset"))
                }
                _ => self.judge(probe, &passage)?.or_else(|| {
                    let evidence = format!("{probe} is not answered; seen by {seen}");
                    Some(self.found(&ASTRAY, evidence).show("sudo nft list ruleset"))
                }),
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

    /// Sends the probe, and follows it. None if the namespace is gone.
    fn send(&self, probe: Probe) -> Result<Option<Passage>> {
        let Some(netns) = self.wiring.attachment.open()? else { return Ok(None) };
        let passage = self.follow(probe, |ask| match probe {
            Probe::FromHost(_) => ask(),
            _ => netns.enter(ask),
        });
        passage.map(Some)
    }

    /// Sends the probe by `enter`, which runs what it is given where the probe begins.
    fn follow(&self, probe: Probe, enter: impl FnOnce(&mut (dyn FnMut() -> Asked + Send)) -> Asked) -> Result<Passage> {
        let (link, Follower { length, port, .. }) = (self.interface.index, self.follower);
        let mut ask = || {
            let mut request: Box<dyn Request> = match probe {
                Probe::Connection(ip) => Box::new(Syn::open(*port, (ip, HTTPS).into(), *length)?),
                Probe::Published(at) => Box::new(Syn::open(*port, at, *length)?),
                Probe::Query(ip) => Box::new(DnsQuery::open(*port, ip, link, *length)?),
                Probe::Gateway(ip) | Probe::FromHost(ip) | Probe::Beside(ip) | Probe::Outside(ip) => {
                    Box::new(Echo::open(ip, link)?.of_length(*length))
                }
            };
            let mut sent = 0;
            let is_new = matches!(probe, Probe::Published(_));
            let patience = if is_new { PATIENCE_OF_NEW } else { PATIENCE };
            let answer = request::ask(&mut *request, patience, &mut sent);
            Ok((answer.map(|it| it.map(|(answer, _)| answer)), sent))
        };
        let answer = enter(&mut ask).and_then(|(answer, sent)| {
            self.node.sent.set(self.node.sent.get() + sent);
            answer
        });
        self.follower.passage(answer)
    }

    fn found(&self, fault: &'static Fault, evidence: String) -> Finding {
        Finding::new(fault, self.wiring.attachment.object(), evidence)
    }

    /// What the passage says is wrong. None if the probe was answered, or no drop was traced: it has left
    /// the host, and not every router answers.
    fn judge(&self, probe: Probe, passage: &Passage) -> Result<Option<Finding>> {
        let is_from_host = matches!(probe, Probe::FromHost(_));
        match &passage.answer {
            Ok(Some(_)) => return Ok(None),
            Ok(None) => (),
            Err(error) if REFUSALS.iter().any(|errno| error.is_errno(*errno)) && !is_from_host => {
                let evidence = format!("{probe} is refused in the container: {}", error.msg);
                let show = self.wiring.within("nft list ruleset");
                return Ok(Some(self.found(&DROPPED, evidence).show(show)));
            }
            Err(error) if !is_from_host => {
                let evidence = format!("{probe} is not sent: {}", error.msg);
                return Ok(Some(self.found(&DROPPED, evidence)));
            }
            Err(_) => (),
        }
        let (links, freed) = passage.links();
        let last = links.last().copied().unwrap_or_default();
        let is_inside = last == self.interface.name;
        let why = freed.map_or(Why::Other, |(function, reason)| Why::of(function, reason));
        let is_legacy = passage.rule().is_none() && why == Why::Filter && !is_inside;
        let legacy = if is_legacy { self.legacy(probe)? } else { None };
        let by = match (passage.rule(), freed) {
            (Some(rule), _) => rule.to_string(),
            _ if let Some((rule, _)) = &legacy => rule.clone(),
            (None, Some((function, reason))) => {
                let names = [Some(function).filter(|it| !it.is_empty()), reason];
                let names: Vec<&str> = names.into_iter().flatten().collect();
                format!("{} ({})", why.text(is_inside), names.join(", "))
            }
            (None, None) => return Ok(None),
        };
        let is_filtered = passage.rule().is_some() || why == Why::Filter;
        let fault = match probe {
            Probe::Gateway(_) if is_filtered && !is_inside => &BY_GATEWAY,
            // A container may drop what it is sent.
            Probe::FromHost(_) | Probe::Beside(_) if passage.rule().is_none() && is_inside => {
                return Ok(None);
            }
            Probe::FromHost(_) => &FROM_HOST,
            Probe::Beside(_) => &BESIDE,
            Probe::Published(_) => &ASTRAY,
            _ => &DROPPED,
        };
        let evidence = format!("{probe} is dropped by {by}; seen by {}", links.join(", "));
        let show = match passage.rule() {
            _ if let Some((_, show)) = legacy => show,
            Some(Dropped { family, table, chain, .. }) => {
                let words = [family, table.as_str(), chain.as_str()].map(quoted).join(" ");
                format!("sudo nft -a list chain {words}")
            }
            None if is_inside && why == Why::Filter => self.wiring.within("nft list ruleset"),
            None => why.show(probe.ip(), last),
        };
        Ok(Some(self.found(fault, evidence).show(show)))
    }

    /// The rule or policy of iptables-legacy that counts the probes, which are sent again, and the
    /// command that shows it. Those of published ports come from elsewhere.
    fn legacy(&self, probe: Probe) -> Result<Option<(String, String)>> {
        if matches!(probe, Probe::Published(_)) {
            return Ok(None);
        }
        let (before, sent) = (xtables_legacy::endings(self.family)?, self.node.sent.get());
        self.send(probe)?;
        let sent = (self.node.sent.get() - sent) as u64;
        let has_counted = |now: &Ending| {
            let is_it = |it: &&Ending| Ending { packets: now.packets, ..(*it).clone() } == *now;
            before.iter().find(is_it).is_some_and(|it| now.packets - it.packets >= sent)
        };
        let counted = xtables_legacy::endings(self.family)?.into_iter().find(has_counted);
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
        if is_host || !self.wiring.is_set("ipMasq") {
            return None;
        }
        let own = if Some(from) == self.wiring.ip(self.family) { ", its own: no rule masquerades it" } else { "" };
        let evidence = format!("a packet to the host's gateway, {gateway}, leaves from {from}{own}");
        let show = "sudo nft list ruleset; sudo iptables-legacy-save -t nat";
        Some(self.found(&UNKNOWN, evidence).show(show))
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
            Probe::Published(at) => at.ip(),
        }
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Why the kernel has freed a packet: by its reason (include/net/dropreason-core.h), or by the
/// function where it has none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Filter,
    Source,
    Routing,
    Neighbour,
    Length,
    Queue,
    Traffic,
    Port,
    Address,
    Other,
}

impl Why {
    fn of(function: &str, reason: Option<&str>) -> Why {
        match (reason.unwrap_or_default(), function) {
            ("NETFILTER_DROP", _) => Why::Filter,
            ("IP_RPFILTER" | "IP_INVALID_SOURCE" | "IP_LOCAL_SOURCE", _) => Why::Source,
            ("IP_INNOROUTES" | "IP_OUTNOROUTES" | "IP_INADDRERRORS", _) => Why::Routing,
            ("NEIGH_FAILED", _) => Why::Neighbour,
            ("PKT_TOO_BIG", _) => Why::Length,
            ("QDISC_DROP", _) => Why::Queue,
            ("TC_INGRESS" | "TC_EGRESS" | "XDP", _) => Why::Traffic,
            ("BRIDGE_INGRESS_STP_STATE", _) => Why::Port,
            ("OTHERHOST", _) => Why::Address,
            (_, "nf_hook_slow" | "nft_do_chain" | "ipt_do_table" | "ip6t_do_table") => Why::Filter,
            (_, "ip_error" | "ip6_pkt_drop" | "ip_forward" | "ip6_forward" | "dst_discard_out") => {
                Why::Routing
            }
            (_, "ip_rcv_finish_core") => Why::Source,
            (_, "neigh_invalidate") => Why::Neighbour,
            (_, "br_handle_frame" | "br_allowed_ingress" | "br_handle_frame_finish") => Why::Port,
            (_, "sch_handle_ingress" | "sch_handle_egress" | "tcf_classify") => Why::Traffic,
            (_, "__netif_receive_skb_core") => Why::Traffic,
            (_, "__dev_queue_xmit") => Why::Queue,
            (_, "ip_rcv_core") => Why::Address,
            _ => Why::Other,
        }
    }

    fn text(self, is_inside: bool) -> &'static str {
        match self {
            Why::Filter if is_inside => "a rule of the container",
            Why::Filter => "a rule of iptables-legacy or of a table netdev",
            Why::Source => "the check of source addresses, rp_filter",
            Why::Routing => "routing: no route, a blackhole, or forwarding is off",
            Why::Neighbour => "the wait for a neighbour that does not answer",
            Why::Length => "a link with a smaller MTU",
            Why::Queue => "a queueing discipline, or a filter of tc",
            Why::Traffic => "a filter of tc, or a program of XDP",
            Why::Port => "a port of the bridge: its state, isolation or VLANs",
            Why::Address => "a host with another hardware address",
            Why::Other => "the kernel",
        }
    }

    /// The command that shows the cause.
    fn show(self, to: IpAddr, link: &str) -> String {
        let link = quoted(link);
        match self {
            Why::Filter => "sudo nft list ruleset; sudo iptables-legacy-save -c".to_owned(),
            Why::Source => {
                format!("sysctl net/ipv4/conf/all/rp_filter net/ipv4/conf/{link}/rp_filter")
            }
            Why::Neighbour | Why::Address => "ip neigh".to_owned(),
            Why::Queue => format!("tc -s qdisc show dev {link}"),
            Why::Traffic => format!("tc filter show dev {link} ingress"),
            Why::Port => format!("bridge -d link show dev {link}"),
            Why::Length | Why::Routing | Why::Other => format!("ip route get {to}"),
        }
    }
}
