//! Flows of UDP, which the kernel translates as it did their first packet. They have no end, so
//! portmap deletes those of a port when it opens the port and when it closes it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use nix::errno::Errno;

use super::mapping::{Forward, Protocol, Released};
use crate::error::{ErrorList, Result, warn};
use crate::family::Family;
use crate::net::conntrack::{Conntrack, End, Flow};
use crate::net::netlink::Netlink;
use crate::plugin::{Context, Handles};

/// The largest number of requests that take less time than a list. With 262144 buckets the kernel
/// took up to 0.3 ms for a request, and 11 ms for a list.
const ONE_BY_ONE: usize = 16;

/// The largest number of own addresses that portmap reads: the kernel sends those of a usual host in
/// its first datagram. ptp adds one for each container.
const MOST_OWN: usize = 32;

/// Deletes UDP flows to ports of the host that began before ADD opened the ports. The container
/// would never receive their packets: the kernel evaluates the rules of nat for the first packet of
/// a flow alone.
///
/// The kernel deletes the IPv4 flows by filters, if it can and the host has few own addresses; these
/// are also flows that began since ADD opened the ports, milliseconds ago. It translates the next
/// packet of each by the rules; a reply on its way at this moment is lost.
pub fn forget_earlier(cx: &Context<'_>, forwards: &[Forward]) {
    forget_to(forwards, |conntrack, mut udp| {
        let ends = ends_of_each(&udp)?.unwrap_or_default();
        if are_forgotten(conntrack, &ends)? {
            udp.retain(|forward| forward.family() != Family::V4);
        }
        forget_listed(cx, conntrack, &udp)
    });
}

/// The same for ports that `net sync` opens again. The container may have replied to flows by now,
/// so portmap keeps those that the kernel translates to it.
pub fn forget_to_others(cx: &Context<'_>, forwards: &[Forward]) {
    forget_to(forwards, |conntrack, udp| forget_listed(cx, conntrack, &udp));
}

fn forget_to(forwards: &[Forward], forget: impl FnOnce(&Conntrack, Vec<&Forward>) -> Result<()>) {
    let of_udp = |forward: &&Forward| forward.protocol == Protocol::Udp;
    let udp: Vec<&Forward> = forwards.iter().filter(of_udp).collect();
    if udp.is_empty() {
        return;
    }
    if let Err(error) = Conntrack::open().and_then(|conntrack| forget(&conntrack, udp)) {
        warn(error); // the ports are open nevertheless
    }
}

/// The filters by which the kernel finds flows to the ports; None if portmap has to list the flows.
fn ends_of_each(udp: &[&Forward]) -> Result<Option<Vec<(End, u16)>>> {
    let v4: Vec<_> = udp.iter().filter(|forward| forward.family() == Family::V4).collect();
    if v4.is_empty() {
        return Ok(None);
    }
    // The socket is not the host's common one, because the rest of the list stays in it.
    let Some(own) = Netlink::open()?.into_own_prefixes(Family::V4, MOST_OWN)? else {
        return Ok(None);
    };
    let own = BTreeSet::from_iter(own);
    let mut all = vec![];
    for forward in v4 {
        let ends: Option<Vec<End>> = match forward.at {
            None => own.iter().map(end_of).collect(),
            Some(ip @ IpAddr::V4(at)) if own.iter().any(|own| own.contains(&ip)) => {
                Some(vec![End::SentTo(at)])
            }
            Some(_) => Some(vec![]),
        };
        let Some(ends) = ends else { return Ok(None) };
        all.extend(ends.into_iter().map(|end| (end, forward.host_port)));
    }
    Ok(Some(all))
}

/// The filter for flows to an own prefix. The kernel has none for a prefix of several addresses, but
/// the host sends to 127.0.0.0/8 from 127.0.0.1.
fn end_of(own: &IpNet) -> Option<End> {
    match own {
        IpNet::V4(own) if own.prefix_len() == 32 => Some(End::SentTo(own.addr())),
        IpNet::V4(own) if own.addr().is_loopback() => Some(End::SentFrom(Ipv4Addr::LOCALHOST)),
        _ => None,
    }
}

/// Sends one request for each filter; false if there is none, if the kernel does not support them,
/// or if it lists the flows in less time.
fn are_forgotten(conntrack: &Conntrack, ends: &[(End, u16)]) -> Result<bool> {
    if ends.is_empty() || ends.len() > ONE_BY_ONE {
        return Ok(false);
    }
    for (end, port) in ends {
        if !conntrack.forget_udp_of(*end, *port)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Lists the flows to the ports, and deletes those that the kernel does not translate to the
/// forward's container.
fn forget_listed(cx: &Context<'_>, conntrack: &Conntrack, udp: &[&Forward]) -> Result<()> {
    let ports: Vec<(IpAddr, u16)> =
        udp.iter().map(|forward| (forward.to.addr(), forward.host_port)).collect();
    forget(conntrack, &ports, |flow| {
        let leads_elsewhere = |forward: &&Forward| {
            flow.port == forward.host_port
                && flow.answering != forward.to.addr()
                && forward.answers_at(flow.destination)
        };
        // as far as the kernel answers
        let is_own = || cx.host().and_then(|host| host.is_local(flow.destination));
        udp.iter().any(leads_elsewhere) && is_own().unwrap_or(false)
    })
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
        // The kernel has no filter by an IPv6 address.
        let ends = led.iter().filter_map(|(ip, port)| match ip {
            IpAddr::V4(ip) => Some((End::AnsweredBy(*ip), *port)),
            IpAddr::V6(_) => None,
        });
        let forgotten = are_forgotten(&conntrack, &ends.collect::<Vec<_>>()).and_then(|by_ends| {
            let mut left = led.clone();
            left.retain(|(ip, _)| !by_ends || ip.is_ipv6());
            forget(&conntrack, &left, |flow| left.contains(&(flow.answering, flow.port)))
        });
        match forgotten {
            // Flows in a flowtable are deleted by bridge and ptp, after the container's link.
            Err(error) if !error.is_errno(Errno::EBUSY) => warn(error),
            _ => (),
        }
        Some(conntrack)
    });
}

/// Deletes the stale ones among the UDP flows to these ports, each of which led to an address.
fn forget(
    conntrack: &Conntrack,
    ports: &[(IpAddr, u16)],
    is_stale: impl Fn(&Flow) -> bool,
) -> Result<()> {
    let mut errors = ErrorList::default();
    for family in Family::ALL {
        let of_family = ports.iter().filter(|(to, _)| Family::of(*to) == family);
        let ports: BTreeSet<u16> = of_family.map(|(_, port)| *port).collect();
        if !ports.is_empty() {
            errors.push(conntrack.forget_udp(family, &ports, &is_stale));
        }
    }
    errors.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_ends_and_wider_prefixes_are_listed() {
        let one: IpNet = "192.0.2.1/32".parse().unwrap();
        assert_eq!(end_of(&one), Some(End::SentTo(Ipv4Addr::new(192, 0, 2, 1))));
        let loopback: IpNet = "127.0.0.0/8".parse().unwrap();
        assert_eq!(end_of(&loopback), Some(End::SentFrom(Ipv4Addr::LOCALHOST)));
        let any: IpNet = "10.0.0.0/8".parse().unwrap();
        assert_eq!(end_of(&any), None);
    }
}
