//! Facts of rtnetlink: links, addresses, routes, rules and queues of a namespace.

use std::collections::BTreeMap;

use super::Detail;
use super::dump::{Socket, attribute, attributes, number, show, show_without};

const GET_LINK: u16 = 18;
const GET_ADDRESS: u16 = 22;
const GET_ROUTE: u16 = 26;
const GET_RULE: u16 = 34;
const GET_QDISC: u16 = 38;
const GET_FILTER: u16 = 46;

/// The sizes of the fixed parts before the attributes: ifinfomsg, ifaddrmsg, rtmsg, fib_rule_hdr,
/// tcmsg.
const LINK: usize = 16;
const ADDRESS: usize = 8;
const ROUTE: usize = 12;
const RULE: usize = 12;
const QUEUE: usize = 20;

/// Bits of IFLA_EXT_MASK: include the VLANs of bridge ports; leave out statistics.
const VLANS: u32 = 2;
const NO_STATISTICS: u32 = 8;

const BRIDGE: u8 = 7;

type Names = BTreeMap<u32, String>;

pub fn facts(socket: &Socket, detail: Detail) -> Vec<String> {
    let links = socket.dump(GET_LINK, &link_request(0, NO_STATISTICS));
    let names: Names = links.iter().map(|link| (index(link), name(link))).collect();
    let mut facts: Vec<String> = links.iter().map(|link| link_fact(link, &names, detail)).collect();
    let ports = socket.dump(GET_LINK, &link_request(BRIDGE, VLANS));
    facts.extend(ports.iter().map(|port| format!("vlan {}:{}", name(port), vlans(port))));
    let addresses = socket.dump(GET_ADDRESS, &[0; ADDRESS]);
    facts.extend(addresses.iter().map(|address| address_fact(address, &names, detail)));
    facts.extend(addresses.iter().filter_map(|address| awaited(address, &names)));
    let routes = socket.dump(GET_ROUTE, &[0; ROUTE]);
    facts.extend(routes.iter().map(|route| route_fact(route, &names, detail)));
    facts.extend(socket.dump(GET_RULE, &[0; RULE]).iter().map(|rule| rule_fact(rule)));
    for qdisc in socket.dump(GET_QDISC, &[0; QUEUE]) {
        facts.extend(queue_facts(socket, &qdisc, &names));
    }
    facts
}

fn link_request(family: u8, mask: u32) -> Vec<u8> {
    const EXT_MASK: u16 = 29;
    let mut body = vec![0; LINK];
    body[0] = family;
    body.extend([8, EXT_MASK].map(u16::to_ne_bytes).concat());
    body.extend(mask.to_ne_bytes());
    body
}

fn index(link: &[u8]) -> u32 {
    number(link, 4, 4) as u32
}

fn name(link: &[u8]) -> String {
    attribute(link, LINK, 3).map(show).unwrap_or_default()
}

/// The name of the link that an attribute refers to by its index.
fn named(value: &[u8], names: &Names) -> String {
    let index = number(value, 0, 4) as u32;
    names.get(&index).cloned().unwrap_or_else(|| "elsewhere".to_owned())
}

/// Attributes that change by themselves: statistics, counts of carrier changes, and namespace ids.
const PASSING_OF_LINK: [u16; 8] = [7, 14, 23, 35, 37, 43, 47, 48];
/// The state, and what follows from it.
const STATES_OF_LINK: [u16; 3] = [16, 17, 33];

fn link_fact(link: &[u8], names: &Names, detail: Detail) -> String {
    const IFLA_LINK: u16 = 5;
    const IFLA_MASTER: u16 = 10;
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_AF_SPEC: u16 = 26;
    const LINK_NETNSID: u16 = 37;
    // UP, BROADCAST, LOOPBACK, POINTOPOINT, NOARP, PROMISC, ALLMULTI, MULTICAST: the flags that do
    // not depend on the carrier.
    const LASTING_FLAGS: u64 = 0x1 | 0x2 | 0x8 | 0x10 | 0x80 | 0x100 | 0x200 | 0x1000;
    let shown_flags = if detail == Detail::States { u64::MAX } else { LASTING_FLAGS };
    let (attributes, flags) = (attributes(link, LINK), number(link, 8, 4) & shown_flags);
    let elsewhere = attributes.iter().any(|(kind, _)| *kind == LINK_NETNSID);
    let mut fact = format!("link {} flags={flags:x}", name(link));
    for (kind, value) in attributes {
        match kind {
            IFLA_LINK if elsewhere => fact += " below=elsewhere",
            IFLA_LINK => fact += &format!(" below={}", named(value, names)),
            IFLA_MASTER => fact += &format!(" master={}", named(value, names)),
            IFLA_LINKINFO => fact += &kind_of_link(value, detail),
            IFLA_AF_SPEC => fact += &settings(value),
            kind if PASSING_OF_LINK.contains(&kind) => (),
            kind if detail == Detail::Lasting && STATES_OF_LINK.contains(&kind) => (),
            kind => fact += &format!(" {kind}={}", show(value)),
        }
    }
    fact
}

/// The kind of a link, and its settings as a port of its master; without timers and counters.
fn kind_of_link(info: &[u8], detail: Detail) -> String {
    const DATA: u16 = 2;
    const STATISTICS: u16 = 3;
    const PORT: u16 = 5;
    let is_bridge = attribute(info, 0, 1).map(show).as_deref() == Some("bridge");
    let is_port = attribute(info, 0, 4).map(show).as_deref() == Some("bridge");
    // The root port and its cost, topology changes, timers, the number of learnt neighbours.
    let passing_of_bridge: Vec<u16> = (12..=19).chain([48]).collect();
    // The port's number, the acknowledgement of topology changes, timers.
    let mut passing_of_port: Vec<u16> = vec![18, 19, 21, 22, 23];
    if detail == Detail::Lasting {
        // The state, the root, the designated port, the number of multicast groups.
        passing_of_port.extend([1, 13, 14, 15, 16, 17, 20, 38, 41]);
    }
    let mut text = String::new();
    for (kind, value) in attributes(info, 0) {
        text += &match kind {
            STATISTICS => String::new(),
            DATA if is_bridge => {
                format!(" bridge={{{}}}", show_without(&attributes(value, 0), &passing_of_bridge))
            }
            PORT if is_port => {
                format!(" port={{{}}}", show_without(&attributes(value, 0), &passing_of_port))
            }
            DATA | PORT => format!(" data={{{}}}", show_without(&attributes(value, 0), &[])),
            _ => format!(" kind={}", show(value)),
        };
    }
    text
}

/// The sysctls of a link, /proc/sys/net/ipv4/conf/LINK and its IPv6 counterpart, except forwarding,
/// which ADD is documented to leave switched on.
fn settings(families: &[u8]) -> String {
    let mut text = String::new();
    for (family, value) in attributes(families, 0) {
        for (kind, value) in attributes(value, 0) {
            let is_array =
                matches!((i32::from(family), kind), (libc::AF_INET, 1) | (libc::AF_INET6, 2));
            if is_array && value.len() > 4 {
                text += &format!(" settings{family}={}", show(&value[4..]));
            }
        }
    }
    text
}

fn vlans(port: &[u8]) -> String {
    attribute(port, LINK, 26)
        .map(|spec| show_without(&attributes(spec, 0), &[]))
        .unwrap_or_default()
}

/// The prefix of a fact which says that the kernel will add another fact by itself: the route of an
/// address once its duplicate address detection ends.
pub const AWAITED: &str = "awaited";

/// Reports an address that is still tentative.
fn awaited(address: &[u8], names: &Names) -> Option<String> {
    const FLAGS: u16 = 8;
    const TENTATIVE: u64 = 0x40;
    let flags = attribute(address, ADDRESS, FLAGS).map_or(0, |flags| number(flags, 0, 4));
    (flags & TENTATIVE != 0).then(|| format!("{AWAITED} {}", named(&address[4..], names)))
}

fn address_fact(address: &[u8], names: &Names, detail: Detail) -> String {
    const FLAGS: u16 = 8;
    const TIMES: u16 = 6;
    // Tentative and optimistic.
    const PASSING_FLAGS: u64 = 0x40 | 0x04;
    const DUPLICATE: u64 = 0x08;
    let hidden = if detail == Detail::States { PASSING_FLAGS } else { PASSING_FLAGS | DUPLICATE };
    let attributes = attributes(address, ADDRESS);
    let of = named(&address[4..], names);
    let head = [address[0], address[1], address[3]];
    let mut fact = format!(
        "address {of} family/length/scope={head:?}{}",
        show_without(&attributes, &[FLAGS, TIMES])
    );
    for (kind, value) in attributes {
        match kind {
            FLAGS => fact += &format!(" flags={:x}", number(value, 0, 4) & !hidden),
            TIMES if detail == Detail::States => fact += &format!(" times={}", show(&value[..8])),
            TIMES => {
                fact += if number(value, 0, 4) == u64::from(u32::MAX) {
                    " for ever"
                } else {
                    " for a time"
                }
            }
            _ => (),
        }
    }
    fact
}

fn route_fact(route: &[u8], names: &Names, detail: Detail) -> String {
    const INCOMING: u16 = 3;
    const OUTGOING: u16 = 4;
    const TIMES: u16 = 12;
    // The flags that follow from the carrier.
    const DEAD_OR_LINK_DOWN: u64 = 0x1 | 0x10;
    let hidden = if detail == Detail::States { 0 } else { DEAD_OR_LINK_DOWN };
    let flags = number(route, 8, 4) & !hidden;
    let mut fact = format!("route head={} flags={flags:x}", show(&route[..8]));
    for (kind, value) in attributes(route, ROUTE) {
        match kind {
            INCOMING | OUTGOING => fact += &format!(" dev={}", named(value, names)),
            TIMES if detail == Detail::States => {
                fact += &format!(" expires={}", show(&value[8..12]))
            }
            TIMES => (),
            _ => fact += &format!(" {kind}={}", show(value)),
        }
    }
    fact
}

fn rule_fact(rule: &[u8]) -> String {
    format!("rule head={}{}", show(&rule[..RULE]), show_without(&attributes(rule, RULE), &[]))
}

/// A queue that a program created, and its filters. A link's default queues have no handle.
fn queue_facts(socket: &Socket, queue: &[u8], names: &Names) -> Vec<String> {
    const STATISTICS: [u16; 3] = [3, 4, 7];
    // The ingress and egress sides of clsact, which itself has the handle ffff:.
    const SIDES: [u32; 2] = [0xffff_fff2, 0xffff_fff3];
    let of = named(&queue[4..], names);
    let handle = number(queue, 8, 4) as u32;
    if handle == 0 {
        return vec![];
    }
    let parent = number(queue, 12, 4);
    let shown = show_without(&attributes(queue, QUEUE), &STATISTICS);
    let mut facts = vec![format!("qdisc {of} {handle:x} parent={parent:x}{shown}")];
    let sides = if handle == 0xffff_0000 { SIDES.to_vec() } else { vec![] };
    for parent in [handle].into_iter().chain(sides) {
        let mut request = vec![0; QUEUE];
        request[4..8].copy_from_slice(&queue[4..8]);
        request[12..16].copy_from_slice(&parent.to_ne_bytes());
        for filter in socket.dump(GET_FILTER, &request) {
            let kind = attribute(&filter, QUEUE, 1).map(show).unwrap_or_default();
            facts.push(format!("filter {of} of {parent:x}: {kind} {}", show(&filter[8..QUEUE])));
        }
    }
    facts
}
