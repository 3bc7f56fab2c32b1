//! What the kernel says about a probe of [`super::path`]: the links that saw it, the rule or the function
//! that dropped it, and what the function means.

use std::net::IpAddr;
use std::ops::Range;
use std::process;

use nix::libc::{ETH_P_IP, ETH_P_IPV6};

use super::finding::quoted;
use super::node::Reader;
use crate::error::Result;
use crate::family::Family;
use crate::net::nft::trace::{Dropped, Step, Trace};
use crate::net::packet_trace::{Event, PacketTrace};
use crate::net::request::Answer;
use crate::sys::signals::Uninterrupted;

/// The length of a probe, IP header included, by which the traces select it: each run has its own.
const LENGTHS: Range<u32> = 731..1229;
/// The first port of probes, above those that the kernel gives to clients.
const PORT: u16 = 61_000;
const PORTS: u32 = 4096;

/// Follows the packets of this process, on the whole machine.
pub struct Follower {
    /// The length of its probes, IP header included.
    pub length: u32,
    /// The port that they are sent from.
    pub port: u16,
    /// None without tracefs.
    pub packets: Option<PacketTrace>,
    /// None without nf_tables.
    pub rules: Option<Trace>,
    /// Signals take effect after the traces are removed.
    whole: Option<Uninterrupted>,
}

/// What has become of a probe.
pub struct Passage {
    /// The answer.
    pub answer: Result<Option<Answer>>,
    packets: Vec<Packet>,
    /// What nf_tables' trace has of it.
    pub steps: Vec<Step>,
}

/// A packet on its way.
#[derive(Default)]
pub struct Packet {
    /// The links that have seen it.
    pub links: Vec<String>,
    /// The function that has dropped it, and the reason.
    pub end: Option<(String, Option<String>)>,
}

impl Follower {
    /// Begins both traces, as far as the kernel has them.
    pub fn begin(reader: &mut Reader<'_>) -> Follower {
        let whole = Uninterrupted::begin();
        let port = PORT + (process::id() % PORTS) as u16;
        let packets = reader.keep(PacketTrace::begin(LENGTHS));
        let length = packets.as_ref().map_or(LENGTHS.start, PacketTrace::length);
        let rules = reader.keep(Trace::begin(length, port));
        Follower { length, port, packets, rules, whole }
    }

    /// Whether a signal asks for the end.
    pub fn is_interrupted(&self) -> bool {
        self.whole.as_ref().is_some_and(Uninterrupted::is_pending)
    }

    /// What the traces have of the last probe.
    pub fn passage(&self, answer: Result<Option<Answer>>, family: Family) -> Result<Passage> {
        let seen = self.packets.as_ref().map_or(Ok(vec![]), PacketTrace::events)?;
        let steps = self.rules.as_ref().map_or(Ok(vec![]), Trace::steps)?;
        let passage = Passage { answer, packets: packets(seen, family), steps };
        let is_refused = matches!(passage.answer, Ok(Some(Answer::Refused)));
        // A rule refuses as a host does where no socket is bound.
        Ok(match passage.rule().is_some() && is_refused {
            true => Passage { answer: Ok(None), ..passage },
            false => passage,
        })
    }
}

/// The packets of a trace. The kernel uses the name of one that has ended again.
fn packets(seen: Vec<(String, Event)>, family: Family) -> Vec<Packet> {
    let other = if family == Family::V4 { ETH_P_IPV6 } else { ETH_P_IP } as u32;
    let mut packets: Vec<(String, Packet)> = vec![];
    for (name, event) in seen {
        let at = packets.iter().rposition(|(known, it)| *known == name && it.end.is_none());
        let at = at.unwrap_or_else(|| {
            packets.push((name, Packet::default()));
            packets.len() - 1
        });
        let packet = &mut packets[at].1;
        match event {
            Event::Seen { link } if packet.links.last() != Some(&link) => packet.links.push(link),
            Event::Seen { .. } => (),
            // It has arrived: the kernel itself answers pings and connections.
            Event::Freed { function, reason, .. }
                if reason.as_deref() == Some("NO_SOCKET")
                    || ["icmp", "tcp_v"].iter().any(|it| function.starts_with(it)) => {}
            // A packet of another family has got the name meanwhile.
            Event::Freed { protocol: Some(protocol), .. } if protocol == other => {}
            Event::Freed { function, reason, .. } => packet.end = Some((function, reason)),
        }
    }
    packets.into_iter().map(|(_, packet)| packet).collect()
}

impl Passage {
    /// The dropped packet with the links that have seen it: the probe, or the answer to it after the links
    /// of the probe; else the last probe. An answer begins where a link saw the probe last, or is dropped
    /// because it comes in elsewhere. Other packets may have the length as well.
    pub fn packet(&self, start: &str) -> Packet {
        let (own, others): (Vec<&Packet>, Vec<&Packet>) =
            self.packets.iter().partition(|it| it.links.first().is_some_and(|link| link == start));
        if let Some(Packet { links, end }) = own.iter().find(|it| it.end.is_some()) {
            return Packet { links: links.clone(), end: end.clone() };
        }
        let Some(last) = own.last() else { return Packet::default() };
        let is_by_source = |it: &Packet| {
            let end =
                it.end.as_ref().map(|(function, reason)| (function.as_str(), reason.as_deref()));
            end.is_some_and(|(function, reason)| Why::of(function, reason) == Why::Source)
        };
        let is_answer = |it: &&&Packet| {
            it.end.is_some() && it.links.first() == last.links.last() || is_by_source(it)
        };
        let answer = others.iter().find(is_answer);
        let answered = answer.into_iter().flat_map(|it| &it.links);
        let mut links: Vec<&String> = last.links.iter().chain(answered).collect();
        links.dedup();
        let end = answer.and_then(|it| it.end.clone());
        Packet { links: links.into_iter().cloned().collect(), end }
    }

    /// Whether it has left the host for this destination.
    pub fn has_left(&self, ip: IpAddr) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Left { to, .. } if *to == ip))
    }

    /// The rule or policy that has dropped it.
    pub fn rule(&self) -> Option<&Dropped> {
        self.steps.iter().find_map(|step| match step {
            Step::Dropped(rule) => Some(rule),
            Step::Left { .. } => None,
        })
    }
}

/// Why the kernel has freed a packet: by its reason (include/net/dropreason-core.h), or by the
/// function where it has none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// A rule of a packet filter.
    Filter,
    /// The check of source addresses.
    Source,
    /// Routing.
    Routing,
    /// A neighbour that does not answer.
    Neighbour,
    /// The MTU of a link.
    Length,
    /// A queueing discipline.
    Queue,
    /// A filter of tc, or XDP.
    Traffic,
    /// A port of a bridge.
    Port,
    /// A host with another hardware address.
    Address,
    /// Anything else.
    Other,
}

impl Why {
    /// By function and reason.
    pub fn of(function: &str, reason: Option<&str>) -> Why {
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

    /// What has freed it.
    pub fn text(self, is_inside: bool) -> &'static str {
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
    pub fn show(self, to: IpAddr, link: &str) -> String {
        let link = quoted(link);
        match self {
            Why::Filter => "sudo nft list ruleset; sudo iptables-legacy-save -c".to_owned(),
            Why::Source => {
                format!("sysctl net/ipv4/conf/all/rp_filter net/ipv4/conf/{link}/rp_filter")
            }
            Why::Neighbour | Why::Address => "ip neigh".to_owned(),
            Why::Queue => format!("tc -s qdisc show dev {link}"),
            Why::Traffic => {
                format!("tc -s filter show dev {link} ingress; tc -s filter show dev {link} egress")
            }
            Why::Port => format!("bridge -d link show dev {link}"),
            Why::Length | Why::Routing | Why::Other => format!("ip route get {to}"),
        }
    }
}
