//! Any bytes as the kernel's answers to rtnetlink requests: they are parsed or rejected, and parsed
//! objects can be sent back to the kernel.
//!
//! The first byte selects the request.

use std::net::{IpAddr, Ipv4Addr};

use cni_multi::net::mac::MacAddr;
use cni_multi::net::netlink::{Handle, KeptAddress, Link, Netlink, RouteEntry};

use crate::kernel;

/// How many parsed objects are sent back.
const ENOUGH: usize = 4;
/// The link that requests are about; the seeds describe it.
const INDEX: u32 = 4;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let Some((question, answers)) = bytes.split_first() else { return };
    let (ours, _kernel) = kernel::answering(answers);
    ask(*question, Netlink::over(ours));
}

fn ask(question: u8, netlink: Netlink) {
    let link = Link { index: INDEX, name: "eth0".to_owned(), ..Link::default() };
    let gateway = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    match question % 20 {
        0 => drop(netlink.link("eth0").map(|link| (link.mac().to_string(), link.operstate_text()))),
        1 => drop(netlink.find_link_by_index(INDEX)),
        2 => drop(netlink.find_link_by_mac(&MacAddr::new(&[2, 0, 0, 0, 0, 1]))),
        3 => drop(netlink.links_of_kind("veth")),
        4 => drop(netlink.ports(&link)),
        5 => drop(netlink.addresses(&link)),
        6 => {
            for kept in netlink.keep_addresses(&link).unwrap_or_default().iter().take(ENOUGH) {
                assert_eq!(&KeptAddress::from_text(kept.as_text()), kept);
                let _ = netlink.restore_address(&link, kept);
            }
        }
        7 => drop(netlink.routes()),
        8 => {
            let mut routes = netlink.routes_through(&link).unwrap_or_default();
            RouteEntry::sort_by_dependence(&mut routes);
            for route in routes.iter().take(ENOUGH) {
                let _ = netlink.put_route(&link, &route.in_table(100).by(gateway).on_link());
                let _ = netlink.delete_route(&link, route);
                let _ = (route.source(), route.is_in_main());
            }
        }
        9 => {
            for address in netlink.ipv6_addresses(&link).unwrap_or_default().iter().take(ENOUGH) {
                let _ = netlink.put_address(&link, address);
            }
        }
        10 => drop(netlink.rules()),
        11 => drop(netlink.into_has_rules()),
        12 => drop(netlink.into_default_link()),
        13 => drop(netlink.link_towards(gateway)),
        14 => drop(netlink.is_local(gateway)),
        15 => drop(netlink.qdisc_at(&link, Handle::new(1, 0)).map(|found| found.map(|qdisc| qdisc.kind.name().len()))),
        16 => drop(netlink.htb_classes(&link)),
        17 => drop(netlink.filters(&link, Handle::new(1, 0))),
        18 => drop(netlink.port_vlans(&link)),
        _ => drop(netlink.delete_link(INDEX)),
    }
}
