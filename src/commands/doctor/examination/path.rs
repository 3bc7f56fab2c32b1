//! D54x: where a packet of a container ends. One is sent to its gateway, and one to the host's; the
//! kernel's trace has the links that have seen it, and what has dropped it.

use std::net::IpAddr;
use std::time::Duration;

use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, Object, Severity, quoted};
use super::node::{Node, Reader};
use super::wiring::Wiring;
use crate::cni::result::IpConfig;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::net::echo::Echo;
use crate::net::netlink::{FoundRoute, Link};
use crate::net::nft::trace::{Dropped, Trace};
use crate::net::packet_trace::{Event, PacketTrace};

const DROPPED: Fault = Fault::error("D540", "a container's packet is dropped on its way");
const BY_GATEWAY: Fault = Fault::warning("D541", "the host drops packets to the gateway itself");
const UNTRACED: Fault = Fault::warning("D542", "packets cannot be followed");

/// The examination. What it names takes the place of a gateway's silence.
pub const EXAMINATION: Examination =
    Examination { faults: || vec![&DROPPED, &BY_GATEWAY, &UNTRACED], examine };

/// The codes of a gateway that does not answer.
const SILENCE: [&str; 2] = ["D530", "D531"];
/// The length of the packets from the header of IP on, which few others have; the filter of the
/// trace goes by it.
const LENGTH: u32 = 731;
/// How long an answer may take: the first packets of a new link are lost.
const PATIENCE: Duration = Duration::from_secs(1);
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
        let Some(interface) = wiring.interface.filter(|link| link.up) else { continue };
        if findings.0.iter().any(is_cause) {
            continue;
        }
        for family in Family::ALL {
            let walk = Walk { node, wiring: &wiring, interface, family };
            for finding in Reader(findings).keep(walk.findings()) {
                findings.0.retain(|it| it.object != object || !SILENCE.contains(&it.fault.code));
                findings.add(finding);
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
    /// What drops the packets to each target, until one that is an error.
    fn findings(&self) -> Result<Vec<Finding>> {
        let targets = self.targets();
        let mut found = vec![];
        let Some(netns) = self.wiring.attachment.open()?.filter(|_| !targets.is_empty()) else {
            return Ok(found);
        };
        let Some(events) = PacketTrace::begin(LENGTH)? else {
            let evidence = "no tracefs at /sys/kernel/tracing: mount it, or boot without lockdown";
            let finding = Finding::new(&UNTRACED, Object::Node, evidence);
            return Ok(vec![finding.show("mount -t tracefs tracefs /sys/kernel/tracing")]);
        };
        let rules = Trace::begin(LENGTH)?;
        for target in targets {
            let (ip, link) = (target.ip, self.interface.index);
            let sent = netns.enter(|| {
                let mut echo = Echo::open(ip, link)?.of_length(LENGTH);
                echo.time_within(PATIENCE).map(|time| time.is_some())
            });
            let (seen, rules) = (
                events.events()?,
                match &rules {
                    Some(rules) => rules.drops()?,
                    None => vec![],
                },
            );
            let finding = match sent {
                Ok(true) => None,
                Ok(false) => self.judge(&target, &seen, rules.first()),
                Err(error) => Some(self.refused(&target, &error)),
            };
            match finding {
                Some(error) if error.fault.severity == Severity::Error => return Ok(vec![error]),
                warning => found.extend(warning),
            }
        }
        Ok(found)
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

    /// What the container's own rules or routes refuse.
    fn refused(&self, target: &Target, error: &Error) -> Finding {
        let evidence = format!("{}: {}", target.role(), error.msg);
        self.found(&DROPPED, evidence).show(self.wiring.within("nft list ruleset"))
    }

    /// What has dropped the packet, or its answer. Nothing is said of one that has left the host: not
    /// every router answers.
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
            (None, Some((function, reason))) => by_kernel(function, reason),
            (None, None) => return None,
        };
        let last = links.last().copied().unwrap_or_default();
        let evidence =
            format!("{} is dropped by {by}; seen by {}", target.role(), links.join(", "));
        let is_filtered = rule.is_some() || freed.is_some_and(|it| it.1 == Some("NETFILTER_DROP"));
        let is_of_host = target.is_gateway && is_filtered && last != self.interface.name;
        let fault = if is_of_host { &BY_GATEWAY } else { &DROPPED };
        let show = match rule {
            Some(Dropped { family, table, chain, .. }) => {
                let words = [family, table.as_str(), chain.as_str()].map(quoted).join(" ");
                format!("sudo nft -a list chain {words}")
            }
            None => show(freed.and_then(|it| it.1), (target.ip, last)),
        };
        Some(self.found(fault, evidence).show(show))
    }
}

impl Target {
    fn role(&self) -> String {
        let Target { ip, is_gateway } = self;
        match is_gateway {
            true => format!("a packet to {ip}, the gateway,"),
            false => format!("a packet to {ip}, the host's gateway,"),
        }
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// What the kernel's reason means (include/net/dropreason-core.h).
fn by_kernel(function: &str, reason: Option<&str>) -> String {
    let meaning = match reason.unwrap_or_default() {
        "NETFILTER_DROP" => "a rule of iptables-legacy, of a table netdev, or of the container",
        "IP_RPFILTER" => "the check of source addresses, rp_filter",
        "IP_INNOROUTES" | "IP_OUTNOROUTES" => "routing, which has no route",
        "IP_INADDRERRORS" => "routing: no route, or forwarding is off",
        "IP_INVALID_SOURCE" | "IP_LOCAL_SOURCE" => "the check of source addresses",
        "NEIGH_FAILED" => "the wait for a neighbour that does not answer",
        "PKT_TOO_BIG" => "a link with a smaller MTU",
        "QDISC_DROP" => "a queueing discipline",
        "TC_INGRESS" | "TC_EGRESS" => "a filter of tc",
        "XDP" => "a program of XDP",
        "BRIDGE_INGRESS_STP_STATE" => "a port of the bridge that does not forward",
        "OTHERHOST" => "a host with another hardware address",
        "SOCKET_FILTER" => "the filter of a socket",
        _ => "the kernel",
    };
    let reason = reason.map(|reason| format!(", {reason}")).unwrap_or_default();
    format!("{meaning} ({function}{reason})")
}

/// The command that shows the cause.
fn show(reason: Option<&str>, (to, link): (IpAddr, &str)) -> String {
    let link = quoted(link);
    match reason.unwrap_or_default() {
        "NETFILTER_DROP" => "sudo nft list ruleset; sudo iptables-legacy-save -c".to_owned(),
        "IP_RPFILTER" => {
            format!("sysctl net.ipv4.conf.all.rp_filter net/ipv4/conf/{link}/rp_filter")
        }
        "NEIGH_FAILED" => "ip neigh".to_owned(),
        "TC_INGRESS" => format!("tc filter show dev {link} ingress"),
        "QDISC_DROP" | "TC_EGRESS" => format!("tc -s qdisc show dev {link}"),
        "BRIDGE_INGRESS_STP_STATE" => format!("bridge -d link show dev {link}"),
        _ => format!("ip route get {to}"),
    }
}
