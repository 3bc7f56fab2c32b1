//! D534: another host that answers for an address of a container.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::faults::DUPLICATE_ADDRESS;
use super::finding::Findings;
use super::neighbours::{self, Inquiry};
use super::node::{Node, Reader};
use super::wiring::{Wiring, attach_again};
use crate::error::Result;
use crate::net::netlink::Link;
use crate::sys::process;

/// How many addresses of an interface are asked about: each socket receives the packets of all others,
/// and their number is the container's choice. Those of the record are the first.
const MOST_ASKED: usize = 64;
/// For as many probes as RFC 5227 sends.
const PATIENCE: Duration = Duration::from_millis(600);

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    if !node.request.sends_packets() {
        return;
    }
    process::raise_descriptors();
    let all = Wiring::all(node);
    // An attachment with an error is not asked about: what is wrong is known.
    let is_sound = |it: &&Wiring<'_>| !findings.has_error(&it.attachment.object());
    let sound: Vec<&Wiring<'_>> = all.iter().filter(is_sound).collect();
    let (mut whose, mut inquiries) = (vec![], vec![]);
    for wiring in sound {
        let Some(link) = wiring.interface.filter(|link| link.up && link.arp) else { continue };
        let own = Reader(findings).keep_of(wiring.attachment.object(), open(wiring, link));
        whose.extend(own.iter().map(|_| (wiring, link)));
        inquiries.extend(own);
    }
    Reader(findings).keep(neighbours::ask(&mut inquiries, PATIENCE, &node.sent));
    for ((wiring, link), Inquiry { address, answer, .. }) in whose.into_iter().zip(inquiries) {
        let Some(mac) = answer else { continue };
        let evidence = format!("{mac} answers for {address} of {:?}", link.name);
        let finding = wiring.found(&DUPLICATE_ADDRESS, evidence);
        findings.add(finding.fix(attach_again(wiring.attachment)));
    }
}

/// An inquiry about each address of the interface that the kernel uses.
fn open(wiring: &Wiring<'_>, link: &Link) -> Result<Vec<Inquiry>> {
    let Some(netns) = wiring.attachment.open()? else { return Ok(vec![]) };
    let recorded = wiring.attachment.result.iter().flat_map(|result| &result.ips);
    let recorded: BTreeSet<IpAddr> = recorded.map(|ip| ip.address.addr()).collect();
    let mut own: Vec<IpAddr> = wiring.own_addresses(link).map(|it| it.net.addr()).collect();
    own.sort_by_key(|ip| !recorded.contains(ip));
    own.truncate(MOST_ASKED);
    let links = &wiring.inside.links;
    netns.enter(|| own.into_iter().map(|ip| Inquiry::open(links, link, ip, None)).collect())
}
