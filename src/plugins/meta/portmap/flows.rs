//! Flows of UDP, which the kernel translates as it did their first packet. They have no end, so
//! portmap deletes those of a port when it opens the port and when it closes it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::errno::Errno;

use super::mapping::{Forward, Protocol, Released};
use crate::error::{ErrorList, Result, warn};
use crate::family::Family;
use crate::net::conntrack::{Conntrack, Flow};
use crate::plugin::{Context, Handles};

/// Deletes UDP flows to a port of the host that began before the port led here. They would never
/// get here: the kernel does not evaluate the rules for them again.
pub fn forget_to_others(cx: &Context<'_>, forwards: &[Forward]) {
    let of_udp = |forward: &&Forward| forward.protocol == Protocol::Udp;
    let udp: Vec<&Forward> = forwards.iter().filter(of_udp).collect();
    let ports: Vec<(IpAddr, u16)> =
        udp.iter().map(|forward| (forward.to.addr(), forward.host_port)).collect();
    if ports.is_empty() {
        return;
    }
    let is_stale = |flow: &Flow| {
        udp.iter().any(|forward| leads_elsewhere(flow, forward)) && is_own(cx, flow.destination)
    };
    if let Err(error) = Conntrack::open().and_then(|conntrack| forget(&conntrack, &ports, is_stale))
    {
        warn(error); // the ports are open nevertheless
    }
}

/// Whether the host has the address, as far as the kernel answers.
fn is_own(cx: &Context<'_>, ip: IpAddr) -> bool {
    cx.host().and_then(|host| host.is_local(ip)).unwrap_or(false)
}

/// Whether a flow to the forward's port is answered by another address than the container's.
fn leads_elsewhere(flow: &Flow, forward: &Forward) -> bool {
    flow.port == forward.host_port
        && flow.answering != forward.to.addr()
        && forward.answers_at(flow.destination)
}

/// Deletes UDP flows to a container that is gone: the kernel would go on sending their packets
/// there, and not to the next container that publishes the port.
///
/// The kernel walks its whole table for that, so in a chain a thread waits for it. That thread's
/// socket is closed at the end of the chain: close(2) holds nf_tables' mutex until the kernel has
/// freed deleted rules, and a deletion of a link waits for that mutex.
pub fn forget_released(handles: &Handles, mut released: Vec<Released>) {
    released.retain(|gone| gone.protocol == Protocol::Udp);
    let led: Vec<(IpAddr, u16)> = released.iter().map(|gone| (gone.to, gone.host_port)).collect();
    if led.is_empty() {
        return;
    }
    handles.postponed().meanwhile(move || {
        let conntrack = Conntrack::open().map_err(warn).ok()?;
        match forget_led(&conntrack, &led) {
            // Flows in a flowtable are deleted by bridge and ptp, after the container's link.
            Err(error) if !error.is_errno(Errno::EBUSY) => warn(error),
            _ => (),
        }
        Some(conntrack)
    });
}

/// Up to this number of ports, portmap sends one request for each to delete its flows. With 262144
/// buckets the kernel took up to 0.3 ms for such a request, and 11 ms for a dump.
const ONE_BY_ONE: usize = 16;

/// Deletes the UDP flows to these ports that led to these addresses.
fn forget_led(conntrack: &Conntrack, led: &[(IpAddr, u16)]) -> Result<()> {
    let mut left = vec![];
    for (ip, port) in led {
        if led.len() > ONE_BY_ONE || !is_forgotten(conntrack, *ip, *port)? {
            left.push((*ip, *port));
        }
    }
    forget(conntrack, &left, |flow| left.contains(&(flow.answering, flow.port)))
}

fn is_forgotten(conntrack: &Conntrack, led_to: IpAddr, port: u16) -> Result<bool> {
    match led_to {
        IpAddr::V4(ip) => conntrack.forget_udp_answered_by(ip, port),
        IpAddr::V6(_) => Ok(false),
    }
}

/// Deletes the stale ones among the UDP flows to these ports, each of which led to an address.
fn forget(
    conntrack: &Conntrack,
    ports: &[(IpAddr, u16)],
    is_stale: impl Fn(&Flow) -> bool,
) -> Result<()> {
    let mut errors = ErrorList::default();
    for family in Family::ALL {
        let ports = ports_of(family, ports);
        if !ports.is_empty() {
            errors.push(conntrack.forget_udp(family, &ports, &is_stale));
        }
    }
    errors.finish()
}

fn ports_of(family: Family, ports: &[(IpAddr, u16)]) -> BTreeSet<u16> {
    let of_family = ports.iter().filter(|(to, _)| Family::of(*to) == family);
    of_family.map(|(_, port)| *port).collect()
}
