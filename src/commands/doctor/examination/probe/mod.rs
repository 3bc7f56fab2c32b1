//! D53x: what answers when a container sends packets to its gateways, and whether another host answers
//! for its own addresses.
//!
//! [`question`] is one question with its socket, opened inside the namespace; [`round`] asks many at
//! once.

mod question;
mod round;

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::errno::Errno;

use self::question::{Interface, Kind, Question};
use super::faults::{DUPLICATE_ADDRESS, GATEWAY_SILENT, NO_ECHO, NOT_SENT, WRONG_MAC};
use super::finding::{Finding, Findings, quoted, text_of};
use super::node::{Node, Reader};
use super::wiring::{Wiring, attach_again};
use crate::error::{Aspect, Error, Result};
use crate::family::Family;
use crate::net::mac::MacAddr;
use crate::net::netlink::{FoundRoute, Link};
use crate::net::sysctl::Sysctl;
use crate::sys::limits;

/// How many addresses of an interface, and how many gateways, are asked about: each socket receives
/// the packets of all others, and their number is the container's choice. Those of the record are
/// the first.
const MOST_ASKED: usize = 64;

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    if !node.request.sends_packets() {
        return;
    }
    limits::raise_descriptors();
    let all = Wiring::all(node);
    // Skip attachments with an error: it may be the cause of a missing answer.
    let sound = all.iter().filter(|it| !findings.has_error(&it.attachment.object()));
    let mut subjects: Vec<Subject<'_>> = sound.filter_map(|it| Subject::of(node, it)).collect();
    for subject in &mut subjects {
        if let Err(error) = subject.open() {
            findings.add(subject.not_sent(&error));
        }
    }
    let mut questions: Vec<&mut Question> =
        subjects.iter_mut().flat_map(|subject| &mut subject.questions).collect();
    Reader(findings).keep(round::ask(&mut questions, &node.sent));
    subjects.iter().for_each(|subject| subject.judge(findings));
}

/// A container that is probed for.
struct Subject<'a> {
    node: &'a Node<'a>,
    wiring: &'a Wiring<'a>,
    link: &'a Link,
    gateways: Vec<IpAddr>,
    own: Vec<IpAddr>,
    questions: Vec<Question>,
}

impl<'a> Subject<'a> {
    /// None if its interface is missing or down, which is a finding without packets, or is not the
    /// recorded one.
    fn of(node: &'a Node<'a>, wiring: &'a Wiring<'a>) -> Option<Subject<'a>> {
        let link = wiring.interface.filter(|link| link.up)?;
        let (gateways, own) = (gateways(wiring, link), own(wiring, interface(wiring, link)));
        Some(Subject { node, wiring, link, gateways, own, questions: vec![] })
    }

    /// Opens the sockets inside the namespace.
    fn open(&mut self) -> Result<()> {
        let Some(netns) = self.wiring.attachment.open()? else { return Ok(()) };
        let interface = interface(self.wiring, self.link);
        let (gateways, own) = (&self.gateways, &self.own);
        self.questions = netns.enter(|| questions(interface, gateways, own))?;
        Ok(())
    }

    fn judge(&self, findings: &mut Findings) {
        // A rule of the container that refuses pings is its own.
        let is_fault = |error: &&Error| !error.is_errno(Errno::EPERM);
        let mut errors = self.questions.iter().filter_map(|it| it.error.as_ref());
        if let Some(error) = errors.find(is_fault) {
            findings.add(self.not_sent(error));
        }
        for gateway in &self.gateways {
            let is_reported =
                findings.explain(&self.wiring.attachment.object(), &Aspect::Gateway(*gateway));
            let found = self.judge_gateway(*gateway).filter(|_| !is_reported);
            let is_known = |it: &Finding| {
                findings.0.iter().any(|known| !it.fix.is_empty() && known.fix == it.fix)
            };
            let found: Vec<Finding> = found.into_iter().filter(|it| !is_known(it)).collect();
            findings.0.extend(found);
        }
        for question in self.of_kind(Kind::Duplicate) {
            findings.0.extend(question.answers.first().map(|mac| self.duplicate(question, mac)));
        }
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Question> {
        self.questions.iter().filter(move |question| question.kind == kind)
    }

    /// A gateway that answers a ping is reached, whatever else it does not answer.
    fn judge_gateway(&self, gateway: IpAddr) -> Option<Finding> {
        let about = |kind| self.of_kind(kind).find(|it| it.address == gateway);
        let ping = about(Kind::Ping).filter(|ping| ping.error.is_none())?;
        if !ping.answers.is_empty() {
            return None;
        }
        match about(Kind::Gateway).map(|question| question.answers.first()) {
            Some(None) => Some(self.silent(gateway)),
            Some(Some(mac)) => {
                Some(self.wrong_mac(gateway, mac).unwrap_or_else(|| self.no_echo(gateway)))
            }
            None => Some(self.no_echo(gateway)),
        }
    }

    fn not_sent(&self, error: &Error) -> Finding {
        self.wiring.found(&NOT_SENT, text_of(error)).fix(attach_again(self.wiring.attachment))
    }

    /// The finding that no host answers for the gateway's address, or the setting that keeps this one silent.
    fn silent(&self, gateway: IpAddr) -> Finding {
        let what = if gateway.is_ipv4() { "ARP" } else { "neighbour discovery" };
        let evidence = format!("{gateway} does not answer {what} on {:?}", self.link.name);
        // Another link with the gateway's address is not the attachment's to change.
        let is_own = |link: &&Link| {
            let own = [self.wiring.bridge, self.wiring.below].into_iter().flatten();
            own.map(|it| it.index).any(|index| index == link.index)
        };
        let holder = self.wiring.router(self.node, Family::of(gateway)).filter(is_own);
        let found = |more: &str| {
            let finding = self.wiring.found(&GATEWAY_SILENT, evidence.clone() + more);
            finding.explaining([Aspect::Gateway(gateway)])
        };
        if let Some(Link { name, .. }) = holder.filter(|link| !link.arp) {
            let fix = format!("sudo ip link set {} arp on", quoted(name));
            return found(&format!(": {name:?} does not use ARP")).fix(fix);
        }
        let of_link = holder.map(|link| link.name.as_str());
        for of in of_link.into_iter().chain(["all"]).filter(|_| gateway.is_ipv4()) {
            let setting = Sysctl::ipv4_conf(of, "arp_ignore");
            let Some(value) = setting.read().ok().filter(|value| value.as_str() > "2") else {
                continue;
            };
            let found = found(&format!(": sysctl {setting} is {value}"));
            return match of {
                "all" => found.show(format!("sysctl {setting}")),
                _ => found.fix(format!("sudo sysctl -w {setting}=0")),
            };
        }
        found("").show(self.wiring.within("ip neigh show"))
    }

    fn no_echo(&self, gateway: IpAddr) -> Finding {
        let evidence = format!("{gateway} does not answer a ping from {:?}", self.link.name);
        let finding = self.wiring.found(&NO_ECHO, evidence).explaining([Aspect::Gateway(gateway)]);
        finding.show(self.wiring.within("ip neigh show"))
    }

    /// The finding that the container sends to another hardware address than that which has
    /// answered for the gateway. What cannot be read is left out: the ping is a finding then.
    fn wrong_mac(&self, gateway: IpAddr, mac: &MacAddr) -> Option<Finding> {
        let netns = self.wiring.attachment.open().ok()??;
        let neighbours = netns.netlink().and_then(|netlink| netlink.neighbours()).ok()?;
        let mut of_link = neighbours.into_iter().filter(|it| it.link == self.link.index);
        let known = of_link.find(|it| it.address == gateway && it.mac != *mac)?;
        let lasting = if known.is_permanent { "permanently " } else { "" };
        let evidence = format!(
            "{gateway} answers from {mac}, and the container {lasting}sends to {}",
            known.mac
        );
        let command = format!("ip neigh del {gateway} dev {}", quoted(&self.link.name));
        Some(self.wiring.found(&WRONG_MAC, evidence).fix(self.wiring.within(&command)))
    }

    fn duplicate(&self, question: &Question, mac: &MacAddr) -> Finding {
        let evidence = format!("{mac} answers for {} of {:?}", question.address, self.link.name);
        self.wiring.found(&DUPLICATE_ADDRESS, evidence).fix(attach_again(self.wiring.attachment))
    }
}

fn interface<'a>(wiring: &Wiring<'a>, link: &'a Link) -> Interface<'a> {
    Interface { link, addresses: &wiring.inside.addresses }
}

/// The gateways that the record uses, and those of the default routes by the interface: a router may
/// have advertised one.
fn gateways(wiring: &Wiring<'_>, link: &Link) -> Vec<IpAddr> {
    let recorded = wiring.used_gateways();
    let is_default = |route: &&FoundRoute| {
        Family::ALL.iter().any(|of| route.is_default(*of)) && route.link == Some(link.index)
    };
    let routes = wiring.inside.routes.iter().filter(is_default);
    let used: BTreeSet<IpAddr> = routes.flat_map(|it| &it.gateways).copied().collect();
    recorded.iter().chain(used.difference(&recorded)).copied().take(MOST_ASKED).collect()
}

/// The interface's own addresses.
fn own(wiring: &Wiring<'_>, interface: Interface<'_>) -> Vec<IpAddr> {
    let recorded = wiring.attachment.result.iter().flat_map(|result| &result.ips);
    let recorded: BTreeSet<IpAddr> = recorded.map(|ip| ip.address.addr()).collect();
    let mut own: Vec<IpAddr> = interface.own().map(|it| it.net.addr()).collect();
    own.sort_by_key(|ip| !recorded.contains(ip));
    own.truncate(MOST_ASKED);
    own
}

/// The questions of one container, in whose namespace this thread is.
fn questions(
    interface: Interface<'_>,
    gateways: &[IpAddr],
    own: &[IpAddr],
) -> Result<Vec<Question>> {
    let mut all = vec![];
    for gateway in gateways {
        all.extend(interface.about_gateway(*gateway)?);
    }
    for own in own {
        all.extend(interface.about_own(*own)?);
    }
    Ok(all)
}
