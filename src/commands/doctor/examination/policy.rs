//! D40x: rules that drop what a container sends, or what it is answered.

use std::net::IpAddr;

use ipnet::IpNet;

use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, Object};
use super::node::{Node, Reader};
use super::wiring::Wiring;
use crate::cni::result::IpConfig;
use crate::error::Result;
use crate::family::Family;
use crate::net::netlink::{Link, Netlink};
use crate::net::nft::drops::{Culprit, Hook, Packet, Port, Ruleset};

const POLICY: Fault = Fault::error("D401", "a chain's policy drops forwarded packets");
const FORWARD: Fault = Fault::error("D402", "a rule drops forwarded packets");
const PREROUTING: Fault = Fault::error("D403", "packets are dropped before routing");
const POSTROUTING: Fault = Fault::error("D404", "packets are dropped after routing");
const BRIDGED: Fault = Fault::error("D405", "a rule for bridges drops the container's packets");
const INPUT: Fault = Fault::warning("D406", "a rule drops the container's packets to the host");
const OUTPUT: Fault = Fault::warning("D407", "the host's packets to the container are dropped");

/// The examination.
pub const EXAMINATION: Examination = Examination {
    faults: || vec![&POLICY, &FORWARD, &PREROUTING, &POSTROUTING, &BRIDGED, &INPUT, &OUTPUT],
    examine,
};

fn examine(node: &Node<'_>, findings: &mut Findings) {
    let all: Vec<Wiring<'_>> =
        Wiring::all(node).into_iter().filter(|wiring| wiring.gateway_link().is_some()).collect();
    if all.is_empty() {
        return;
    }
    let Some(ruleset) = Reader(findings).keep(Ruleset::read()) else { return };
    let uplink = Reader(findings).keep(uplink(node));
    let mut seen: Vec<Seen<'_>> = vec![];
    for wiring in &all {
        let ips = wiring.attachment.result.iter().flat_map(|result| &result.ips);
        for ip in ips {
            let paths = Paths { wiring, ip: ip.address, uplink };
            for drop in Reader(findings).keep(paths.drops(&ruleset)) {
                note(&mut seen, drop);
            }
        }
    }
    seen.iter().for_each(|seen| findings.add(seen.finding()));
}

/// Whether what drops packets between containers of a bridge does nothing else to them: false if
/// nothing does, or if it drops those to the outside as well, which are findings of their own. None
/// without containers on a bridge.
pub fn drops_bridged_alone(node: &Node<'_>, family: Family) -> Result<Option<bool>> {
    let all = Wiring::all(node);
    let of_family = |ip: &&IpConfig| Family::of_net(ip.address) == family;
    let (Some(ruleset), uplink) = (Ruleset::read()?, uplink(node)?) else { return Ok(None) };
    let mut found = None;
    for wiring in all.iter().filter(|wiring| wiring.bridge.is_some()) {
        let ips = wiring.attachment.result.iter().flat_map(|result| &result.ips);
        for ip in ips.filter(of_family) {
            let paths = Paths { wiring, ip: ip.address, uplink };
            let outside = paths.packet(true);
            let bridged = Packet { to: outside.from.clone(), ..outside };
            let drops = ruleset.culprit(Hook::Forward, &bridged)?.is_some();
            let alone = drops && paths.forwarded(&ruleset, true)?.is_none();
            found = Some(found.unwrap_or(false) || alone);
        }
    }
    Ok(found)
}

/// The link of the host's default route.
fn uplink<'n>(node: &'n Node<'_>) -> Result<Option<&'n Link>> {
    Ok(Netlink::open()?.into_default_link()?.and_then(|index| node.link(index)))
}

/// One way of packets that a rule or a policy ends.
struct Drop<'a> {
    fault: &'static Fault,
    culprit: Culprit,
    is_sent: bool,
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
        let Drop { fault, culprit, is_sent, ip, wiring } = &self.first;
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
        Finding::new(fault, object, evidence).fix(accept(culprit, *ip))
    }
}

/// The command that accepts the network's packets before the culprit. Names of the container's are
/// quoted, and those that nft could not read back are left to the reader.
fn accept(culprit: &Culprit, ip: IpNet) -> String {
    let Culprit { family, table, base, .. } = culprit;
    if !is_identifier(table) || !is_identifier(base) {
        return "sudo nft -a list ruleset".to_owned();
    }
    let header = if ip.addr().is_ipv4() { "ip" } else { "ip6" };
    let rule = |field| {
        let net = ip.trunc();
        format!("insert rule {family} {table} {base} {header} {field} {net} accept")
    };
    format!("sudo nft '{}; {}'", rule("saddr"), rule("daddr"))
}

/// Whether nft reads the name as it is.
fn is_identifier(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.bytes().all(is_plain)
}

/// The ways of the packets of one address.
struct Paths<'a> {
    wiring: &'a Wiring<'a>,
    ip: IpNet,
    uplink: Option<&'a Link>,
}

impl<'a> Paths<'a> {
    fn drops(&self, ruleset: &Ruleset) -> Result<Vec<Drop<'a>>> {
        let mut drops = vec![];
        for is_sent in [true, false] {
            drops.extend(self.forwarded(ruleset, is_sent)?);
        }
        let from_bridge = ruleset.culprit_on_bridge(Hook::Prerouting, &self.on_bridge())?;
        drops.extend(from_bridge.map(|culprit| self.drop(&BRIDGED, culprit, true)));
        // A host that accepts nothing for itself but ssh is healthy, unless a rule names the
        // container.
        let input = Packet { to: None, ..self.packet(true) };
        let input = ruleset.culprit(Hook::Input, &input)?.filter(|culprit| culprit.is_specific);
        drops.extend(input.map(|culprit| self.drop(&INPUT, culprit, true)));
        let output = Packet { from: None, is_reply: false, ..self.packet(false) };
        let output = ruleset.culprit(Hook::Output, &output)?;
        drops.extend(output.map(|culprit| self.drop(&OUTPUT, culprit, false)));
        Ok(drops)
    }

    /// The first culprit on the way through the host.
    fn forwarded(&self, ruleset: &Ruleset, is_sent: bool) -> Result<Option<Drop<'a>>> {
        let packet = self.packet(is_sent);
        let before = Packet { to: None, ..packet.clone() };
        for (hook, packet) in
            [(Hook::Prerouting, &before), (Hook::Forward, &packet), (Hook::Postrouting, &packet)]
        {
            if let Some(culprit) = ruleset.culprit(hook, packet)? {
                let fault = match hook {
                    Hook::Prerouting => &PREROUTING,
                    Hook::Postrouting => &POSTROUTING,
                    _ if culprit.handle.is_none() => &POLICY,
                    _ => &FORWARD,
                };
                return Ok(Some(self.drop(fault, culprit, is_sent)));
            }
        }
        Ok(None)
    }

    fn drop(&self, fault: &'static Fault, culprit: Culprit, is_sent: bool) -> Drop<'a> {
        Drop { fault, culprit, is_sent, ip: self.ip, wiring: self.wiring }
    }

    /// A packet to the outside, or the answer to one.
    fn packet(&self, is_sent: bool) -> Packet {
        let inside = self.wiring.gateway_link().map(port);
        let outside = self.uplink.map(port);
        let (from, to) = if is_sent { (inside, outside) } else { (outside, inside) };
        let container: IpAddr = self.ip.addr();
        Packet { container, is_sent, is_reply: !is_sent, mac: None, from, to }
    }

    /// The packet that the container sends, as the bridge sees it first. A container can write its
    /// hardware address, and that another one than the recorded one is dropped is no fault.
    fn on_bridge(&self) -> Packet {
        let attachment = self.wiring.attachment;
        let interface = self.wiring.interface.filter(|it| !attachment.has_another_mac(it));
        let mac = interface.map(|interface| interface.mac.clone());
        Packet { mac, from: self.wiring.below.map(port), to: None, ..self.packet(true) }
    }
}

fn port(link: &Link) -> Port {
    Port { index: link.index, name: link.name.clone() }
}
