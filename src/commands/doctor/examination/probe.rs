//! D53x, with `--probe`: what answers when the container sends packets to its gateway.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, text_of};
use super::node::Node;
use super::wiring::{Wiring, attach_again};
use crate::error::{Code, Error, Result};
use crate::net::echo;
use crate::net::netlink::Link;
use crate::net::netns::Netns;
use crate::net::packet_socket::ArpSocket;

const SILENT: Fault = Fault::error("D530", "the gateway does not answer ARP");
const NO_ECHO: Fault = Fault::warning("D531", "the gateway does not answer a ping");
const NOT_SENT: Fault = Fault::error("D532", "the container cannot send packets");

/// The examination.
pub const EXAMINATION: Examination =
    Examination { faults: || vec![&SILENT, &NO_ECHO, &NOT_SENT], examine };

/// How long a gateway may take: the first packets of a new link are lost.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long one ARP request waits for its answer.
const INTERVAL: Duration = Duration::from_millis(200);

fn examine(node: &Node<'_>, findings: &mut Findings) {
    if !node.request.probe {
        return;
    }
    for wiring in Wiring::all(node) {
        let gateways = wiring.attachment.result.iter().flat_map(|result| &result.ips);
        let gateways: Vec<IpAddr> = gateways.filter_map(|ip| ip.gateway).collect();
        let Some(interface) = wiring.interface.filter(|interface| interface.up) else { continue };
        let Some(netns) = wiring.attachment.netns.as_ref() else { continue };
        for gateway in gateways {
            if let Some(finding) = probe(&wiring, netns, interface, gateway) {
                findings.add(finding);
            }
        }
    }
}

fn probe(wiring: &Wiring<'_>, netns: &Netns, link: &Link, gateway: IpAddr) -> Option<Finding> {
    let attachment = wiring.attachment;
    let finding = |fault, evidence| Finding::new(fault, attachment.object(), evidence);
    let answered = match gateway {
        IpAddr::V4(gateway) if link.arp => netns.enter(|| answers_arp(link, gateway)),
        _ => Ok(true), // the ping needs the neighbour as well
    };
    match answered {
        Ok(true) => (),
        Ok(false) => {
            let evidence = format!("{gateway} does not answer ARP on {:?}", link.name);
            return Some(finding(&SILENT, evidence).fix(wiring.within("ip neigh show")));
        }
        Err(error) => {
            let evidence = text_of(&error);
            return Some(finding(&NOT_SENT, evidence).fix(attach_again(attachment)));
        }
    }
    match netns.enter(|| echo::ping(gateway, PATIENCE)) {
        Ok(_) => None,
        Err(error) if error.code == Code::TRY_AGAIN => {
            let evidence = format!("{gateway} does not answer a ping from {:?}", link.name);
            let fix = "accept ICMP from the network in the gateway's input chain";
            Some(finding(&NO_ECHO, evidence).fix(fix))
        }
        Err(error) => Some(finding(&NOT_SENT, text_of(&error)).fix(attach_again(attachment))),
    }
}

/// Whether a host on the link has the address.
fn answers_arp(link: &Link, gateway: Ipv4Addr) -> Result<bool> {
    let socket = ArpSocket::open(link.index)?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        socket.probe(gateway, &link.mac())?;
        let timeout = PollTimeout::try_from(INTERVAL).unwrap_or(PollTimeout::MAX);
        let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, timeout).map_err(|e| Error::kernel("wait for ARP", e))?;
        if socket.receive()?.is_some_and(|claim| claim.address == gateway) {
            return Ok(true);
        }
    }
    Ok(false)
}
