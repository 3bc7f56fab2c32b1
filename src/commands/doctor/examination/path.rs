//! D540 and D541: what drops a container's packets. The container sends an echo request to its
//! gateway, and another to the host's gateway; two traces of the kernel have the links that saw them,
//! and the rule or the function that dropped them.

use std::net::IpAddr;
use std::process;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::{IPPROTO_ICMP, IPPROTO_ICMPV6};

use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, Object, Severity, quoted};
use super::node::{Node, Reader};
use super::wiring::Wiring;
use crate::cni::result::IpConfig;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::net::echo::{self, Echo};
use crate::net::netlink::{FoundRoute, Link};
use crate::net::nft::trace::{Dropped, Trace};
use crate::net::packet_trace::{Event, PacketTrace};
use crate::sys::process::Uninterrupted;

const DROPPED: Fault = Fault::error("D540", "a container's packet is dropped on its way");
const BY_GATEWAY: Fault = Fault::warning("D541", "the host drops packets to the gateway itself");

/// The examination. A finding of it replaces D530 or D531 of the same gateway.
pub const EXAMINATION: Examination =
    Examination { faults: || vec![&DROPPED, &BY_GATEWAY], examine };

/// The codes of a gateway that does not answer.
const SILENCE: [&str; 2] = ["D530", "D531"];
/// The least length of a probe, IP header included. The traces select probes by their length, so it is
/// an unusual one; the process number adds to it, so that two runs do not trace each other's.
const LENGTH: u32 = 731;
const LENGTHS: u32 = 64;
/// The command that makes a kernel's trace available.
const MOUNT: &str = "sudo mount -t tracefs tracefs /sys/kernel/tracing";
/// How long an answer may take: the first packets of a new link are lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// What a socket answers where rules or routes of the container refuse a packet.
const REFUSALS: [Errno; 4] = [Errno::EPERM, Errno::EACCES, Errno::ENETUNREACH, Errno::EINVAL];
/// The main routing table.
const MAIN: u32 = 254;

fn examine(node: &Node<'_>, findings: &mut Findings) {
    if !node.request.probe || node.request.subject.is_empty() {
        return;
    }
    for wiring in Wiring::all(node) {
        let object = wiring.attachment.object();
        let is_cause = |it: &Finding| {
            it.object == object && !SILENCE.contains(&it.fault.code)
                || it.object == Object::Node && it.fault.severity == Severity::Error
        };
        // The echo socket is not bound to the interface: it would not use the table of a VRF.
        let interface = wiring.interface.filter(|link| link.up && link.master.is_none());
        let Some(interface) = interface else { continue };
        if findings.0.iter().any(is_cause) {
            continue;
        }
        for family in Family::ALL {
            let walk = Walk { node, wiring: &wiring, interface, family };
            let is_silence = |it: &Finding| {
                let gateway = it.evidence.split(' ').next().and_then(|ip| ip.parse().ok());
                let is_of_family = gateway.is_none_or(|ip| Family::of(ip) == family);
                it.object == object && SILENCE.contains(&it.fault.code) && is_of_family
            };
            match walk.findings() {
                Ok(None) => {
                    let silent = findings.0.iter_mut().filter(|it| is_silence(it));
                    silent.for_each(|it| it.show = MOUNT.to_owned());
                }
                Ok(Some(found)) if found.is_empty() => (),
                Ok(Some(found)) => {
                    findings.0.retain(|it| !is_silence(it));
                    findings.0.extend(found);
                }
                Err(error) => Reader(findings).keep(Err(error)),
            }
        }
    }
}

/// The way of a container's packets of one family.
struct Walk<'a> {
    node: &'a Node<'a>,
    wiring: &'a Wiring<'a>,
    interface: &'a Link,
    family: Family,
}

/// Where a packet is sent.
struct Target {
    ip: IpAddr,
    is_gateway: bool,
}

impl Walk<'_> {
    /// Probes each target, and stops at the first error. Returns None without tracefs.
    fn findings(&self) -> Result<Option<Vec<Finding>>> {
        let targets = self.targets();
        let mut found = vec![];
        let Some(netns) = self.wiring.attachment.open()?.filter(|_| !targets.is_empty()) else {
            return Ok(Some(found));
        };
        let length = LENGTH + process::id() % LENGTHS;
        let protocol = match self.family {
            Family::V4 => IPPROTO_ICMP as u8,
            Family::V6 => IPPROTO_ICMPV6 as u8,
        };
        let _whole = Uninterrupted::begin(); // or the traces would stay
        let Some(trace) = PacketTrace::begin(length)? else { return Ok(None) };
        let rules = Trace::begin(length, protocol, echo::identifier())?;
        for target in targets {
            let (ip, link) = (target.ip, self.interface.index);
            let sent = netns.enter(|| {
                let mut echo = Echo::open(ip, link)?.of_length(length);
                let answered = echo.time_within(PATIENCE).map(|time| time.is_some());
                Ok((answered, echo.sent()))
            });
            let answered = sent.and_then(|(answered, sent)| {
                self.node.sent.set(self.node.sent.get() + sent);
                answered
            });
            let (seen, rules) = (trace.events()?, rules.as_ref().map_or(Ok(vec![]), Trace::drops)?);
            let finding = match answered {
                Ok(true) => None,
                Ok(false) => self.judge(&target, &seen, rules.first()),
                Err(error) if REFUSALS.iter().any(|errno| error.is_errno(*errno)) => {
                    Some(self.refused(&target, &error))
                }
                Err(error) => return Err(error),
            };
            match finding {
                Some(error) if error.fault.severity == Severity::Error => {
                    return Ok(Some(vec![error]));
                }
                warning => found.extend(warning),
            }
        }
        Ok(Some(found))
    }

    /// The gateways of the record, and where the host's default route leads if the container has one
    /// by the host.
    fn targets(&self) -> Vec<Target> {
        let is_of_family = |ip: &IpAddr| Family::of(*ip) == self.family;
        let result = self.wiring.attachment.result.iter();
        let ips: Vec<&IpConfig> = result.clone().flat_map(|result| &result.ips).collect();
        let gateways = ips.iter().filter_map(|ip| ip.gateway).filter(is_of_family);
        let mut targets: Vec<Target> = gateways.map(|ip| Target { ip, is_gateway: true }).collect();
        targets.dedup_by_key(|target| target.ip);
        let whole = self.family.whole();
        let has_default = result.flat_map(|it| &it.routes).any(|route| route.dst == whole);
        if has_default && self.wiring.router(self.node, self.family).is_some() {
            let is_default = |route: &&FoundRoute| route.dst == whole && route.table == MAIN;
            let next = self.node.routes.iter().filter(is_default).flat_map(|it| &it.gateways);
            let next = next.copied().filter(|ip| !is_link_local(*ip)).take(1);
            targets.extend(next.map(|ip| Target { ip, is_gateway: false }));
        }
        targets
    }

    fn found(&self, fault: &'static Fault, evidence: String) -> Finding {
        Finding::new(fault, self.wiring.attachment.object(), evidence)
    }

    /// The finding that the container's own rules or routes refuse the packet.
    fn refused(&self, target: &Target, error: &Error) -> Finding {
        let evidence = format!("{} is refused in the container: {}", target.role(), error.msg);
        self.found(&DROPPED, evidence).show(self.wiring.within("nft list ruleset"))
    }

    /// The finding about a probe without an answer: what dropped it, or dropped the answer. Returns None
    /// if no drop was traced: the probe has left the host, and not every router answers.
    fn judge(
        &self,
        target: &Target,
        seen: &[(String, Event)],
        rule: Option<&Dropped>,
    ) -> Option<Finding> {
        let freed = seen.iter().find_map(|(_, event)| match event {
            Event::Freed { function, reason } => Some((function.as_str(), reason.as_deref())),
            Event::Seen { .. } => None,
        });
        let mut links: Vec<&str> = vec![];
        for (_, event) in seen {
            match event {
                Event::Seen { link } if links.last() != Some(&link.as_str()) => links.push(link),
                Event::Seen { .. } => (),
                Event::Freed { .. } => break,
            }
        }
        let by = match (rule, freed) {
            (Some(rule), _) => rule.to_string(),
            (None, Some((function, reason))) => {
                let names = [Some(function).filter(|it| !it.is_empty()), reason];
                let names: Vec<&str> = names.into_iter().flatten().collect();
                format!("{} ({})", Why::of(function, reason).text(), names.join(", "))
            }
            (None, None) => return None,
        };
        let last = links.last().copied().unwrap_or_default();
        let evidence =
            format!("{} is dropped by {by}; seen by {}", target.role(), links.join(", "));
        let why = freed.map_or(Why::Other, |(function, reason)| Why::of(function, reason));
        let is_filtered = rule.is_some() || why == Why::Filter;
        let is_of_host = target.is_gateway && is_filtered && last != self.interface.name;
        let fault = if is_of_host { &BY_GATEWAY } else { &DROPPED };
        let show = match rule {
            Some(Dropped { family, table, chain, .. }) => {
                let words = [family, table.as_str(), chain.as_str()].map(quoted).join(" ");
                format!("sudo nft -a list chain {words}")
            }
            None => why.show(target.ip, last),
        };
        Some(self.found(fault, evidence).show(show))
    }
}

impl Target {
    fn role(&self) -> String {
        let Target { ip, is_gateway } = self;
        match is_gateway {
            true => format!("a packet to the gateway, {ip},"),
            false => format!("a packet to the host's gateway, {ip},"),
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
            (_, "ip_error" | "ip6_pkt_drop" | "ip_forward" | "ip6_forward") => Why::Routing,
            (_, "br_handle_frame") => Why::Port,
            (_, "sch_handle_ingress" | "sch_handle_egress" | "tcf_classify") => Why::Traffic,
            _ => Why::Other,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Why::Filter => "a rule of iptables-legacy, of a table netdev, or of the container",
            Why::Source => "the check of source addresses, rp_filter",
            Why::Routing => "routing: no route, a blackhole, or forwarding is off",
            Why::Neighbour => "the wait for a neighbour that does not answer",
            Why::Length => "a link with a smaller MTU",
            Why::Queue => "a queueing discipline",
            Why::Traffic => "a filter of tc, or a program of XDP",
            Why::Port => "a port of the bridge that does not forward",
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
