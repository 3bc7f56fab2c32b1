//! D40x: rules that drop what a container sends, or what it is answered.

use std::net::IpAddr;

use ipnet::IpNet;

use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, Object};
use super::firewalld;
use super::node::{Node, Reader};
use super::wiring::Wiring;
use crate::cni::result::IpConfig;
use crate::error::Result;
use crate::family::Family;
use crate::net::netlink::Link;
use crate::net::nft::drops::{Culprit, Hook, Packet, Passage, Port, Ruleset};

const POLICY: Fault = Fault::error("D401", "a chain's policy drops forwarded packets");
const FORWARD: Fault = Fault::error("D402", "a rule drops forwarded packets");
const PREROUTING: Fault = Fault::error("D403", "packets are dropped before routing");
const POSTROUTING: Fault = Fault::error("D404", "packets are dropped after routing");
const BRIDGED: Fault = Fault::error("D405", "a rule for bridges drops the container's packets");
const INPUT: Fault = Fault::warning("D406", "a rule drops the container's packets to the host");
const OUTPUT: Fault = Fault::warning("D407", "the host's packets to the container are dropped");
const ZONE: Fault = Fault::error("D408", "a zone of firewalld drops forwarded packets");

/// The examination.
pub const EXAMINATION: Examination = Examination {
    faults: || vec![&POLICY, &FORWARD, &PREROUTING, &POSTROUTING, &BRIDGED, &INPUT, &OUTPUT, &ZONE],
    examine,
};

fn examine(node: &Node<'_>, findings: &mut Findings) {
    let all = Wiring::all(node);
    let all: Vec<Paths<'_>> = all.iter().flat_map(|wiring| Paths::all(node, wiring)).collect();
    if all.is_empty() {
        return;
    }
    let seen = Ruleset::look(|ruleset| seen(ruleset, &all));
    Reader(findings).keep(seen).iter().for_each(|seen| findings.add(seen.finding()));
}

/// What drops packets of these, each once.
fn seen<'a>(ruleset: &Ruleset, all: &'a [Paths<'a>]) -> Result<Vec<Seen<'a>>> {
    let mut seen = vec![];
    for paths in all {
        paths.drops(ruleset)?.into_iter().for_each(|drop| note(&mut seen, drop));
    }
    Ok(seen)
}

/// Whether packets of the attachment to other networks are dropped, or the answers to them.
pub fn drops_forwarded(ruleset: &Ruleset, node: &Node<'_>, wiring: &Wiring<'_>) -> Result<bool> {
    for paths in Paths::all(node, wiring) {
        if paths.through(ruleset)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// One way of packets that a rule or a policy ends.
struct Drop<'a> {
    fault: &'static Fault,
    culprit: Culprit,
    is_sent: bool,
    /// Whether the packet has another source address by then.
    is_translated: bool,
    ip: IpNet,
    wiring: &'a Wiring<'a>,
}

/// A culprit with the attachments that it hits.
struct Seen<'a> {
    first: Drop<'a>,
    others: usize,
}

/// One rule has one finding for each family, whatever it drops.
fn note<'a>(seen: &mut Vec<Seen<'a>>, drop: Drop<'a>) {
    let is_known = |seen: &&mut Seen<'_>| {
        seen.first.culprit == drop.culprit
            && Family::of_net(seen.first.ip) == Family::of_net(drop.ip)
    };
    match seen.iter_mut().find(is_known) {
        None => seen.push(Seen { first: drop, others: 0 }),
        Some(known) if known.first.ip == drop.ip => (), // in the other direction
        Some(known) => known.others += 1,
    }
}

impl Seen<'_> {
    fn finding(&self) -> Finding {
        let Drop { fault, culprit, is_sent, is_translated, ip, wiring } = &self.first;
        let direction = if *is_sent { "from" } else { "to" };
        let mut evidence = format!("{culprit} matches packets {direction} {}", ip.addr());
        if self.others > 0 {
            evidence += &format!(" and of {} more containers", self.others);
        }
        let object = if self.others == 0 {
            wiring.attachment.object()
        } else {
            Object::Network(wiring.network().to_owned())
        };
        match firewalld::zone(culprit) {
            Some(zone) => {
                let evidence = format!("zone {zone:?} of firewalld: {evidence}");
                Finding::new(&ZONE, object, evidence).fix(firewalld::trust(wiring, *ip))
            }
            None if *is_translated => Finding::new(fault, object, evidence).fix(list(culprit)),
            None => Finding::new(fault, object, evidence).fix(accept(culprit, *ip)),
        }
    }
}

/// The command that accepts the network's packets before the culprit. Names of the container's are
/// quoted, and those that nft could not read back are left to the reader.
fn accept(culprit: &Culprit, ip: IpNet) -> String {
    let Culprit { family, table, base, .. } = culprit;
    let net = ip.trunc();
    if culprit.is_legacy {
        let rule = |option| {
            format!("sudo {family}tables-legacy -t {table} -I {base} {option} {net} -j ACCEPT")
        };
        return format!("{}; {}", rule("-s"), rule("-d"));
    }
    if !is_identifier(table) || !is_identifier(base) {
        return list(culprit);
    }
    let header = if ip.addr().is_ipv4() { "ip" } else { "ip6" };
    let rule = |field| format!("insert rule {family} {table} {base} {header} {field} {net} accept");
    format!("sudo nft '{}; {}'", rule("saddr"), rule("daddr"))
}

/// The command that shows the rules.
fn list(culprit: &Culprit) -> String {
    let Culprit { family, table, chain, is_legacy, .. } = culprit;
    match is_legacy {
        true => format!("sudo {family}tables-legacy-save -t {table}"),
        false if is_identifier(table) && is_identifier(chain) => {
            format!("sudo nft -a list chain {family} {table} {chain}")
        }
        false => "sudo nft -a list ruleset".to_owned(),
    }
}

/// Whether nft reads the name as it is.
fn is_identifier(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.bytes().all(is_plain)
}

/// The ways of the packets of one address to other networks, and back.
struct Paths<'a> {
    wiring: &'a Wiring<'a>,
    ip: IpNet,
    gateway: Option<IpAddr>,
    /// The link that routes them.
    router: &'a Link,
    uplink: Option<&'a Link>,
}

impl<'a> Paths<'a> {
    /// Those of the addresses that the host is the gateway of.
    fn all(node: &'a Node<'_>, wiring: &'a Wiring<'a>) -> Vec<Paths<'a>> {
        let ips = wiring.attachment.result.iter().flat_map(|result| &result.ips);
        let of_address = |ip: &'a IpConfig| {
            let family = Family::of_net(ip.address);
            let router = wiring.router(node, family)?;
            let uplink = node.uplink(family);
            Some(Paths { wiring, ip: ip.address, gateway: ip.gateway, router, uplink })
        };
        ips.filter_map(of_address).collect()
    }

    fn drops(&self, ruleset: &Ruleset) -> Result<Vec<Drop<'a>>> {
        let mut drops: Vec<Drop<'a>> = self.through(ruleset)?.into_iter().collect();
        drops.extend(self.received_by_host(ruleset)?);
        drops.extend(self.sent_by_host(ruleset)?);
        Ok(drops)
    }

    /// The first culprit on the way to another network and back.
    fn through(&self, ruleset: &Ruleset) -> Result<Option<Drop<'a>>> {
        let mut sent = Passage::of(ruleset, self.on_bridge(true)); // a bridge sees it first
        match self.forwarded(&mut sent)? {
            Some(drop) => Ok(Some(drop)),
            None => self.answered(&sent),
        }
    }

    /// The packet to another network on its way through the host.
    fn forwarded(&self, sent: &mut Passage<'_>) -> Result<Option<Drop<'a>>> {
        let hooks = [Hook::Prerouting, Hook::Input];
        if let Some(culprit) = self.at_bridge(sent, hooks)? {
            return Ok(Some(self.drop(&BRIDGED, culprit, true)));
        }
        self.routed(sent, &self.packet(true))
    }

    /// The answer to a packet that has passed.
    fn answered(&self, sent: &Passage<'_>) -> Result<Option<Drop<'a>>> {
        let packet = self.packet(false);
        let mut answer = sent.answer(packet.clone());
        if let Some(drop) = self.routed(&mut answer, &packet)? {
            return Ok(Some(drop));
        }
        answer.take(self.on_bridge(false));
        let hooks = [Hook::Output, Hook::Postrouting];
        let culprit = self.at_bridge(&mut answer, hooks)?;
        Ok(culprit.map(|culprit| self.drop(&BRIDGED, culprit, false)))
    }

    /// What drops the packet in the tables of bridges, if the container is on one.
    fn at_bridge(&self, passage: &mut Passage<'_>, hooks: [Hook; 2]) -> Result<Option<Culprit>> {
        if self.wiring.bridge.is_none() {
            return Ok(None);
        }
        for hook in hooks {
            if let Some(culprit) = passage.at_bridge(hook)?.culprit() {
                return Ok(Some(culprit));
            }
        }
        Ok(None)
    }

    /// The first culprit at the hooks of a forwarded packet.
    fn routed(&self, passage: &mut Passage<'_>, packet: &Packet) -> Result<Option<Drop<'a>>> {
        let before = Packet { to: None, ..packet.clone() };
        let after = Packet { from: None, ..packet.clone() };
        for (hook, packet) in
            [(Hook::Prerouting, &before), (Hook::Forward, packet), (Hook::Postrouting, &after)]
        {
            passage.take(packet.clone());
            if let Some(culprit) = passage.at(hook)?.culprit() {
                let fault = match hook {
                    Hook::Prerouting => &PREROUTING,
                    Hook::Postrouting => &POSTROUTING,
                    _ if culprit.handle.is_none() => &POLICY,
                    _ => &FORWARD,
                };
                let is_translated = packet.is_sent && passage.is_translated();
                let drop = self.drop(fault, culprit, packet.is_sent);
                return Ok(Some(Drop { is_translated, ..drop }));
            }
        }
        Ok(None)
    }

    /// What drops the packet to the gateway itself. A host that accepts nothing for itself but ssh
    /// is healthy, unless a rule names the container.
    fn received_by_host(&self, ruleset: &Ruleset) -> Result<Option<Drop<'a>>> {
        let packet = Packet { to: None, peer: self.gateway, is_to_host: true, ..self.packet(true) };
        let mut passage = Passage::of(ruleset, packet);
        if passage.at(Hook::Prerouting)?.culprit().is_some() {
            return Ok(None);
        }
        let culprit = passage.at(Hook::Input)?.culprit().filter(|culprit| culprit.is_specific);
        Ok(culprit.map(|culprit| self.drop(&INPUT, culprit, true)))
    }

    /// What drops the packet of the gateway itself.
    fn sent_by_host(&self, ruleset: &Ruleset) -> Result<Option<Drop<'a>>> {
        let packet =
            Packet { from: None, peer: self.gateway, is_reply: false, ..self.packet(false) };
        let culprit = Passage::of(ruleset, packet).at(Hook::Output)?.culprit();
        Ok(culprit.map(|culprit| self.drop(&OUTPUT, culprit, false)))
    }

    fn drop(&self, fault: &'static Fault, culprit: Culprit, is_sent: bool) -> Drop<'a> {
        let (ip, wiring) = (self.ip, self.wiring);
        Drop { fault, culprit, is_sent, is_translated: false, ip, wiring }
    }

    /// A packet to the outside, or the answer to one.
    fn packet(&self, is_sent: bool) -> Packet {
        let (inside, outside) = (Some(port(self.router)), self.uplink.map(port));
        let (from, to) = if is_sent { (inside, outside) } else { (outside, inside) };
        Packet {
            container: self.ip.addr(),
            peer: None,
            is_sent,
            is_reply: !is_sent,
            is_to_host: false,
            mac: None,
            from,
            to,
        }
    }

    /// The packet as a bridge sees it, at the port of the container. A container can write its
    /// hardware address, and that another one than the recorded one is dropped is no fault.
    fn on_bridge(&self, is_sent: bool) -> Packet {
        let attachment = self.wiring.attachment;
        let interface = self.wiring.interface.filter(|it| !attachment.has_another_mac(it));
        let mac = interface.filter(|_| is_sent).map(|interface| interface.mac.clone());
        let below = self.wiring.below.map(port);
        let (from, to) = if is_sent { (below, None) } else { (None, below) };
        Packet { mac, from, to, ..self.packet(is_sent) }
    }
}

/// The link as rules name it.
pub fn port(link: &Link) -> Port {
    Port { index: link.index, name: link.name.clone() }
}
